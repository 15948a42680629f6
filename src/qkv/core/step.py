"""What travels beside x through the forward pass, built once per call by `begin`."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor, nn

from qkv import spec
from qkv.core.cache import Cache
from qkv.core.dropout import Drop, keep
from qkv.core.masks import Cells, Seen, seen
from qkv.core.positions import angles

if TYPE_CHECKING:
    from qkv.core.model import Stack

Mode = Literal["train", "prefill", "decode"]
Tap = Callable[[nn.Module, str, Tensor], Tensor]


class Listener(Protocol):
    """Hears the taps of one run; `opens` says that it changes scores or patterns, so the maths must run in the open."""

    opens: bool

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Take note of x, and give back x or what stands in for it."""
        ...


listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def silent(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """Nobody listens: the identity."""
    return x


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller knows of the ids: which are real, whose document, how long a free prefix, and the memory."""

    real: Tensor | None = None  # B T
    documents: Tensor | None = None  # B T
    prefix: Tensor | None = None  # B
    memory: Tensor | None = None  # B S D
    memory_real: Tensor | None = None  # B S


@dataclass(frozen=True, slots=True)
class Step:
    """One argument beside x: at most nine fields, the same for prefill, chunks, decode and training."""

    positions: Tensor  # B T
    angles: dict[spec.Rotary, tuple[Tensor, Tensor]]
    mask: dict[spec.Mask, Seen]
    cache: Cache
    memory: Tensor  # B S D
    mode: Mode
    drop: Drop
    attend: Callable[..., Tensor]
    tap: Tap = field(default=silent)


def begin(
    stack: "Stack", ids: Tensor, given: Given | None = None, *,
    cache: Cache | None = None, mode: Mode = "train", drop: Drop = keep,
) -> Step:  # fmt: skip
    """The step for `ids` [B, T] through `stack`; whoever listens in this context hears its taps."""
    from qkv.core import attention, kernels  # they import Step

    given, cache = given or Given(), cache or Cache()
    (rows, tokens), start = ids.shape, cache.length
    slots = torch.arange(start + tokens, device=ids.device)  # S
    real = cache.see(given.real, rows, tokens)
    positions = slots[None, start:] if real is None else (real.cumsum(1) - 1).clamp_min(0)[:, start:]  # B T
    free = given.prefix
    if free is not None and real is not None:
        free = free + real.int().argmax(1)  # a left-padded row's prefix begins at its first real slot
    at = Cells(slots[start:], slots, real, given.documents, free)
    if given.memory is not None:
        across = Cells(slots[start:], torch.arange(given.memory.shape[1], device=ids.device), given.memory_real)
    else:
        across = at
    ear = listener.get()
    step = Step(
        positions=positions,
        angles={r: angles(positions, r) for r in stack.rotaries},
        mask={m: seen(m, across if m.kind == "memory" else at) for m in stack.masks},
        cache=cache,
        memory=ids if given.memory is None else given.memory,
        mode=mode,
        drop=drop,
        attend=attention.attend if ear and ear.opens else kernels.attend,
        tap=ear.tap if ear else silent,
    )
    begins = getattr(ear, "begins", None)  # a trace also asks what the call is given: its mask, its positions, its mode
    return begins(stack, ids, step) if begins else step
