"""Faster ways to do what attention.attend does: a table of kernels, each with the predicate under which it may run.

No caller asks which one runs. tests/core/test_kernels.py holds every row to the open maths, for every mask.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from qkv.core.attention import Attention
from qkv.core.attention import attend as open_attend
from qkv.core.masks import Seen
from qkv.core.step import Step


class Kernel(NamedTuple):
    """A faster attend(): its name, when it may stand in, and itself."""

    name: str
    fits: Callable[[Tensor, Attention, Step], bool]
    run: Callable[[Tensor, Tensor, Tensor, Seen, Attention, Step], Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor, seen: Seen, at: Attention, step: Step) -> Tensor:
    """PyTorch's fused attention: never writes the [T, S] scores to memory, reads shared key/value heads in place."""
    bias = None if seen.bias is None else seen.bias.to(q.dtype)
    return F.scaled_dot_product_attention(
        q, k, v, bias, is_causal=seen.causal, scale=at.scale, enable_gqa=at.spec.groups < at.spec.heads
    )


def undropped(q: Tensor, at: Attention, step: Step) -> bool:
    """The fused kernel draws no dropout of ours, so it runs where the pattern is not dropped."""
    return at.spec.dropout == 0.0 or step.mode != "train"


TABLE: tuple[Kernel, ...] = (Kernel("sdpa", undropped, sdpa),)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Seen, at: Attention, step: Step) -> Tensor:
    """The first kernel of the table that fits, else the maths in the open."""
    for kernel in TABLE:
        if kernel.fits(q, at, step):
            return kernel.run(q, k, v, seen, at, step)
    return open_attend(q, k, v, seen, at, step)
