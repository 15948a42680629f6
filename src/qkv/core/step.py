"""What is passed beside x through the forward pass; `build_step` in model.py makes it once per call."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from torch import Tensor, nn

from qkv import spec
from qkv.core.cache import Cache
from qkv.core.dropout import Drop
from qkv.core.masks import AttentionBias, add_position_bias
from qkv.core.positions import Positions

Mode = Literal["train", "prefill", "decode"]
Tap = Callable[[nn.Module, str, Tensor], Tensor]


class Tracer(Protocol):
    """Receives the taps of one run; it needs eager attention where it changes scores or patterns."""

    needs_eager_attention: bool

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Record x, and return x or its replacement."""
        ...


active_tracer: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


def pass_through(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """No tracer is active: the identity."""
    return x


@dataclass(frozen=True, slots=True)
class Inputs:
    """What goes with the ids: padding (True = real token), documents, segments, a free prefix, a source.

    `prefix_len` counts the real tokens of a free prefix; `blank_pos` is the position in it that the tokens after it
    fill, or each token's own (-1: none). Positions restart with each document. An encoder-decoder needs its
    `source`, or the `memory` that its encoder made from it.
    """

    padding_mask: Tensor | None = None  # B T
    document_ids: Tensor | None = None  # B T
    segments: Tensor | None = None  # B T
    prefix_len: Tensor | None = None  # B
    blank_pos: Tensor | None = None  # B, or B T
    source: Tensor | None = None  # B S
    source_padding_mask: Tensor | None = None  # B S
    memory: Tensor | None = None  # B S D


@dataclass(frozen=True, slots=True)
class Step:
    """One argument beside x: at most nine fields, the same for prefill, chunks, decode and training."""

    positions: Positions
    angles: dict[spec.Rotary, tuple[Tensor, Tensor]]
    mask: dict[spec.Mask, AttentionBias]
    cache: Cache
    memory: Tensor  # B S D
    mode: Mode
    drop: Drop
    attend: Callable[..., Tensor]
    tap: Tap = field(default=pass_through)

    def with_attention_bias(self, bias: Tensor) -> "Step":
        """The step with a bias [T, S, H] added to the scores of self-attention."""
        bias = bias.float().permute(2, 0, 1)[None]  # B H T S
        own = {m: add_position_bias(at, bias) for m, at in self.mask.items() if m.kind != "memory"}
        return replace(self, mask=self.mask | own)
