"""A real run is watched in a real browser while it learns: a reader's own sentence gets into its records."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import browsing

import qkv
from qkv.explore import server
from qkv.training import recipes
from qkv.training.probes.records import FOLDER, REQUESTS_FILE, ProbeLog

SENTENCE = "我爱喝茶。"


@contextmanager
def learning(folder: Path) -> Iterator[tuple[server.Page, threading.Thread]]:
    """A page, and a run that records itself at every step: it waits after its first record until somebody asks."""
    run = recipes.configure("demo", smoke=True)
    run = replace(run, training=replace(run.training, steps=12), watch=replace(run.watch, times=12, share=1.0))
    desk = server.Desk(["demo"], lambda name: qkv.load(name, device="cpu"), examples={"demo": [SENTENCE]},
                       watched=folder)

    def hear(event: dict[str, Any]) -> None:
        desk.events.send(event)
        until = time.monotonic() + 120
        while event["kind"] == "watch" and not (folder / FOLDER / REQUESTS_FILE).is_file() and time.monotonic() < until:
            time.sleep(0.05)

    page = server.Page(desk)
    page.start()
    thread = threading.Thread(target=lambda: recipes.train(run, out=folder, device="cpu", report=hear))
    thread.start()
    try:
        yield page, thread
    finally:
        (folder / FOLDER / REQUESTS_FILE).touch()  # it need not wait any more
        thread.join(300)
        page.stop()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_sentence_asked_for_in_training_is_in_the_next_record(tmp_path: Path) -> None:
    browsing.chromium()
    folder = tmp_path / "demo"
    with learning(folder) as (page, thread):
        seen = browsing.browsed("wish.mjs", page.url, SENTENCE, timeout=300)
        thread.join(300)
    w = ProbeLog(folder)
    assert w.requests == (SENTENCE,)
    having = [step for step in w.steps if SENTENCE in [row["text"] for row in w.read(step).json["texts"]]]
    assert having == [step for step in w.steps if step >= having[0]] != []  # every record since it was asked for
    assert 0 < having[0] < 12
    assert SENTENCE not in w.index["texts"]  # the run's own texts are others
    record = w.read(seen["step"]).json["texts"]
    row = next(row for row in record if row["text"] == SENTENCE)
    assert seen["step"] in having
    assert seen["output"] == (row["output"] or "—")
    assert seen["text"] == SENTENCE
    assert seen["shape"] == list(w.read(seen["step"])[f"texts.{record.index(row)}.alignment"].shape)
