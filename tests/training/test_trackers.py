"""Trackers hear what the log holds: TensorBoard's own reader, stand-ins for W&B and for another package's tracker."""

import json
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import main
from qkv.errors import QkvError
from qkv.training import run_dir, trackers

EVENTS: list[run_dir.Event] = [
    {"kind": "note", "step": 0, "text": "precision fp32"},
    {"kind": "step", "step": 10, "of": 20, "loss": 2.5, "lr": 1e-3, "eta": 9.0, "tokens_per_second": 50.0},
    {"kind": "evaluation", "step": 10, "loss": 2.0, "bleu": 7.5, "best": True, "signature": "x", "samples": [["a"]]},
    {"kind": "evaluation", "step": 10, "weights": "average", "loss": 1.0},
    {"kind": "evaluation", "step": 20, "weights": "last", "loss": 1.5},
    {"kind": "end", "step": 20, "loss": 2.5},
]


def test_only_numbers_go_out_under_the_names_that_trackers_group_by() -> None:
    found = [trackers.collect_numbers(event) for event in EVENTS]
    assert found == [
        {}, {"train/loss": 2.5, "train/lr": 1e-3, "train/tokens_per_second": 50.0},
        {"valid/loss": 2.0, "valid/bleu": 7.5}, {}, {"valid/loss": 1.5}, {},
    ]  # fmt: skip


def test_tensorboard_reads_what_a_run_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="the extra `track` is not installed: pip install qkv[track]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    (tmp_path / "a.tsv").write_text("".join(f"a {i}\tb {i}\n" for i in range(60)), encoding="utf-8")
    (tmp_path / "a.toml").write_text('[data]\ntsv = "a.tsv"\nvalid = 5\n[tokenizer]\nkind = "word"\n', encoding="utf-8")
    words = ["train", str(tmp_path / "a.toml"), "--smoke", "--out", str(tmp_path / "run"), "--track", "tensorboard"]
    assert main([*words, "--device", "cpu", "--quiet"]) == 0
    read = EventAccumulator(str(tmp_path / "run" / "train" / "tensorboard"))
    read.Reload()
    steps = [e for e in run_dir.read_events(tmp_path / "run" / "train" / "log.jsonl") if e["kind"] == "step"]
    assert [(s.step, s.value) for s in read.Scalars("train/loss")] == [
        (e["step"], pytest.approx(e["loss"], rel=1e-6)) for e in steps
    ]
    assert {"valid/loss", "valid/bleu", "train/lr"} <= set(read.Tags()["scalars"])


@pytest.mark.parametrize("library", ["wandb", "trackio"])
def test_libraries_with_the_calls_of_wandb_are_told_and_closed(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    made = types.SimpleNamespace(
        init=lambda **how: heard.append(how), finish=lambda: heard.append("finish"),
        log=lambda found, step: heard.append((step, found)),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, library, made)  # type: ignore[arg-type]
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    said: list[run_dir.Event] = []
    report = trackers.join_reports([None, said.append, trackers.open_tracker(library, tmp_path / "mine")])
    (tmp_path / "mine" / "train").mkdir(parents=True)
    told = {"name": "x", "training": {"lr": 0.5, "lora": {"rank": 8}}}
    (tmp_path / "mine" / "train" / "run.json").write_text(json.dumps(told), encoding="utf-8")
    for event in EVENTS:
        report(event)
    assert said == EVENTS
    config = {"training.lr": 0.5, "training.lora.rank": 8}
    opening = heard.pop(0)
    again = {key: opening.pop(key) for key in ("id", "resume") if key in opening}
    assert opening == {"project": "qkv", "name": "mine", "config": config}
    counted = [e for e in EVENTS if trackers.collect_numbers(e)]
    assert heard == [*((e["step"], trackers.collect_numbers(e)) for e in counted), "finish"]
    for other in (tmp_path / "mine", tmp_path / "other"):  # the same run goes on, another one does not
        heard.clear()
        (other / "train").mkdir(parents=True, exist_ok=True)
        (other / "train" / "run.json").write_text(json.dumps(told), encoding="utf-8")
        trackers.open_tracker(library, other)(EVENTS[1])
        if library == "wandb":
            assert (heard[0]["id"] == again["id"]) == (other.name == "mine")
            assert heard[0]["resume"] == again["resume"] == "allow"
        else:
            assert again == {"resume": "never"}
            assert heard[0]["resume"] == ("allow" if other.name == "mine" else "never")


def test_what_a_resumed_run_says_again_stands_once_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `track` is not installed: pip install qkv[track]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    for steps in ((10, 20, 30), (20, 30, 40)):  # stopped after 30, resumed from 10
        report = trackers.open_tracker("tensorboard", tmp_path)
        for step in steps:
            report({"kind": "step", "step": step, "loss": float(step + steps[0])})
        report({"kind": "end", "step": steps[-1]})
    read = EventAccumulator(str(tmp_path / "train" / "tensorboard"))
    read.Reload()
    assert [(s.step, s.value) for s in read.Scalars("train/loss")] == [(10, 20.0), (20, 40.0), (30, 50.0), (40, 60.0)]


def test_another_package_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    point = types.SimpleNamespace(name="paper", load=lambda: lambda directory: heard.append(directory) or heard.append)
    monkeypatch.setattr(trackers, "entry_points", lambda *, group: [point] if group == "qkv.track" else [])
    trackers.open_tracker("paper", tmp_path)(EVENTS[0])
    assert heard == [tmp_path, EVENTS[0]]
    with pytest.raises(QkvError, match=r"no such tracker; did you mean 'paper'\? \(known: paper, tensorboard"):
        trackers.open_tracker("papper", tmp_path)


def test_what_is_not_installed_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    with pytest.raises(QkvError, match=r"--track wandb: .*pip install wandb"):
        trackers.open_tracker("wandb", tmp_path)
    assert EntryPoint("x", "qkv.training.trackers:open_tensorboard", trackers.GROUP).load() is trackers.open_tensorboard
