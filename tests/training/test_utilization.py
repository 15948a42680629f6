"""The share of the machine that a run uses: operations as PyTorch counts them, over seconds and a measured peak."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv.adapt import onednn_linear
from qkv.data import collate
from qkv.training import loop, machine
from qkv.training.checkpoint import Progress
from qkv.training.losses import step_loss
from qkv.training.shape import Shape

sys.path.insert(0, str(Path(__file__).parent))
from test_loop import BASE, core_of, plan_of, reversals, translator


@pytest.mark.parametrize("family", ["gpt2", "llama", "marian", "bert"])
def test_operations_are_those_that_pytorch_counts(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_linear, "is_mkl_slow", lambda: False)  # PyTorch counts its own products alone
    core = core_of(Shape(family, width=64, layers=2, heads=2, ffn=256, dropout=0.0, context=64).spec(500))  # type: ignore[arg-type]
    rows = torch.randint(3, 500, (2, 33), generator=torch.Generator().manual_seed(0))
    pairs = [(row[:32].tolist(), row[:32].tolist()) for row in rows]
    batch = collate.collate_pairs(pairs, pad=0, start=0) if family == "marian" else collate.collate_windows(rows)
    with FlopCounterMode(display=False) as counter:
        step_loss(core, batch)[0].backward()
    expected = pytest.approx(counter.get_total_flops(), rel=0.06)  # attention's triangle
    assert machine.Speed(core).count(batch) == expected


def test_padding_is_no_work() -> None:
    work = machine.Speed(core_of(translator()))
    one = collate.collate_pairs([([3, 4, 2], [3, 2])], pad=0, start=1, shape=(8, 8))
    both = collate.collate_pairs([([3, 4, 2], [3, 2]), ([3, 2], [3, 4, 5, 2])], pad=0, start=1, shape=(8, 8))
    assert work.count(both) == 3 * work.count(one)


def test_the_share_is_work_by_seconds_by_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, heard = iter(range(10_000)), list[dict[str, Any]]()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.5))
    monkeypatch.setattr(machine, "measure_peak", lambda *what: 1e12)
    plan = plan_of(reversals(200), 4)
    settings = dataclasses.replace(BASE, steps=6, log_every=3)
    loop.train(core_of(translator()), plan, settings, report=heard.append)
    steps = [e for e in heard if e["kind"] == "step"]
    done = sum(machine.Speed(core_of(translator())).count(plan.make(key)) for key in plan.order(0)[3:6])
    assert steps[-1]["of_peak"] == pytest.approx(done / 1.5 / 1e12)


def test_a_process_without_work_in_its_window_has_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = list[dict[str, Any]]()
    monkeypatch.setattr(machine.Speed, "count", lambda self, batch: 0.0)
    settings = dataclasses.replace(BASE, steps=1, log_every=1)
    loop.train(core_of(translator()), plan_of(reversals(8), 4), settings, report=heard.append)
    assert [e["of_peak"] for e in heard if e["kind"] == "step"] == [0.0]


def test_a_peak_is_measured_at_first_and_anew_where_a_run_beats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([100.0, 80.0, 300.0])
    monkeypatch.setattr(machine, "measure_peak", lambda *what: next(found))
    speed, at, shares = machine.Speed(core_of(translator())), Progress(), list[float]()
    for rate in (50.0, 60.0, 120.0, 90.0, 130.0):
        speed.operations, at.seconds = rate, at.seconds + 1.0
        shares.append(speed.measure(at)["of_peak"])
    assert shares == [0.5, 0.6, 1.0, 0.75, 130 / 300]


def test_a_peak_is_that_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine.SIDES, "cpu", 64)
    assert 1e6 < machine.measure_peak("cpu", "fp32") < 1e15
