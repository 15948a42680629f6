"""Edits as data: what is changed in a run, where, and how. Weights are never touched; recording.py applies the edits.

A name is a glob over tap names. Positions are slots of the sequence, counted from 0 over prompt and what was written.
Letters: B batch, T queries, S keys, H heads, K head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qkv.arguments import check_arguments, check_fields
from qkv.errors import QkvError

Where = int | Sequence[int] | None


@dataclass(frozen=True, eq=False)
class Edit:
    """One change to what the taps matching `name` carry; None stands for all heads or positions."""

    op: Literal["scale", "put", "add", "hide"]
    name: str
    value: float | Tensor = 0.0
    heads: tuple[int, ...] | None = None
    query: tuple[int, ...] | None = None
    key: tuple[int, ...] | None = None
    cells: Tensor | None = None

    def __post_init__(self) -> None:
        check_fields(self, "edit")

    @property
    def needs_eager_attention(self) -> bool:
        """Whether it changes scores or patterns, which exist only while the maths of attention runs in the open."""
        return self.name.rpartition(".")[2] in ("score", "pattern")


@check_arguments
def scale(name: str, by: float, *, heads: Where = None, pos: Where = None) -> Edit:
    """Multiply what a tap carries by a number."""
    return Edit("scale", name, by, as_indices(heads), as_indices(pos))


@check_arguments
def ablate(name: str, *, heads: Where = None, pos: Where = None) -> Edit:
    """Zero what a tap carries: `ablate("layers.3.attn.z", heads=[5])` silences a head."""
    return put(name, 0.0, heads=heads, pos=pos)


@check_arguments
def put(name: str, value: float | Tensor, *, heads: Where = None, pos: Where = None) -> Edit:
    """Replace what a tap carries by a number, or by a tensor that broadcasts against it."""
    return Edit("put", name, value, as_indices(heads), as_indices(pos))


@check_arguments
def add(name: str, value: float | Tensor, *, heads: Where = None, pos: Where = None) -> Edit:
    """Add a number or a broadcasting tensor to what a tap carries: a steering vector, for one."""
    return Edit("add", name, value, as_indices(heads), as_indices(pos))


@check_arguments
def swap(name: str, other: Tensor, *, pos: int, source: int | None = None) -> Edit:
    """Put what another run (`other` is its `t[name]`) had at position `source` (default: the same) into this one."""
    source = pos if source is None else source
    if other.ndim < 2 or not -other.shape[-2] <= source < other.shape[-2]:
        raise QkvError("swap {name}: found {shape}, which has no position {source}; expected [..., positions, numbers]",
                       name=name, shape=list(other.shape), source=source)
    return put(name, other[..., source : source + 1, :], pos=pos)


@check_arguments
def cut(name: str, *, heads: Where = None, query: Where = None, key: Where = None) -> Edit:
    """Remove edges of an attention such as `encoder.layers.2.attn`: these queries cannot see these keys any more."""
    return Edit("hide", f"{name}.score", 0.0, as_indices(heads), as_indices(query), as_indices(key))


@check_arguments
def hide(name: str, cells: Tensor) -> Edit:
    """As `cut`, for any set of edges and different ones in each row: bool [B or 1, H or 1, T, S], True = removed."""
    return Edit("hide", f"{name}.score", cells=cells)


def as_indices(where: Where) -> tuple[int, ...] | None:
    """One place, some, or None for all."""
    return None if where is None else (where,) if isinstance(where, int) else tuple(where)


def select_region(x: Tensor, edit: Edit, axis: int, start: int) -> Tensor:
    """The part of x that an edit means, bool, broadcasting to x; `start` is the slot of its first position."""
    if edit.heads is not None and x.dim() != 4:
        raise QkvError("edit of {name}: it has no heads (shape {shape}); leave heads out", name=edit.name,
                       shape=list(x.shape))
    chosen = torch.ones([1] * x.dim(), dtype=torch.bool, device=x.device)
    for kind, places, at, first in (("heads", edit.heads, 1, 0), ("query", edit.query, axis, start),
                                    ("key", edit.key, -1, 0)):
        if places is None:
            continue
        size, shape = x.shape[at], [1] * x.dim()
        shape[at] = size
        for place in places:
            if place < 0:
                raise QkvError("edit: position or head {place}; count from 0, not from the end", place=place)
            if kind == "heads" and place >= size:  # a position may come later
                raise QkvError("edit of {strict} are 0 to {size}, found {place}", strict=f"{edit.name}: heads",
                               size=size - 1, place=place)
        met = torch.tensor([first + i in places for i in range(size)], device=x.device)
        chosen = chosen & met.view(shape)
    return chosen


def apply_edit(x: Tensor, edit: Edit, axis: int, start: int) -> tuple[Tensor, bool]:
    """x after an edit, and whether the edit applied to any of it."""
    if edit.op == "hide":
        return hide_edges(x, edit, start)
    chosen = select_region(x, edit, axis, start)
    if not bool(chosen.any()):
        return x, False
    value = torch.as_tensor(edit.value, dtype=x.dtype, device=x.device)
    if value.dim() > x.dim() or any(a not in (1, b) for a, b in zip(value.shape[::-1], x.shape[::-1], strict=False)):
        raise QkvError("edit of {name}: a value of shape {shape} does not broadcast to {wanted}", name=edit.name,
                       shape=list(value.shape), wanted=list(x.shape))
    changed = {"scale": lambda: x * value, "add": lambda: x + value, "put": lambda: value}[edit.op]()
    return torch.where(chosen, changed, x), True


def hide_edges(score: Tensor, edit: Edit, start: int) -> tuple[Tensor, bool]:
    """Scores [B, H, T, S] with the removed edges at the lowest finite number, so that their weight is exactly zero."""
    low = torch.finfo(score.dtype).min
    if edit.cells is not None:
        cells = edit.cells.to(score.device)
        if cells.dtype != torch.bool or cells.dim() != 4 or not {*cells.shape[:2]} <= {1, *score.shape[:2]}:
            raise QkvError("hide {name}: cells of {kind} and shape {shape}, expected bool {shape2}", name=edit.name,
                           kind=str(cells.dtype).removeprefix("torch."), shape=list(cells.shape),
                           shape2=list(score.shape))
        rows = cells.shape[2] == score.shape[2] + start and cells.shape[3] == score.shape[3]
        if start and rows:
            cells = cells[:, :, start:]
        elif cells.shape[2:] != score.shape[2:]:
            raise QkvError("hide {name}: cells of shape {shape} for scores of {shape2}", name=edit.name,
                           shape=list(cells.shape), shape2=list(score.shape))
    else:
        cells = select_region(score, edit, 2, start)
    cells = cells.expand(score.shape)
    # softmax over a row without one visible key would be uniform over all of them, the masked ones too
    dead = (cells | (score <= low / 2)).all(-1) & ~(score <= low / 2).all(-1)
    if bool(dead.any()):
        query = int(dead.nonzero()[0, 2]) + start
        raise QkvError("cut {name}: query {query} would have no key left; leave it at least one",
                       name=edit.name, query=query)
    return score.masked_fill(cells, low), bool(cells.any())
