"""Batches of pairs of like length, in few shapes: little padding, and a compiled step is compiled a few times only.

Lengths are rounded into cells (S, T); cells are merged, cheapest first, until few buckets are left; each bucket has
one number of rows, and one smaller last batch. Batch k of epoch e is a function of (seed, e, k).
With `often` a pair comes more than once in an epoch, or in some epochs alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from qkv.data.order import draw_permutation, draw_repeats
from qkv.errors import QkvError

CELLS = 512  # above so many cells, merging would take seconds: the cells are made coarser first
ROWS = 8  # full batches have a multiple of this many rows, as matrix units like it


@dataclass(frozen=True)
class Batches(Sequence[tuple[int, ...]]):
    """The batches of an epoch, each cut when it is asked for: a number takes a fifth of the memory of Python's own."""

    mixed: list[NDArray[np.int64]]  # the items of each bucket, in the order of the epoch
    rows: list[int]  # of each bucket's batches
    bucket: NDArray[np.int64]  # of each batch
    start: NDArray[np.int64]  # of each batch among the items of its bucket

    def __len__(self) -> int:
        return len(self.bucket)

    @overload
    def __getitem__(self, at: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        if isinstance(at, slice):
            return [self[i] for i in range(len(self))[at]]
        number, start = int(self.bucket[at]), int(self.start[at])
        return tuple(self.mixed[number][start : start + self.rows[number]].tolist())


class Buckets:
    """The batches over pairs of `lengths` (source, target): `rows * max(S, T) <= tokens` in each.

    Sides are rounded up to `multiple`, rows down to a multiple of 8 where there are so many; at most `shapes` distinct
    (rows, S, T) occur. Pairs with a side over `longest` are left out and counted in `dropped`. `often` says how many
    times each pair comes in an epoch on average, and then the last batch of a bucket has any number of rows.

    Raises:
        QkvError: no pairs, or a pair that fits in no batch.
    """

    def __init__(
        self, lengths: Sequence[tuple[int, int]] | NDArray[np.int64], *, tokens: int, multiple: int = 4,
        shapes: int = 24, longest: int | None = None, seed: int = 0, often: NDArray[np.float64] | None = None,
    ) -> None:
        sides = np.asarray(lengths).reshape(-1, 2)
        kept = np.arange(len(sides)) if longest is None else np.flatnonzero(sides.max(1) <= longest)
        self.seed, self.often, self.dropped = seed, often, len(sides) - len(kept)
        if not len(kept):
            raise QkvError("no pairs to batch: {sides} given, {dropped} longer than {longest} tokens; raise "
                           "model.context", sides=len(sides), dropped=self.dropped, longest=longest)
        cells = sides[kept].astype(np.int32)  # N 2
        cells += (multiple - 1) - (np.maximum(cells, 1, out=cells) - 1) % multiple
        worst = int(cells.max(1).argmax())
        if cells[worst].max() > tokens:
            s, t = sides[kept[worst]]
            raise QkvError("pair {kept} has {s} and {t} tokens (rounded up to {multiple}s), more than a batch's "
                           "{tokens}: raise tokens, or leave long pairs out with longest=", kept=kept[worst], s=s, t=t,
                           multiple=multiple, tokens=tokens)
        self._sides: list[tuple[int, int]] = []
        self._items: list[NDArray[np.int64]] = []
        self._rows: list[int] = []
        self._bucket = np.full(len(sides), -1, dtype=np.int16)  # as many as `shapes` at most
        for box, members in choose_boxes(cells, shapes // 2):
            rows = tokens // max(box)
            self._rows.append(rows - rows % ROWS if rows >= ROWS else rows)
            self._bucket[kept[members]] = len(self._sides)
            self._sides.append(box)
            self._items.append(kept[members])
        self._lengths = sides

    def batches(self, epoch: int) -> Sequence[tuple[int, ...]]:
        """The batches of an epoch: each a tuple of indices into `lengths`, every kept pair once, or as `often` says."""
        times = None if self.often is None else draw_repeats(self.often, seed=self.seed, epoch=epoch)
        mixed, starts = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
        for number, (items, rows) in enumerate(zip(self._items, self._rows, strict=True), 1):
            own = items if times is None else np.repeat(items, times[items])
            mixed.append(own[draw_permutation(len(own), seed=self.seed, epoch=epoch, index=number)])
            starts.append(np.arange(0, len(own), rows))
        bucket = np.repeat(np.arange(len(starts)), [len(part) for part in starts])
        order = draw_permutation(len(bucket), seed=self.seed, epoch=epoch)
        return Batches(mixed, self._rows, bucket[order], np.concatenate(starts)[order])

    def shape(self, indices: Sequence[int]) -> tuple[int, int, int]:
        """Rows, S and T of a batch: pad to these, and only the known shapes occur."""
        return len(indices), *self._sides[int(self._bucket[indices[0]])]

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Every (rows, S, T) that an epoch holds; with `often` the last batch of a bucket may have other rows."""
        found = set[tuple[int, int, int]]()
        for items, rows, box in zip(self._items, self._rows, self._sides, strict=True):
            found |= {(n, *box) for n in (min(rows, len(items)), len(items) % rows) if n}
        return sorted(found)

    @property
    def real(self) -> float:
        """The share of real tokens among all that an epoch computes, source and target."""
        padded = sum(len(items) * sum(box) for items, box in zip(self._items, self._sides, strict=True))
        return float(sum(self._lengths[items].sum() for items in self._items) / padded)


def choose_boxes(cells: NDArray[np.integer], most: int) -> list[tuple[tuple[int, int], NDArray[np.int64]]]:
    """At most `most` boxes (S, T), each with the items of `cells` [N 2] in it: greedy merging, then the best box."""
    wide = int(cells.max()) + 1  # a cell is one number here, as sorting pairs takes several times the memory
    keys = cells[:, 0].astype(np.int64) * wide + cells[:, 1]
    numbers = np.unique(keys)
    where = np.searchsorted(numbers, keys)
    each = np.bincount(where)
    kinds = np.stack(np.divmod(numbers, wide), 1)
    boxes, counts, grain = kinds.copy(), each, 1
    while len(boxes) > CELLS:
        grain *= 2
        coarse = np.minimum(-(-kinds // grain) * grain, kinds.max(0))
        boxes, group = np.unique(coarse, axis=0, return_inverse=True)
        counts = np.bincount(group.ravel(), each).astype(np.int64)
    while len(boxes) > max(most, 1):
        joined = np.maximum(boxes[:, None], boxes[None])  # C C 2
        own = counts * boxes.sum(1)
        added = joined.sum(2) * (counts[:, None] + counts[None]) - own[:, None] - own[None]
        np.fill_diagonal(added, np.iinfo(np.int64).max)
        a, b = (int(i) for i in np.unravel_index(added.argmin(), added.shape))
        counts[a] += counts[b]
        boxes[a] = joined[a, b]
        boxes, counts = np.delete(boxes, b, 0), np.delete(counts, b)
    holds = (kinds[:, None] <= boxes[None]).all(2)  # kinds boxes
    best = np.where(holds, boxes.sum(1), np.iinfo(np.int64).max).argmin(1)
    found = [(box, np.flatnonzero(best[where] == i)) for i, box in enumerate(boxes.tolist())]
    return [((box[0], box[1]), items) for box, items in found if len(items)]
