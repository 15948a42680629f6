"""Which keys a query may attend to: each rule is a predicate over (query, key) with a reason in words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import spec

REASONS = ("seen", "future", "padding", "window", "other document")


@dataclass(frozen=True)
class MaskContext:
    """What a mask depends on in one call: positions of queries and keys, padding, documents, the end of the prefix."""

    q_pos: Tensor  # T
    k_pos: Tensor  # S
    padding_mask: Tensor | None = None  # B S
    document_ids: Tensor | None = None  # B S
    prefix_end: Tensor | None = None  # B


class AttentionBias(NamedTuple):
    """What attend() adds to its scores: `bias` [B or 1, H or 1, T, S], the square triangle (`causal`), or nothing."""

    bias: Tensor | None
    causal: bool


def find_blocked(rule: spec.Mask, at: MaskContext) -> Iterator[tuple[str, Tensor]]:
    """Each reason that hides a key from a query, with the cells that it hides: (reason, bool [B or 1, T, S])."""
    ahead = at.k_pos[None, :] - at.q_pos[:, None]  # T S
    if rule.kind == "causal":
        yield "future", (ahead > 0)[None]
    if rule.kind == "prefix":
        prefix_end = at.q_pos.new_zeros(1) if at.prefix_end is None else at.prefix_end
        yield "future", (ahead > 0)[None] & (at.k_pos[None, :] >= prefix_end[:, None])[:, None, :]
    if at.padding_mask is not None:
        yield "padding", ~at.padding_mask[:, None, :].expand(-1, at.q_pos.shape[0], -1)
    if rule.window is not None:
        far = ahead.abs() if rule.kind == "full" else -ahead
        yield "window", (far >= rule.window)[None]
    if at.document_ids is not None:
        yield "other document", at.document_ids[:, at.q_pos, None] != at.document_ids[:, None, :]


def build_mask(rule: spec.Mask, at: MaskContext) -> AttentionBias:
    """The mask in the cheapest form that attend() can use; masked cells get the lowest finite fp32: no row is NaN."""
    if rule.alibi_heads:
        return add_position_bias(build_mask(spec.Mask(rule.kind, rule.window), at), compute_alibi(rule.alibi_heads, at))
    queries, keys = at.q_pos.shape[0], at.k_pos.shape[0]
    wide = rule.window is None or rule.window >= keys
    if at.padding_mask is None and at.document_ids is None and wide:
        if rule.kind in ("full", "memory") or (queries == 1 and rule.kind in ("causal", "prefix")):
            return AttentionBias(None, causal=False)
        if rule.kind == "causal" and queries == keys:
            return AttentionBias(None, causal=True)
    hidden = None
    for _, cells in find_blocked(rule, at):
        hidden = cells if hidden is None else hidden | cells
    if hidden is None:
        return AttentionBias(None, causal=False)
    low = torch.finfo(torch.float32).min
    bias = torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, low)
    return AttentionBias(bias[:, None], causal=False)


def compute_alibi(heads: int, at: MaskContext) -> Tensor:
    """ALiBi's bias [1, H, T, S] (Press et al. 2022, section 3): -2^(-8i/H) a token; for H no power of 2 as its code."""
    n, i = 2 ** int(math.log2(heads)), torch.arange(1, heads + 1, device=at.k_pos.device)  # H
    slope = 2.0 ** -torch.where(i <= n, 8 * i / n, 4 * (2 * (i - n) - 1) / n)  # H
    return -slope[None, :, None, None] * (at.k_pos[None, :] - at.q_pos[:, None]).abs()  # B H T S


def add_position_bias(mask: AttentionBias, bias: Tensor) -> AttentionBias:
    """The mask plus a position bias [1, H, T, S], through which gradients flow."""
    bias = bias if mask.bias is None else bias + mask.bias
    if mask.causal:
        low = torch.finfo(torch.float32).min
        bias = bias + torch.full(bias.shape[-2:], low, device=bias.device).triu(1)
    return AttentionBias(bias, causal=False)
