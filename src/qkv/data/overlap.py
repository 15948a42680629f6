"""Rows that repeat, and held-out rows or token ids that are trained on too.

Of each row a hash of 8 bytes is kept; token ids are compared by runs, in little memory.
"""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkv.data.bad_rows import Fault
from qkv.messages import Message

if TYPE_CHECKING:
    from qkv.data.shards import Mixture, Shard

Row = tuple[str, ...]  # one text, or a pair
TELLING = 30  # bytes from which a line of plain text is no phrase that everybody writes
LEAK = 0.1  # the share of such lines, found in training too, from which held-out text is no longer held out
RUN = 64  # ids side by side that make two places the same text
MOST = 1 << 14  # runs asked for, spread evenly over what is held out
CHUNK = 1 << 20  # ids read at a time
BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
TABLE = 22  # bits of a number that say quickly that it is not asked for
PARTS = {"rows": Message("rows"), "source": Message("source"), "target": Message("target"),
         "column 1": Message("column 1"), "column 2": Message("column 2")}


@dataclass(frozen=True)
class Overlap:
    """How many held-out rows (or their sides: `part`) occur in training, of how many, and the first of them."""

    kind: str
    training: str
    held: str
    part: str
    count: int
    of: int
    place: str
    twin: str


@dataclass
class RowHashes:
    """The rows of one file or of files that belong together: a hash of each row and of each of its sides, its line."""

    name: str
    kind: str
    lines: "array[int]" = field(default_factory=lambda: array("Q"))
    whole: "array[int]" = field(default_factory=lambda: array("Q"))
    sides: tuple["array[int]", ...] = ()
    telling: "array[int]" = field(default_factory=lambda: array("b"))  # 1: no short line of plain text

    def add(self, number: int, row: Row) -> None:
        """Remember a row."""
        if not self.sides:
            self.sides = tuple(array("Q") for _ in row) if len(row) > 1 else ()
        self.lines.append(number)
        self.telling.append(len(row) > 1 or sum(len(text.encode("utf-8", "replace")) for text in row) >= TELLING)
        hashes = [hash_text(text) for text in row]
        self.whole.append(hash_text(" ".join(map(str, hashes))) if len(row) > 1 else hashes[0])
        for side, value in zip(self.sides, hashes, strict=False):
            side.append(value)


def hash_text(text: str) -> int:
    """64 bits of a text, without regard to spaces at its ends."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode("utf-8", "replace"), digest_size=8).digest(), "little")


def find_repeats(hashes: RowHashes) -> tuple[int, int, int]:
    """How many rows repeat an earlier one, the line of the first that does, and the line that it repeats."""
    values = np.array(hashes.whole, dtype=np.uint64)
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    again = np.flatnonzero(ranked[1:] == ranked[:-1]) + 1
    if not len(again):
        return 0, 0, 0
    first = int(order[again].min())
    twin = int(np.flatnonzero(values == values[first])[0])
    return len(again), hashes.lines[first], hashes.lines[twin]


def find_overlaps(training: RowHashes, held: RowHashes) -> Iterator[Overlap]:
    """The rows of `held`, whole or by their sides, that occur in `training` too."""
    if len(training.sides) != len(held.sides):
        return
    names = ("source", "target") if training.kind == held.kind == "parallel" else ("column 1", "column 2")
    telling = np.array(held.telling, dtype=bool)
    sides = zip(names, training.sides, held.sides, strict=False)
    for part, a, b in (("rows", training.whole, held.whole), *sides):
        known, asked = np.array(a, dtype=np.uint64), np.array(b, dtype=np.uint64)
        inside = np.isin(asked, known) & telling
        place = twin = ""
        if inside.any():
            first = int(np.flatnonzero(inside)[0])
            place = f"{held.name.split(' + ')[0]}:{held.lines[first]}"
            twin = f"{training.name.split(' + ')[0]}:{training.lines[int(np.flatnonzero(known == asked[first])[0])]}"
        yield Overlap(held.kind, training.name, held.name, part, int(inside.sum()), int(telling.sum()), place, twin)


def judge_overlap(found: Overlap) -> Fault:
    """What an overlap means: whole rows must not be shared; single sides and a few lines of text are worth knowing."""
    share = Message("{count} of {of} held-out", count=found.count, of=found.of)
    if found.part != "rows":
        text = Message("{share} texts ({parts}) occur in training, the first at {twin}", share=share,
                       parts=PARTS[found.part], twin=found.twin)
        return Fault(found.place, text, found.count, broken=False)
    broken = found.kind != "text" or found.count > LEAK * found.of
    text = Message("{share} rows occur in training too, the first at {twin}", share=share, twin=found.twin)
    return Fault(found.place, text, found.count, broken)


def count_familiar(training: "Mixture", held: "Mixture") -> tuple[int, int, str]:
    """(held-out runs of RUN ids that occur in training, how many there are, the place of the first one found).

    One pass over the training ids, a second or two for each hundred million of them.
    """
    asked = sample_runs(held)
    table = np.zeros(1 << TABLE, dtype=bool)
    table[asked >> np.uint64(64 - TABLE)] = True
    seen, place = set[int](), ""
    for shard in training.shards:
        for start, numbers in hash_runs(shard):
            maybe = np.flatnonzero(table[numbers >> np.uint64(64 - TABLE)])
            found = maybe[np.isin(numbers[maybe], asked)]
            if len(found) and not place:
                place = f"{shard.folder}, token {shard.start + start + int(found[0]):,}"
            seen.update(numbers[found].tolist())
    return int(np.isin(asked, np.array(sorted(seen), dtype=np.uint64)).sum()), len(asked), place


def sample_runs(held: "Mixture") -> NDArray[np.uint64]:
    """The numbers of runs side by side, at most MOST of them from all shards."""
    step = max(RUN, len(held) // MOST)
    each = [numbers[-start % step :: step] for shard in held.shards for start, numbers in hash_runs(shard)]
    return np.concatenate(each) if each else np.zeros(0, dtype=np.uint64)


def hash_runs(shard: "Shard") -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """(a place, a number for each place from there on: the polynomial in BASE of its RUN ids), chunk by chunk."""
    up, down = (np.cumprod(np.full(CHUNK + RUN, base, dtype=np.uint64)) for base in (BASE, pow(BASE, -1, 1 << 64)))
    ids = shard.ids
    for start in range(0, len(shard) - RUN + 1, CHUNK):
        some = ids[start : start + CHUNK + RUN - 1].astype(np.uint64) + np.uint64(1)
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(some * up[: len(some)])])
        count = len(some) - RUN + 1
        yield start, (sums[RUN:] - sums[:count]) * down[:count]
