"""Chance without state: every draw is a function of (seed, epoch, index), so that a resumed run repeats itself."""

import numpy as np
from numpy.typing import NDArray

MASK = 2**64 - 1


def make_generator(*, seed: int, epoch: int, index: int = 0) -> np.random.Generator:
    """The generator of draw `index` in `epoch` (Philox, Salmon et al. 2011: a counter and a key, no history)."""
    key = np.array([seed & MASK, epoch & MASK], dtype=np.uint64)
    counter = np.array([0, 0, 0, index & MASK], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def draw_permutation(n: int, *, seed: int, epoch: int, index: int = 0) -> NDArray[np.int64]:
    """The numbers 0 … n-1 in the order of this epoch."""
    return make_generator(seed=seed, epoch=epoch, index=index).permutation(n)


def draw_repeats(often: NDArray[np.float64], *, seed: int, epoch: int) -> NDArray[np.int64]:
    """How many times each thing comes in this epoch, `often` on average: its whole part, and once more by chance."""
    chances = make_generator(seed=seed, epoch=epoch, index=-1).random(len(often))
    return np.floor(often + chances).astype(np.int64)
