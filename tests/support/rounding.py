"""Two ways to compute the same thing: equal in float64, and in float32 as near as rounding on this machine lets them.

How far float32 lies from the exact result depends on the processor's vector units and on the order of its sums. So no
bound here is a number: each is measured beside what it bounds, as the distance of one way from its own float64 result.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import Tensor

EXACT = 1e-9  # in float64, of values near 1
ROOM = 4.0  # the largest of some hundred rounding errors varies: at most 2 in twenty draws and three instruction sets


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference between two tensors."""
    return float((a.detach().double() - b.detach().double()).abs().max())


def assert_same(module: Any, one: Callable[[Any], Tensor], other: Callable[[Any], Tensor]) -> None:
    """Hold two ways to compute with a module (a core, a block, a layer) to the same result, in float64 and float32."""
    wide = deepcopy(module).double()
    exact = one(wide)
    assert distance(other(wide), exact) <= EXACT
    found = one(module)
    assert distance(other(module), found) <= ROOM * distance(found, exact)
