"""Dropout as a function of where one is in training, never of consumed state; cheap on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Drop = Callable[[Tensor, float], Tensor]


def keep(x: Tensor, p: float) -> Tensor:
    """No dropout: the identity."""
    return x


class Dropped(torch.autograd.Function):
    """x * kept * scale, keeping one byte per number for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return x * kept * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (kept,) = ctx.saved_tensors
        return grad * kept * ctx.scale, None, None


def dropper(*key: int, device: torch.device | str = "cpu") -> Drop:
    """Dropout (Srivastava et al. 2014) as a pure function of `key`, such as (seed, epoch, batch, micro-batch).

    Cheap: one random byte a number, eight from each draw; the rate is rounded to 1/256 and scaled exactly for it.
    """
    generator = torch.Generator(device)
    state = 0
    for part in key:
        state = (state * 0x9E3779B97F4A7C15 + part + 1) % (1 << 63)
    generator.manual_seed(state)

    def drop(x: Tensor, p: float) -> Tensor:
        cut = round(p * 256)
        if cut == 0:
            return x
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
        words.random_(-(1 << 63), None, generator=generator)  # the full range: without bounds the top bit is never set
        kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= cut
        return Dropped.apply(x, kept, 256 / (256 - cut))

    return drop
