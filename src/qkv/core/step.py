"""What travels beside x through the forward pass, built once per call by `begin`."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor, nn

from qkv import spec
from qkv.core.cache import Cache
from qkv.core.dropout import Drop, keep
from qkv.core.masks import Cells, Seen, lean, seen
from qkv.core.positions import Place, angles, placed, since

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
    """What the caller knows of the ids: which are real, whose document, which segment, and the memory.

    `prefix` counts the real tokens of a free prefix; `blank` is the place in it that the tokens after it fill, or each
    token's own place (-1: none). Positions begin anew with each document.
    """

    real: Tensor | None = None  # B T
    documents: Tensor | None = None  # B T
    segments: Tensor | None = None  # B T
    prefix: Tensor | None = None  # B
    blank: Tensor | None = None  # B, or B T
    memory: Tensor | None = None  # B S D
    memory_real: Tensor | None = None  # B S


@dataclass(frozen=True, slots=True)
class Step:
    """One argument beside x: at most nine fields, the same for prefill, chunks, decode and training."""

    place: Place
    angles: dict[spec.Rotary, tuple[Tensor, Tensor]]
    mask: dict[spec.Mask, Seen]
    cache: Cache
    memory: Tensor  # B S D
    mode: Mode
    drop: Drop
    attend: Callable[..., Tensor]
    tap: Tap = field(default=silent)

    def leaning(self, toward: Tensor) -> "Step":
        """The step with a learned number for each distance [T, S, H] added to the scores within the sequence."""
        bias = toward.float().permute(2, 0, 1)[None]  # B H T S
        return replace(self, mask={m: at if m.kind == "memory" else lean(at, bias) for m, at in self.mask.items()})


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
    if given.documents is not None:
        positions = since(given.documents)  # B T
    free = given.prefix
    if free is not None and real is not None:
        free = free + real.int().argmax(1)  # a left-padded row's prefix begins at its first real slot
    at = Cells(slots[start:], slots, real, given.documents, free)
    if given.memory is not None:
        across = Cells(slots[start:], torch.arange(given.memory.shape[1], device=ids.device), given.memory_real)
    else:
        across = at
    ear = listener.get()
    place = placed(positions, given.segments, given.prefix, given.blank)
    step = Step(
        place=place,
        angles={r: angles(torch.stack(place[:2], -1) if r.axes == 2 else positions, r) for r in stack.rotaries},
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
