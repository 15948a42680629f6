"""Dropout whose random numbers depend on a key (the place in training), not on earlier draws; cheap on a CPU."""

import random
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

Drop = Callable[[Tensor, float], Tensor]


def no_dropout(x: Tensor, p: float) -> Tensor:
    """No dropout: the identity."""
    return x


class DropoutFunction(torch.autograd.Function):
    """x * kept * scale, saving one byte per number for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return x * kept * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (kept,) = ctx.saved_tensors
        return grad * kept * ctx.scale, None, None


class StatefulDropout(Protocol):
    """Dropout whose random state can be saved, so that a block can be recomputed with the same numbers."""

    def __call__(self, x: Tensor, p: float, /) -> Tensor: ...

    def get_state(self) -> Tensor:
        """The random state."""
        ...

    def set_state(self, to: Tensor) -> None:
        """Continue from that random state."""
        ...


class ByteDropout:
    """One random byte per number, eight from each draw of a generator: the cheapest way on a CPU."""

    def __init__(self, state: int, device: torch.device | str) -> None:
        self.generator = torch.Generator(device).manual_seed(state)

    def __call__(self, x: Tensor, p: float) -> Tensor:
        cut = round(p * 256)
        if cut == 0:
            return x
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
        words.random_(-(1 << 63), None, generator=self.generator)  # without bounds the top bit is never set
        kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= cut
        return DropoutFunction.apply(x, kept, 256 / (256 - cut))  # type: ignore[no-any-return]

    def get_state(self) -> Tensor:
        return self.generator.get_state()

    def set_state(self, to: Tensor) -> None:
        self.generator.set_state(to)


class CounterDropout:
    """One byte of a hashed counter (splitmix64: Steele et al. 2014) per number, by tensor operations only.

    A compiler fuses them with their neighbours, and a GPU never waits for a generator.
    """

    def __init__(self, state: int, device: torch.device | str) -> None:
        start = random.Random(state).getrandbits(63)  # neighbouring steps must not overlap
        self.counter = torch.tensor(start, dtype=torch.int64, device=device)

    def __call__(self, x: Tensor, p: float) -> Tensor:
        cut = round(p * 256)
        if cut == 0:
            return x
        self.counter.add_(0x1E3779B97F4A7C15)  # the next call's numbers are far away
        h = torch.arange(x.numel(), device=x.device) + self.counter
        h = (h ^ (h >> 30)) * -0x40A7B892E31B1A47
        h = (h ^ (h >> 27)) * -0x6B2FB644ECCEEE15
        kept = ((h >> 32) & 255).view(x.shape) >= cut
        return DropoutFunction.apply(x, kept, 256 / (256 - cut))  # type: ignore[no-any-return]

    def get_state(self) -> Tensor:
        return self.counter.clone()

    def set_state(self, to: Tensor) -> None:
        self.counter.copy_(to)


def make_dropout(*key: int, device: torch.device | str = "cpu", traceable: bool = False) -> StatefulDropout:
    """Dropout (Srivastava et al. 2014) as a pure function of `key`, such as (seed, epoch, batch, micro-batch).

    The rate is rounded to 1/256 and scaled exactly for it. Off the CPU, and where `traceable`, it hashes a counter.
    """
    state = 0
    for part in key:
        state = (state * 0x9E3779B97F4A7C15 + part + 1) % (1 << 63)
    hashed = traceable or torch.device(device).type != "cpu"
    return (CounterDropout if hashed else ByteDropout)(state, device)
