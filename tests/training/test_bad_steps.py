"""A step with bad numbers never reaches the weights: it stops the run, or is skipped, alike in a resumed one."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.core.model import Transformer
from qkv.data import collate
from qkv.training import checkpoint, control, loop, run_dir
from qkv.training import step as stepping
from qkv.training.plan import Plan

sys.path.insert(0, str(Path(__file__).parent))
from test_loop import BASE, core_of, gap, plan_of, reversals, same, speaker, translator, values

EVEN = [[2.0 + 0.01 * (i % 5), 1.0 + 0.1 * (i % 3)] for i in range(40)]
SKIPS = dataclasses.replace(BASE, on_bad_step="skip", steps=30)


@pytest.mark.parametrize(
    ("loss", "norm", "said"),
    [
        (math.nan, 1.0, "loss nan"),
        (2.0, math.inf, "gradient norm inf"),
        (9.0, 1.0, "loss 9, "),
        (2.0, 80.0, "gradient norm 80, "),
        (2.05, 1.3, ""),
        (0.1, 0.01, ""),  # what falls is no spike
    ],
)
def test_what_a_bad_step_is(loss: float, norm: float, said: str) -> None:
    found = control.find_fault(loss, norm, EVEN, spike=6.0)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_spike_needs_a_past_and_a_wish_for_it() -> None:
    assert control.find_fault(9.0, 1.0, EVEN[: control.ENOUGH - 1], spike=6.0) == ""
    assert control.find_fault(9.0, 1.0, EVEN, spike=0.0) == ""
    assert control.find_fault(2.01, 1.0, [[2.0, 1.0]] * 40, spike=6.0) == ""  # dust over an even loss
    assert control.find_fault(3.0, 1.0, [[2.0, 1.0]] * 40, spike=6.0) != ""


def poisoned(patch: pytest.MonkeyPatch, steps: set[int], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """From now on the loss of these steps (from 1) is changed."""
    true, calls = stepping.step_loss, itertools.count(1)

    def wrong(core: Transformer, batch: Any, **how: Any) -> Any:
        loss, busy = true(core, batch, **how)
        return (change(loss) if next(calls) in steps else loss), busy

    patch.setattr(stepping, "step_loss", wrong)


def test_a_skipped_step_leaves_weights_and_adam_as_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    core = core_of(speaker())
    poisoned(monkeypatch, {4}, lambda loss: loss * math.nan)
    plan = plan_of_texts()

    def watch(step: int) -> bool:
        seen.append(values(core))
        return False

    end = loop.train(core, plan, dataclasses.replace(SKIPS, steps=6), directory=tmp_path, stop=watch)
    assert (end.steps, end.skipped) == (6, 1)
    assert same(seen[2], seen[3])
    assert not same(seen[3], seen[4])
    events = run_dir.read_events(tmp_path / "train" / "log.jsonl")
    assert [e["loss"] for e in events if e["kind"] == "step"][3] is None
    assert any("loss nan at step 4" in e["text"] for e in events if e["kind"] == "note")


def plan_of_texts() -> Any:
    ids = torch.randint(0, 31, (24, 9), generator=torch.Generator().manual_seed(3))
    return Plan(lambda epoch: range(6), lambda key: collate.collate_windows(ids[4 * key : 4 * key + 4]), {"rows": 24})


def test_the_batch_of_a_bad_step_is_kept_with_what_makes_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = plan_of_texts()
    poisoned(monkeypatch, {4}, lambda loss: loss * math.inf)
    loop.train(core_of(speaker()), plan, dataclasses.replace(SKIPS, steps=6), directory=tmp_path)
    tensors, state = checkpoint.read(tmp_path / "train" / "bad_batches" / "step-4.0.safetensors")
    assert torch.equal(tensors["0.target"], plan.make(3).target)
    assert (state["epoch"], state["batch"], state["rows"], state["why"]) == (0, 3, ["3"], "loss inf")


def test_three_in_a_row_end_a_run_with_the_weights_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    core, kept = core_of(translator()), list[Any]()
    poisoned(monkeypatch, {3, 5, 6, 7}, lambda loss: loss * math.nan)
    with pytest.raises(control.NonFinite, match=r"loss nan at step 7 .*bad step 3 in a row") as error:
        loop.train(core, plan_of(reversals()), SKIPS, stop=lambda step: bool(kept.append(values(core))))
    assert error.value.exit_code == 3
    assert same(kept[3], values(core))


def test_a_spike_is_skipped_and_a_resumed_run_skips_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = dataclasses.replace(SKIPS, spike=8.0, log_every=50)

    def trained(folder: str, *stops: int) -> dict[str, torch.Tensor]:
        core, skipped = core_of(translator(0.1)), 0
        for stop in (*stops, 0):
            core = core_of(translator(0.1))
            with pytest.MonkeyPatch.context() as patch:
                poisoned(patch, {24 - max((s for s in stops if s != stop and not stop), default=0)}, lambda x: x * 50)
                end = loop.train(core, plan_of(reversals()), settings, directory=tmp_path / folder, resume=True,
                                 stop=lambda step, stop=stop: step == stop)  # fmt: skip
            skipped = end.skipped
        assert skipped == 1
        return values(core)

    whole = trained("whole")
    assert gap(whole, trained("parts", 20)) == 0  # its past is in the checkpoint
    monkeypatch.setattr(control, "ENOUGH", 10**6)
    core = core_of(translator(0.1))
    poisoned(monkeypatch, {24}, lambda loss: loss * 50)
    assert loop.train(core, plan_of(reversals()), settings).skipped == 0
    assert gap(whole, values(core)) > 1e-4


def test_a_spike_stops_a_run_that_may_not_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, {24}, lambda loss: loss * 50)
    settings = dataclasses.replace(SKIPS, spike=8.0, on_bad_step="stop")
    with pytest.raises(control.NonFinite, match="standard deviations above the last 23 steps at step 24"):
        loop.train(core_of(translator()), plan_of(reversals()), settings)


def test_a_full_folder_of_bad_batches_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "KEPT", 1)
    batch = collate.collate_windows(torch.arange(9)[None])  # of one row: target and labels share its memory
    assert loop.keep_batches(tmp_path / "step-1.0.safetensors", {0: batch}, {})
    assert not loop.keep_batches(tmp_path / "step-2.0.safetensors", {0: batch}, {})
    assert [f.name for f in tmp_path.iterdir()] == ["step-1.0.safetensors"]


def test_a_run_that_goes_back_resumes_behind_the_bad_batch(tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, on_bad_step="rewind", steps=14, save_every=4, ema=0.5, log_every=1)
    plan = plan_of(reversals(100), 4)  # more batches than steps
    with pytest.MonkeyPatch.context() as patch:
        poisoned(patch, {11}, lambda loss: loss * math.nan)  # behind step 8, which is saved
        core = core_of(translator(0.1))
        end = loop.train(core, plan, settings, directory=tmp_path / "back")
    assert (end.steps, end.skipped) == (14, 1)
    events = run_dir.read_events(tmp_path / "back" / "train" / "log.jsonl")
    assert [e["step"] for e in events if e["kind"] == "step"] == list(range(1, 15))
    assert any("loss nan at step 11" in e["text"] and "back to step 8, past" in e["text"] for e in events if
               e["kind"] == "note")  # fmt: skip

    loop.train(core_of(translator(0.1)), plan, settings, directory=tmp_path / "by hand", stop=lambda step: step == 8)
    path = tmp_path / "by hand" / "train" / "last.safetensors"
    tensors, state = checkpoint.read(path)
    assert state["progress"]["done"] == 8
    state["progress"]["done"] = 11
    checkpoint.write(path, tensors, state)
    other = core_of(translator(0.1))
    loop.train(other, plan, settings, directory=tmp_path / "by hand", resume=True)
    assert same(values(core), values(other))
    last, theirs = (checkpoint.read(tmp_path / name / "train" / "last.safetensors")[0] for name in ("back", "by hand"))
    assert same(last, theirs), "what the optimiser remembers, and the mean"
    assert not same(values(core), values(core_of(translator(0.1))))


def test_a_run_goes_back_so_often_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dataclasses.replace(BASE, on_bad_step="rewind", steps=30, evaluate_every=5, save_every=7)
    core, plan = core_of(translator()), plan_of(reversals(200), 4)
    first = values(core)
    poisoned(monkeypatch, {2, 4, 6, 7}, lambda loss: loss * math.nan)
    with pytest.raises(control.NonFinite, match=r"loss nan at step 1 .*the run went back 3 times"):
        loop.train(core, plan, settings, directory=tmp_path)
    kept = sorted(path.name for path in (tmp_path / "train" / "bad_batches").iterdir())
    assert len(kept) == 4, f"none takes the place of another: {kept}"
    assert same(first, values(core))
    with pytest.raises(control.QkvError, match="without a directory has no checkpoint"):
        loop.train(core_of(translator()), plan, settings)


def test_what_was_evaluated_is_never_gone_back_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dataclasses.replace(BASE, on_bad_step="rewind", steps=12, evaluate_every=5, save_every=9, average=2)
    measured: list[int] = []

    def evaluate(core: Transformer, step: int) -> dict[str, Any]:
        measured.append(step)
        return {"loss": -float(step)}

    poisoned(monkeypatch, {8, 12}, lambda loss: loss * math.nan)
    plan = plan_of(reversals(200), 4)
    end = loop.train(core_of(translator()), plan, settings, directory=tmp_path, evaluate=evaluate)
    assert measured[:2] == [5, 10]
    assert (end.steps, end.skipped) == (12, 2)
    state = checkpoint.read(tmp_path / "train" / "last.safetensors")[1]["progress"]
    assert (state["back"], state["snapshots"]) == (0, [5, 10])
