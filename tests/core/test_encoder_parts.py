"""Windows on both sides, scaled updates, narrow embeddings, a first layer without norm: against the formula by hand."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import zoo
from torch import Tensor

from qkv.core.model import Transformer


def turned(x: Tensor, base: float) -> Tensor:
    """Rotary positions in two halves, pair by pair: [H, T, K]."""
    out, pairs = x.clone(), x.shape[-1] // 2
    for t in range(x.shape[1]):
        for i in range(pairs):
            angle = torch.tensor(t / base ** (2 * i / x.shape[-1]), dtype=torch.float64)
            a, b = x[:, t, i], x[:, t, i + pairs]
            out[:, t, i], out[:, t, i + pairs] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return out


def attended(block: Any, x: Tensor) -> Tensor:
    """Every query over the keys near it on both sides, one by one: [T, D]."""
    s, at = block.spec.attn, block.attn
    q, k, v = (layer(x).unflatten(-1, (s.heads, -1)).transpose(0, 1) for layer in (at.q, at.k, at.v))
    if s.rotary:
        q, k = turned(q, s.rotary.base), turned(k, s.rotary.base)
    out, window = torch.empty_like(q), s.mask.window or len(x)
    for t in range(len(x)):
        near = [j for j in range(len(x)) if abs(j - t) < window]
        score = torch.einsum("hk,hsk->hs", q[:, t], k[:, near]) / s.head_dim**0.5
        out[:, t] = torch.einsum("hs,hsk->hk", score.softmax(-1), v[:, near])
    return at.out(out.transpose(0, 1).flatten(1))


def by_hand(core: Transformer, ids: Tensor) -> Tensor:
    """The logits of one text [T, V], pre-norm."""
    stack: Any = core.encoder
    x = core.embed(ids)
    if stack.spec.positions:
        x = x + stack.positions.weight[: len(ids)]
    x = stack.embed_norm(x)
    if stack.spec.embed_width:
        x = F.linear(x, stack.embed_project.weight, stack.embed_project.bias)
    for number, block in enumerate(stack.layers):
        scale = block.spec.residual_scale
        first_bare = stack.spec.embed_width is not None and number == 0  # as zoo.narrow says
        x = x + scale * attended(block, x if first_bare else block.attn_in(x))
        h, ffn = block.ffn_in(x), block.ffn
        up = F.gelu(ffn.gate(h)) * ffn.up(h) if block.spec.ffn.gated else F.gelu(ffn.up(h))
        x = x + scale * ffn.down(up)
    dense = core.head.dense
    x = dense.norm(F.gelu(F.linear(stack.final_norm(x), dense.linear.weight, dense.linear.bias)))
    return F.linear(x, core.embed.weight, core.head.bias)


def gap(name: str, fault: str = "") -> float:
    """The largest difference of the core's logits to those by hand, in float64, with a mistake in the core or none."""
    core, ids = zoo.made(zoo.ALL[name]()).double(), zoo.words(1, 9)
    with torch.no_grad():
        want = by_hand(core, ids[0])
        block: Any = core.encoder.layers[0 if fault == "norms" else 1]
        if fault == "window":
            for mask in core.encoder.masks:
                object.__setattr__(mask, "window", mask.window and mask.window + 1)
        elif fault == "side":
            for mask in core.encoder.masks:
                object.__setattr__(mask, "kind", "prefix" if mask.window else "full")  # open ahead, shut behind
        elif fault == "scale":
            object.__setattr__(block.spec, "residual_scale", 0.31)
        elif fault == "residual":
            object.__setattr__(block.spec, "residual", "serial")
        elif fault == "norms":
            block.attn_in = core.encoder.layers[1].attn_in
        elif fault == "project":
            core.encoder.embed_project.bias += 0.01
        return float((core(ids).logits[0] - want).abs().max())


@pytest.mark.parametrize("name", ["nearby", "narrow"])
def test_logits_are_those_by_hand(name: str) -> None:
    assert gap(name) <= 1e-6  # the core's angles are fp32


@pytest.mark.parametrize(("name", "fault"), [
    ("nearby", "window"), ("nearby", "side"), ("nearby", "scale"), ("nearby", "residual"), ("narrow", "norms"),
    ("narrow", "project"),
])  # fmt: skip
def test_a_fault_shows(name: str, fault: str) -> None:
    assert gap(name, fault) > 1e-3
