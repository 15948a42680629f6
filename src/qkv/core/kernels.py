"""Faster ways to do what attention.attend does: a table of kernels, each with the predicate under which it may run.

No caller asks which one runs. tests/core/test_kernels.py holds every row to the open maths, for every mask.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.attention import Attention
from qkv.core.attention import attend as open_attend
from qkv.core.dropout import keep
from qkv.core.masks import Seen
from qkv.core.step import Step


class Kernel(NamedTuple):
    """A faster attend(): its name, when it may stand in, and itself."""

    name: str
    fits: Callable[[Tensor, Tensor, Attention, Step], bool]
    run: Callable[[Tensor, Tensor, Tensor, Seen, Attention, Step], Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor, seen: Seen, at: Attention, step: Step) -> Tensor:
    """PyTorch's fused attention: never writes the [T, S] scores to memory, reads shared key/value heads in place."""
    bias = None if seen.bias is None else seen.bias.to(q.dtype).clamp_min(torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(
        q, k, v, bias, is_causal=seen.causal, scale=at.scale, enable_gqa=at.spec.groups < at.spec.heads
    )


def undropped(q: Tensor, k: Tensor, at: Attention, step: Step) -> bool:
    """The fused kernel draws no dropout of ours, so it runs where the pattern is not dropped."""
    return at.spec.dropout == 0.0 or step.drop is keep


def short(q: Tensor, k: Tensor, v: Tensor, seen: Seen, at: Attention, step: Step) -> Tensor:
    """Two batched products round a softmax in q's own precision: for short rows the way back is far faster."""
    if at.spec.groups < at.spec.heads:
        k = k.repeat_interleave(at.spec.heads // at.spec.groups, 1)
        v = v.repeat_interleave(at.spec.heads // at.spec.groups, 1)
    score = (q * at.scale) @ k.mT
    if seen.bias is not None:
        score = score + seen.bias.to(q.dtype).clamp_min(torch.finfo(q.dtype).min)  # not -inf: no row is NaN
    if seen.causal:
        low = torch.finfo(q.dtype).min
        score = score + torch.full(score.shape[-2:], low, dtype=q.dtype, device=q.device).triu(1)
    return step.drop(score.softmax(-1), at.spec.dropout) @ v


def brief(q: Tensor, k: Tensor, at: Attention, step: Step) -> bool:
    """Rows short enough on a CPU that must remember its way back (bench/attention_training.py has the crossing)."""
    return q.requires_grad and q.device.type == "cpu" and k.shape[2] <= 256


TABLE: tuple[Kernel, ...] = (Kernel("short", brief, short), Kernel("sdpa", undropped, sdpa))


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Seen, at: Attention, step: Step) -> Tensor:
    """The first kernel of the table that fits, else the maths in the open."""
    for kernel in TABLE:
        if kernel.fits(q, k, at, step):
            return kernel.run(q, k, v, seen, at, step)
    return open_attend(q, k, v, seen, at, step)
