"""What every lab stands on: seeds side by side, results on disk, agreement with an earlier run, the pictures' frame."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import click
import pytest
import torch

from qkv import files, labs
from qkv.errors import QkvError
from qkv.labs import lab, page
from qkv.labs.lab import Plot, Runs, Verdict
from qkv.messages import Given, Message
from qkv.plots import figure, html, terminal

BLIND = labs.find_lab("order-blind")


def test_seeds_side_by_side_give_the_numbers_of_one_after_another():
    alone = lab.perform("order-blind", BLIND, seeds=(0, 1))
    both = lab.perform("order-blind", BLIND, seeds=(0, 1), jobs=2)
    assert both.numbers == alone.numbers
    assert both.seeds == (0, 1)
    assert both.verdict == alone.verdict


def test_a_lab_computes_on_one_thread_unless_it_is_about_speed():
    before = torch.get_num_threads()

    def run(seed, **how):
        return {"threads": float(torch.get_num_threads())}

    torch.set_num_threads(2)
    try:
        for kind, threads in (("exact", 1), ("speed", 2)):
            one = dataclasses.replace(
                BLIND, kind=kind, run=run, judge=lambda runs: Verdict("shown", Message(), 0.0, (0.0, 0.0))
            )
            assert lab.perform("x", one, seeds=(0,)).numbers == ({"threads": threads},)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


STUCK = """
import dataclasses, pathlib, sys, time
from qkv import labs
from qkv.labs import lab

def run(seed, **how):
    pathlib.Path(sys.argv[1], str(seed)).touch()
    time.sleep(600)

if __name__ == "__main__":
    lab.perform("x", dataclasses.replace(labs.find_lab("order-blind"), run=run), seeds=(0, 1), jobs=2)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals to a process group")
def test_ctrl_c_ends_the_processes_of_all_seeds(tmp_path):
    (tmp_path / "run.py").write_text(STUCK, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path)]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # who starts the tests in the background ignores it
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heard)
    try:
        while not ((tmp_path / "0").exists() and (tmp_path / "1").exists()):
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)  # until nobody holds the pipe: the seeds' processes are gone
        assert said.count(b"KeyboardInterrupt") == 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def result(value, word="shown", spread=0.0):
    numbers = tuple({"accuracy": value + d} for d in (0.0, spread / 2, spread))
    return lab.Result("x", (0, 1, 2), 1, numbers, Verdict(word, Message(), value, (value, value)), 1.0)


def test_a_run_agrees_with_an_earlier_one_within_its_spread():
    one = dataclasses.replace(BLIND, kind="trained", rows={"accuracy": Message("accuracy")})
    kept = result(0.5, spread=0.1)
    assert lab.differences(one, kept, kept) == []
    assert lab.differences(one, kept, result(0.65)) == []
    (said,) = lab.differences(one, kept, result(0.75))
    assert (said, said.to("zh")) == ("accuracy: 0.75, was 0.5 … 0.6", "正确率：0.75，原来 0.5 … 0.6")
    assert lab.differences(one, result(1.0), result(0.99)) == []
    assert len(lab.differences(one, result(1.0), result(0.9))) == 1
    assert lab.differences(one, kept, result(0.55, "refuted"))[0] == "verdict: refuted, was shown"
    other = dataclasses.replace(one, rows={"loss": Message("loss")})
    assert lab.differences(other, kept, kept) == ["loss: was not there"]
    fast = dataclasses.replace(one, kind="speed")
    assert lab.differences(fast, kept, result(9.0)) == []


def test_a_result_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = lab.write_result(BLIND, result(0.5), tmp_path / "new")
    assert json.loads(file.read_text(encoding="utf-8"))["verdict"] == "shown"
    before = file.read_bytes()

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "fsync_path", full)
    with pytest.raises(QkvError, match="No space left"):
        lab.write_result(BLIND, result(0.9), tmp_path / "new")
    assert file.read_bytes() == before
    assert list((tmp_path / "new").iterdir()) == [file]


def test_a_png_is_written_without_a_display(tmp_path):
    program = (
        "import sys, pathlib\n"
        "from qkv import labs\n"
        "from qkv.labs import find_lab, lab, load_result, page\n"
        "found = lab.from_json(load_result('order-blind'), 'x')\n"
        "assert page.save_page(find_lab('order-blind'), lab.Runs(found.numbers), pathlib.Path(sys.argv[1]), 'en')\n"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")} | {"MPLBACKEND": "TkAgg"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.png")], env=env, check=True)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_published_figure_stands_beside_ours(tmp_path):
    theirs = Plot("bars", Given({"zh": "他们", "en": "theirs"}), ["a"], {"s": [3.0]},
                  source=Given({"zh": "图 1", "en": "their Figure 1"}),
                  names={"a": Message("first")})  # fmt: skip
    ours = Plot("lines", Given({"zh": "我们", "en": "ours"}), [1.0, 2.0], {"s": [0.0, 1.0]},
                names={"s": Message("line")}, beside=theirs)
    found = dataclasses.replace(BLIND, plot=lambda runs: ours, rows={})
    drawn = page.make_forms(found, Runs(({},)), "en")
    lines = [click.unstyle(line) for form in drawn for line in terminal.render(form)]
    assert lines.index("ours") < lines.index("theirs") < lines.index("(their Figure 1)")
    assert any(line.startswith("line ") for line in lines)
    assert any(line.startswith("first ") for line in lines)
    assert "their Figure 1" in html.render(drawn[1])
    assert page.save_page(found, Runs(({},)), tmp_path / "x.png", "en")
    above, below = figure.draw(page.make_forms(found, Runs(({},)), "zh")).axes
    assert [axes.get_title(loc="left") for axes in (above, below)] == ["我们", "他们"]
    assert below.get_xlabel() == "图 1"


def test_a_page_of_several_labs_lists_their_verdicts_first():
    done = [(labs.find_lab(n), lab.from_json(labs.load_result(n), n)) for n in ("order-blind", "stated-numbers")]
    for lang, word in (("en", "refuted"), ("zh", "不成立")):
        text = page.write_pages(done, lang)
        assert text.index('href="#stated-numbers"') < text.index('id="order-blind"') < text.index('id="stated-numbers"')
        assert text.count("<figcaption") == 2
        assert f"<td>{word}</td>" in text
    assert "<h1>order-blind</h1>" in page.write_pages(done[:1], "en")
