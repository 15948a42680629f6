"""Biases that even experts out without a loss: moved by whole steps, however these are split, and kept with the run."""

import dataclasses
from pathlib import Path

import pytest
import torch

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Experts, Ffn, Head, Mask, Norm, Rotary, Spec, Stack
from qkv.training import checkpoint, load_balancing, loop
from qkv.training import step as stepping
from qkv.training.plan import Plan
from qkv.training.settings import Settings

V = 31
BASE = Settings(steps=6, lr=3e-3, schedule="constant", precision="fp32", threads=1, moe_aux_loss=0.0, moe_bias_lr=1e-2)


def core_of(seed: int = 0) -> Transformer:
    """In fp64, so that splitting a step routes no token elsewhere; the first layer is dense."""
    attn, norm = Attention(2, 2, 8, Mask("causal"), rotary=Rotary(8)), Norm("rms", 1e-6)
    ffn = Ffn(16, "silu", gated=True)
    moe = Experts(6, 2, ffn, score="sigmoid", balance="bias")
    blocks = (Block(attn, ffn, norm_in=norm), *(Block(attn, None, moe=moe, norm_in=norm),) * 2)
    core = Transformer(Spec(V, decoder=Stack(16, blocks, final_norm=norm), head=Head("untied")))
    initialise(core, seed)
    core = core.double()
    with torch.no_grad():
        for layer in core.decoder.layers[1:]:  # type: ignore[union-attr]
            layer.moe.router.weight *= 20
            layer.moe.router.weight[0] += 0.5  # a router with a favourite
    return core


def plan(rows: int) -> Plan:
    ids = torch.randint(0, V, (32, 9), generator=torch.Generator().manual_seed(3))
    keys = [tuple(range(i, i + rows)) for i in range(0, 32, rows)]
    return Plan(lambda epoch: keys, lambda key: collate.collate_windows(ids[list(key)]), {})


def biases(core: Transformer) -> torch.Tensor:
    return torch.stack([b.clone() for b in core.buffers()])


def run(core: Transformer, split: int, **how: object) -> list[torch.Tensor]:
    """The biases after each step with 8 rows a step in `split` micro-batches."""
    found: list[torch.Tensor] = []

    def look(step: int) -> bool:
        found.append(biases(core))
        return False

    settings = dataclasses.replace(BASE, accumulate=split, **how)  # type: ignore[arg-type]
    loop.train(core, plan(8 // split), settings, stop=look)
    return found


def test_each_step_moves_each_bias_by_its_rate_against_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[torch.Tensor] = []
    right = load_balancing.move_router_biases

    def steer(core: Transformer, loads: torch.Tensor, *, rate: float) -> None:
        heard.append(loads.clone())
        right(core, loads, rate=rate)

    monkeypatch.setattr(stepping, "move_router_biases", steer)
    found = run(core_of(), 2)
    before = torch.zeros_like(found[0])
    for after, loads in zip(found, heard, strict=False):  # nobody looks after the last step
        assert loads.sum(-1).tolist() == [2 * 8 * 8] * 2, "each of 64 tokens chose two experts in each layer"
        want = before + 1e-2 * torch.sign(loads.mean(-1, keepdim=True) - loads)
        assert torch.allclose(after, want.to(after), atol=1e-9)
        before = after


def test_however_a_step_is_split_the_biases_move_alike() -> None:
    one, four, eight = (run(core_of(), split)[-1] for split in (1, 4, 8))
    assert torch.equal(one, four)
    assert torch.equal(one, eight)
    assert float(one.abs().max()) > 0


def test_loads_of_the_last_micro_batch_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stepping.step_loss
    count = iter(range(10_000))

    def last(*given: object, **how: object) -> tuple[torch.Tensor, torch.Tensor | None]:
        total, loads = right(*given, **how)  # type: ignore[arg-type]
        return total, loads if next(count) % 4 == 3 else None

    whole = run(core_of(), 1)[-1]
    monkeypatch.setattr(stepping, "step_loss", last)
    assert not torch.equal(whole, run(core_of(), 4)[-1])


def test_a_favourite_expert_is_evened_out() -> None:
    core, heard = core_of(), list[dict]()
    ids = torch.randint(0, V, (32, 9), generator=torch.Generator().manual_seed(3))
    still = Plan(lambda epoch: [0], lambda key: collate.collate_windows(ids), {})
    settings = dataclasses.replace(BASE, steps=150, lr=1e-9, log_every=1)
    loop.train(core, still, settings, report=heard.append)
    busy = [e["busiest"] for e in heard if e["kind"] == "step"]
    assert busy[0] > 1.5
    assert busy[-1] < 1.35


def test_biases_are_in_the_checkpoint_and_go_on_bit_for_bit(tmp_path: Path) -> None:
    whole, first, again = core_of(), core_of(), core_of(9)
    loop.train(whole, plan(4), BASE, directory=tmp_path / "a")
    loop.train(first, plan(4), BASE, directory=tmp_path / "b", stop=lambda step: step == 3)
    loop.train(again, plan(4), BASE, directory=tmp_path / "b", resume=True)
    assert torch.equal(biases(whole), biases(again))
    assert not torch.equal(biases(whole), biases(first))
    stored = checkpoint.read(tmp_path / "a/train/last.safetensors")[0]
    assert {n for n in stored if n.endswith("moe.bias")} == {f"weight:decoder.layers.{i}.moe.bias" for i in (1, 2)}


def test_a_checkpoint_without_the_biases_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = lambda core: {n: p.detach() for n, p in core.named_parameters()}  # noqa: E731
    monkeypatch.setattr(checkpoint, "weights", own)
    with pytest.raises((AssertionError, QkvError)):
        test_biases_are_in_the_checkpoint_and_go_on_bit_for_bit(tmp_path)
