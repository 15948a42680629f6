"""Who may look at whom, and why not: each rule is a predicate over (query, key) with a reason that people can read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import spec

REASONS = ("seen", "future", "padding", "window", "other document")


@dataclass(frozen=True)
class Cells:
    """The grid of queries and keys of one call: slots, real keys, documents, and where a free prefix ends."""

    query: Tensor  # T
    key: Tensor  # S
    real: Tensor | None = None  # B S
    documents: Tensor | None = None  # B S
    free: Tensor | None = None  # B


class Seen(NamedTuple):
    """What attend() adds to its scores: `bias` [B or 1, 1, T, S], or `causal` for the square triangle, or nothing."""

    bias: Tensor | None
    causal: bool


def blocked(rule: spec.Mask, at: Cells) -> Iterator[tuple[str, Tensor]]:
    """Each reason that hides a key from a query, with the cells that it hides: (reason, bool [B or 1, T, S])."""
    ahead = at.key[None, :] - at.query[:, None]  # T S
    if rule.kind == "causal":
        yield "future", (ahead > 0)[None]
    if rule.kind == "prefix":
        open_until = at.query.new_zeros(1) if at.free is None else at.free
        yield "future", (ahead > 0)[None] & (at.key[None, :] >= open_until[:, None])[:, None, :]
    if at.real is not None:
        yield "padding", ~at.real[:, None, :].expand(-1, len(at.query), -1)
    if rule.window is not None:
        yield "window", (ahead <= -rule.window)[None]
    if at.documents is not None:
        yield "other document", at.documents[:, at.query, None] != at.documents[:, None, :]


def seen(rule: spec.Mask, at: Cells) -> Seen:
    """The mask in the cheapest form that attend() can use; hidden cells get the lowest finite fp32: no row is NaN."""
    queries, keys = len(at.query), len(at.key)
    wide = rule.window is None or rule.window >= keys
    if at.real is None and at.documents is None and wide:
        if rule.kind in ("full", "memory") or (queries == 1 and rule.kind in ("causal", "prefix")):
            return Seen(None, causal=False)
        if rule.kind == "causal" and queries == keys:
            return Seen(None, causal=True)
    hidden = None
    for _, cells in blocked(rule, at):
        hidden = cells if hidden is None else hidden | cells
    if hidden is None:
        return Seen(None, causal=False)
    low = torch.finfo(torch.float32).min
    return Seen(torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, low)[:, None], causal=False)


def reasons(rule: spec.Mask, at: Cells) -> Tensor:
    """Why each cell is dark: uint8 [B or 1, T, S], an index into REASONS, 0 where seen; the first reason wins."""
    why = torch.zeros(1, len(at.query), len(at.key), dtype=torch.uint8, device=at.key.device)
    for reason, cells in blocked(rule, at):
        why = torch.where((why == 0) & cells, torch.tensor(REASONS.index(reason), dtype=torch.uint8), why)
    return why


def lean(at: Seen, toward: Tensor) -> Seen:
    """A mask together with a learned liking for some distances: [1, H, T, S], differentiable in `toward`."""
    bias = toward if at.bias is None else toward + at.bias
    if at.causal:
        low = torch.finfo(torch.float32).min
        bias = bias + torch.full(bias.shape[-2:], low, device=bias.device).triu(1)
    return Seen(bias, causal=False)
