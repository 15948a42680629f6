"""What a Transformer *is*, as frozen data: the only thing that a fork in the core may ask. Next: core/model.py.

A `Spec` names its stacks, a `Stack` is a tuple of `Block`s, a block holds its `Attention`s and its `Ffn`. Sizes are
integers, choices are words; where a part is absent the field is None. Nothing here knows a family's name.
"""

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv.errors import QkvError, nearest


@dataclass(frozen=True)
class Norm:
    """A normalisation over the width: LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019)."""

    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al. 2021): pairs of q and k turned by an angle that grows with the position.

    `pairs` says which numbers form a pair: neighbours (0,1),(2,3)… or the two halves (0,P/2),(1,P/2+1)….
    """

    dim: int
    base: float = 10_000.0
    pairs: Literal["halves", "neighbours"] = "halves"


@dataclass(frozen=True)
class Table:
    """Positions that are added to the embedding: a learned table, or the sinusoids of Vaswani et al. 2017, section 3.5.

    `layout` puts sines and cosines side by side (as in the paper) or in two halves.
    """

    kind: Literal["learned", "sinusoid"]
    size: int
    layout: Literal["halves", "neighbours"] = "neighbours"


@dataclass(frozen=True)
class Mask:
    """Who may look at whom: everyone, the past only, a free prefix and then the past, or the encoder's memory.

    `window` counts the newest keys that a query may see, itself included.
    """

    kind: Literal["full", "causal", "prefix", "memory"]
    window: int | None = None


@dataclass(frozen=True)
class Attention:
    """Multi-head attention with `groups` key/value heads: MHA (groups = heads), GQA, or MQA (groups = 1).

    `scale` multiplies q·k; None stands for 1/sqrt(head_dim), 1.0 switches scaling off.
    """

    heads: int
    groups: int
    head_dim: int
    mask: Mask
    bias: bool = False
    out_bias: bool = False
    scale: float | None = None
    rotary: Rotary | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.heads < 1 or self.groups < 1 or self.heads % self.groups:
            raise QkvError(f"attention: {self.groups} key/value groups do not divide {self.heads} heads")
        if self.rotary and (self.rotary.dim % 2 or self.rotary.dim > self.head_dim):
            raise QkvError(f"attention: rotary dim {self.rotary.dim} must be even and at most head_dim {self.head_dim}")


@dataclass(frozen=True)
class Ffn:
    """The feed-forward network of each position: act(x W_up) W_down, or act(x W_gate) * (x W_up) W_down when gated."""

    width: int
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"]
    gated: bool = False
    bias: bool = False
    dropout: float = 0.0


@dataclass(frozen=True)
class Block:
    """One layer. Each sub-layer f computes sum(x + out(f(in(x)))); an absent norm is the identity.

    pre-norm fills `norm_in`, post-norm (2017) fills `norm_sum`, sandwich-norm fills `norm_in` and `norm_out`.
    """

    attn: Attention
    ffn: Ffn
    cross: Attention | None = None
    norm_in: Norm | None = None
    norm_out: Norm | None = None
    norm_sum: Norm | None = None
    residual: Literal["serial", "parallel", "none"] = "serial"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.cross and self.residual == "parallel":
            raise QkvError("block: a parallel residual has no place for cross-attention; use residual='serial'")


@dataclass(frozen=True)
class Stack:
    """A tower of blocks over one sequence, with what is added to its embeddings and what norms its end.

    `context` bounds the sequence where no table of positions does.
    """

    width: int
    blocks: tuple[Block, ...]
    positions: Table | None = None
    embed_scale: float = 1.0
    embed_norm: Norm | None = None
    final_norm: Norm | None = None
    dropout: float = 0.0
    context: int | None = None

    @property
    def longest(self) -> int | None:
        """The longest sequence that the positions allow, None where nothing bounds it."""
        return self.positions.size if self.positions else self.context


@dataclass(frozen=True)
class Head:
    """The output projection to the vocabulary: its own matrix or the embedding's, with or without a bias."""

    kind: Literal["tied", "untied"] = "tied"
    bias: bool = False


@dataclass(frozen=True)
class Init:
    """First weights: `xavier` (Glorot & Bengio 2010) with embeddings N(0, 1/width), or `normal` N(0, std).

    `depth_scaled` divides the matrices that write into the residual by sqrt(2 x layers) (Radford et al. 2019).
    """

    kind: Literal["xavier", "normal"] = "normal"
    std: float = 0.02
    depth_scaled: bool = False


@dataclass(frozen=True)
class Spec:
    """A whole model: an encoder, a decoder, or both; `sources` is the encoder's own vocabulary when not shared."""

    vocabulary: int
    decoder: Stack | None = None
    encoder: Stack | None = None
    head: Head | None = Head()
    sources: int | None = None
    init: Init = field(default_factory=Init)

    def __post_init__(self) -> None:
        if not (self.decoder or self.encoder):
            raise QkvError("spec: neither an encoder nor a decoder; give at least one Stack")
        for stack in (self.encoder, self.decoder):
            if stack and not stack.blocks:
                raise QkvError("spec: a stack without blocks; give at least one Block")

    @property
    def stack(self) -> Stack:
        """The stack whose states become logits: the decoder where there is one."""
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack

    @property
    def context(self) -> int | None:
        """The longest sequence of the stack whose states become logits."""
        return self.stack.longest


def as_json(part: Any) -> Any:
    """Plain lists and dicts for a spec part: what `from_json` turns back into an equal part."""
    if dataclasses.is_dataclass(part):
        return {f.name: as_json(getattr(part, f.name)) for f in dataclasses.fields(part)}
    return [as_json(p) for p in part] if isinstance(part, tuple) else part


def from_json(kind: Any, value: Any, where: str = "spec") -> Any:
    """The part that `as_json` wrote; a key that the part lacks is a QkvError naming the nearest one."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if value is None:
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is tuple:
        return tuple(from_json(typing.get_args(kind)[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if not dataclasses.is_dataclass(kind):
        return float(value) if kind is float else value
    hints = typing.get_type_hints(kind)
    if not isinstance(value, dict):
        raise QkvError(f"{where}: found {value!r}, expected an object with the keys {', '.join(hints)}")
    for key in value:
        if key not in hints:
            raise QkvError(f"{where}: unknown key {key!r}{nearest(key, hints)}; known are {', '.join(hints)}")
    build: Any = kind
    return build(**{k: from_json(hints[k], v, f"{where}.{k}") for k, v in value.items()})
