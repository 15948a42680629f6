"""Whether held-out token ids also occur in training, found by runs of ids in little memory."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from qkv.data.shards import Mixture, Shard

RUN = 64  # ids side by side that make two places the same text
MOST = 1 << 14  # runs asked for, spread evenly over what is held out
CHUNK = 1 << 20  # ids read at a time
BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
TABLE = 22  # bits of a number that say quickly that it is not asked for


def count_familiar(training: Mixture, held: Mixture) -> tuple[int, int, str]:
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


def sample_runs(held: Mixture) -> NDArray[np.uint64]:
    """The numbers of runs side by side, at most MOST of them from all shards."""
    step = max(RUN, len(held) // MOST)
    each = [numbers[-start % step :: step] for shard in held.shards for start, numbers in hash_runs(shard)]
    return np.concatenate(each) if each else np.zeros(0, dtype=np.uint64)


def hash_runs(shard: Shard) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """(a place, a number for each place from there on: the polynomial in BASE of its RUN ids), chunk by chunk."""
    up, down = (np.cumprod(np.full(CHUNK + RUN, base, dtype=np.uint64)) for base in (BASE, pow(BASE, -1, 1 << 64)))
    ids = shard.ids
    for start in range(0, len(shard) - RUN + 1, CHUNK):
        some = ids[start : start + CHUNK + RUN - 1].astype(np.uint64) + np.uint64(1)
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(some * up[: len(some)])])
        count = len(some) - RUN + 1
        yield start, (sums[RUN:] - sums[:count]) * down[:count]
