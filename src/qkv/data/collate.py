"""From lists of ids to the tensors of one training step; padding is on the right."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import QkvError

IGNORED = -100  # a label without loss, as cross_entropy has it


@dataclass(frozen=True)
class Batch:
    """One step's tensors: `target` [B, T] goes in, `labels` [B, T] should come out (-100: no loss).

    `source` [B, S] is the encoder's; `source_real`, `target_real` are True where a token is real, None when all are;
    `documents` [B, T] numbers packed documents; `tokens` counts the labels with a loss.
    """

    target: Tensor
    labels: Tensor
    source: Tensor | None = None
    source_real: Tensor | None = None
    target_real: Tensor | None = None
    documents: Tensor | None = None
    tokens: int = 0


def padded(rows: Sequence[Sequence[int]], fill: int, *, width: int | None = None, multiple: int = 1) -> Tensor:
    """Rows of ids filled up on the right to `width`, else to the longest, rounded up to `multiple`: -> [B, T] int64."""
    longest = max(len(row) for row in rows)
    if width is not None and longest > width:
        raise QkvError(f"a row of {longest} ids does not fit in the batch's width of {width}")
    wide = width if width is not None else -(-longest // multiple) * multiple
    return torch.tensor([[*row, *[fill] * (wide - len(row))] for row in rows], dtype=torch.long)


def real(rows: Sequence[Sequence[int]], width: int) -> Tensor | None:
    """[B, T], True where a row has a token; None when every row is full."""
    lengths = torch.tensor([len(row) for row in rows])
    return None if bool((lengths == width).all()) else torch.arange(width) < lengths[:, None]


def seq2seq(
    pairs_ids: Sequence[tuple[list[int], list[int]]], *, pad: int, start: int, multiple: int = 1,
    shape: tuple[int, int] | None = None,
) -> Batch:  # fmt: skip
    """Pairs for teacher forcing: the decoder reads `start` and the target but for its last id, and answers the target.

    Target ids end with the end symbol. `shape` is the (S, T) of `Buckets.shape`; without it the longest pair decides.

    Raises:
        QkvError: a pair with an empty side, or one longer than `shape`.
    """
    for i, (source, target) in enumerate(pairs_ids):
        if not source or not target:
            raise QkvError(
                f"pair {i} of the batch has an empty {'target' if source else 'source'}: even that needs its end symbol"
            )
    sources, targets = [s for s, _ in pairs_ids], [t for _, t in pairs_ids]
    wide, long = shape or (None, None)
    source = padded(sources, pad, width=wide, multiple=multiple)
    labels = padded(targets, IGNORED, width=long, multiple=multiple)
    target = padded([[start, *t[:-1]] for t in targets], pad, width=labels.shape[1])
    return Batch(
        target, labels, source, real(sources, source.shape[1]), real(targets, labels.shape[1]),
        tokens=sum(map(len, targets)),
    )  # fmt: skip


def causal(windows: Tensor) -> Batch:
    """Windows [B, T + 1] of one text: each id answers the one before it."""
    labels = windows[:, 1:].contiguous()
    return Batch(windows[:, :-1].contiguous(), labels, tokens=labels.numel())


def packed(ids: Tensor, documents: Tensor) -> Batch:
    """Rows [B, T + 1] of packed documents (numbers, -1 for padding): no label crosses from one document to the next."""
    own = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)  # B T
    labels = ids[:, 1:].masked_fill(~own, IGNORED)
    numbers = documents[:, :-1].contiguous()
    there = numbers >= 0
    return Batch(
        ids[:, :-1].contiguous(), labels, target_real=None if bool(there.all()) else there, documents=numbers,
        tokens=int(own.sum()),
    )  # fmt: skip
