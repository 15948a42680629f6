"""An estimate weighs each shape of batch as an epoch has it, meets the largest first, and leaves the core alone."""

import dataclasses
import types
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from qkv.adapt import lora
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Spec, Stack, Table
from qkv.training import checkpoint, control, estimate, loop
from qkv.training import step as stepping
from qkv.training.estimate import Estimate
from qkv.training.plan import Plan
from qkv.training.settings import Settings

SETTINGS = Settings(epochs=3, precision="fp32", threads=1)
WIDTHS = [4] * 6 + [8] * 3 + [16]  # of the batches of an epoch: unequal shapes, unequally often


def core_of() -> Transformer:
    block = Block(Attention(2, 2, 8, Mask("causal"), dropout=0.1), Ffn(32, "gelu"), norm_in=Norm("layer"))
    core = Transformer(Spec(29, decoder=Stack(16, (block,) * 2, Table("sinusoid", 64)), head=Head("untied")))
    initialise(core, 0)
    return core


def plan() -> Plan:
    def make(key: int) -> collate.Batch:
        return collate.collate_windows(torch.full((2, WIDTHS[key] + 1), 3))

    return Plan(lambda epoch: range(len(WIDTHS)), make, {"rows": len(WIDTHS)})


def found(patch: pytest.MonkeyPatch, settings: Settings = SETTINGS, **how: Any) -> tuple[Estimate, list[int]]:
    """An estimate by a clock on which each batch takes as many seconds as it has tokens, and the batches met."""
    core, now, met, true = core_of(), [0.0], list[int](), stepping.step_loss

    def slow(core: Transformer, batch: collate.Batch, **k: Any) -> Any:
        now[0] += batch.tokens
        met.append(batch.target.shape[1])
        return true(core, batch, **k)

    patch.setattr(stepping, "step_loss", slow)
    patch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    before = {n: t.clone() for n, t in checkpoint.weights(core).items()}
    out = estimate.estimate(core, plan(), settings, **how)
    assert all(torch.equal(t, before[n]) for n, t in checkpoint.weights(core).items())
    return out, met


def test_an_estimate_says_what_a_run_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    got, met = found(monkeypatch, rehearse=lambda core: 2.5)
    mean = 2 * sum(WIDTHS) / len(WIDTHS)
    assert (got.steps, got.steps_per_epoch, got.evaluations, got.evaluation_seconds) == (30, 10, 3, 7.5)
    assert (got.seconds_per_step, got.seconds, got.tokens_per_second) == pytest.approx((mean, 30 * mean, 1.0))
    assert met[:3] == [16, 4, 8]  # the largest first, then by how many there are
    assert met[-1] == 16
    assert got.parameters == got.trained_parameters == sum(p.numel() for p in core_of().parameters())


def test_shapes_that_count_alike_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    true = estimate.find_shapes
    monkeypatch.setattr(estimate, "find_shapes", lambda keys, plan: [(key, 1) for key, _ in true(keys, plan)])
    got, _ = found(monkeypatch)
    assert got.seconds_per_step != pytest.approx(2 * sum(WIDTHS) / len(WIDTHS), rel=0.1)


def test_accumulation_costs_its_micro_batches_and_seconds_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    got, _ = found(monkeypatch, dataclasses.replace(SETTINGS, accumulate=2, epochs=0, seconds=150.0))
    assert got.seconds_per_step == pytest.approx(2 * 2 * sum(WIDTHS) / len(WIDTHS))
    assert (got.steps, got.steps_per_epoch) == (6, 5)


def test_a_run_that_would_go_back_to_checkpoints_can_be_estimated() -> None:
    settings = dataclasses.replace(SETTINGS, on_bad_step="rewind", spike=3.0)
    assert estimate.estimate(core_of(), plan(), settings).steps == 30


def test_what_the_run_would_skip_as_a_spike_ends_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    true, spiked = control.find_fault, list[float]()

    def fault(*given: Any, spike: float) -> str:
        spiked.append(spike)
        return true(*given, spike=spike)

    monkeypatch.setattr(loop, "find_fault", fault)
    estimate.estimate(core_of(), plan(), dataclasses.replace(SETTINGS, on_bad_step="skip", spike=3.0))
    assert set(spiked) == {0.0}


def test_adapters_cost_what_adapters_cost() -> None:
    core = core_of()
    lora.attach(core, lora.Lora(rank=2, targets=("*.attn.*",)), seed=0)
    got = estimate.estimate(core, plan(), SETTINGS)
    assert 0 < got.trained_parameters < got.parameters / 4


def test_the_peak_is_the_highest_that_the_process_had_less_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    core, heights = core_of(), iter([10**9, 3 * 10**9])
    monkeypatch.setattr(estimate, "peak_memory", lambda core: next(heights))
    own = sum(t.nbytes for t in (*core.parameters(), *core.buffers()))
    assert estimate.estimate(core, plan(), SETTINGS).peak_bytes == 3 * 10**9 - own


def test_a_long_epoch_is_looked_at_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def make(key: int) -> collate.Batch:
        seen.append(key)
        return collate.collate_windows(torch.full((1, 4 + key % 3), 1))

    keys: Sequence[int] = range(10 * estimate.LOOKED + 1)
    counts = estimate.find_shapes(keys, Plan(lambda epoch: keys, make))
    assert len(seen) <= estimate.LOOKED
    assert seen[-1] > 9 * estimate.LOOKED
    assert sum(count for _, count in counts) == len(seen)
