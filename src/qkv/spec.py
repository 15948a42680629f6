"""What a Transformer is, as frozen data: branches in the core depend on nothing else. Next: core/model.py.

A `Spec` names its stacks, a `Stack` is a tuple of `Block`s, a block holds its `Attention`s and its `Ffn`. Sizes are
integers, choices are words; where a part is absent the field is None. Nothing here knows a family's name.
"""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from qkv.arguments import Range, check_fields
from qkv.errors import QkvError, nearest
from qkv.messages import Message

LAYERS, MOST = 1000, 4 * 10**8  # of layers, as of the deepest that was trained (Wang et al. 2022); of every other size
Size = Annotated[int, Range(1, MOST)]
Whole = Annotated[int, Range(0, MOST)]
Number = Annotated[float, Range(0)]
Dropout = Annotated[float, Range(0, 0.999)]


class Part:
    """A part of a spec; what is not of its declared type is refused when the part is made."""

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)


@dataclass(frozen=True)
class Norm(Part):
    """A normalisation over the width: LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019).

    `unbiased` is LayerNorm without its bias (Chowdhery et al. 2022, section 2). The state is multiplied by `offset` +
    weight: with an offset of 1 weights lie around 0.
    """

    kind: Literal["layer", "unbiased", "rms"] = "layer"
    eps: Number = 1e-5
    offset: Number = 0.0


@dataclass(frozen=True)
class Scaling(Part):
    """Rotary frequencies lowered, so that a model reads texts longer than its `trained` positions.

    linear (Chen et al. 2023) lowers all alike; dynamic raises the base as the text grows; wavelength and yarn (Peng et
    al. 2023) lower only those that turn fewer than `fast` times over `trained`, and fully those below `slow`; longrope
    (Ding et al. 2024) divides each by a factor of its own, `long` in texts beyond `trained`, else `short`.
    `gain` multiplies cosine and sine; `whole` rounds yarn's bounds to whole frequencies.
    """

    kind: Literal["linear", "dynamic", "wavelength", "yarn", "longrope"]
    factor: Number = 1.0
    trained: Whole = 0
    slow: Number = 1.0
    fast: Number = 32.0
    gain: Number = 1.0
    whole: Literal["rounded", "exact"] = "rounded"
    short: tuple[Number, ...] = ()
    long: tuple[Number, ...] = ()


@dataclass(frozen=True)
class Rotary(Part):
    """Rotary positions (Su et al. 2021): pairs of numbers in q and k rotated by an angle that grows with the position.

    `pairs` says which numbers form a pair: interleaved (0,1),(2,3)… or in two halves (0,P/2),(1,P/2+1)…. With two
    `axes` a head's first half is rotated by the position, its second by the count within the blank that is filled.
    """

    dim: Size
    base: Number = 10_000.0
    pairs: Literal["half", "interleaved"] = "half"
    scaling: Scaling | None = None
    axes: Literal[1, 2] = 1


@dataclass(frozen=True)
class Table(Part):
    """Positions that are added to the embedding: a learned table, or the sinusoids of Vaswani et al. 2017, section 3.5.

    `layout` puts sines and cosines side by side (as in the paper) or in two halves; `spanning` is two halves whose
    frequencies fall to 1/10,000 exactly, over D/2 - 1 steps (Tensor2Tensor, fairseq, OpenNMT-tf). The first position
    is number `offset`, and rows of a table before it are unused; with `blanks` a second table counts within the blank
    that is filled in (Du et al. 2022, section 2.1).
    """

    kind: Literal["learned", "sinusoid"]
    size: Size
    layout: Literal["half", "interleaved", "spanning"] = "interleaved"
    offset: Whole = 0
    blanks: Literal["no", "counted"] = "no"


@dataclass(frozen=True)
class Relative(Part):
    """A learned number for each head and each bucket of distances, added to the scores (Raffel et al. 2020, 2.1).

    Near `buckets` hold one distance each, far ones more and more, up to `distance`; `both` separates past and future.
    """

    buckets: Size
    distance: Size
    heads: Size
    direction: Literal["both", "past"]


@dataclass(frozen=True)
class Mask(Part):
    """Which keys a query may attend to: all, the past, a free prefix and the past, or the encoder's memory.

    `window` counts the newest keys that a query may see, itself included; a full mask opens as many ahead. With
    `alibi_heads` the scores of as many heads fall with the distance of the key, each by a slope of its own (ALiBi,
    Press et al. 2022).
    """

    kind: Literal["full", "causal", "prefix", "memory"]
    window: Size | None = None
    alibi_heads: Whole | None = None


@dataclass(frozen=True)
class Attention(Part):
    """Multi-head attention with `groups` key/value heads: MHA (groups = heads), GQA, or MQA (groups = 1).

    `scale` multiplies q·k; None stands for 1/sqrt(head_dim), 1.0 switches scaling off. `qk_norm` norms each head's q
    and k before the rotation (Henry et al. 2020), or those of all heads together. A `cap` c keeps scores within
    c·tanh(score/c) (Bello et al. 2016, section 5.1).
    """

    heads: Size
    groups: Size
    head_dim: Size
    mask: Mask
    bias: bool = False
    out_bias: bool = False
    scale: Number | None = None
    rotary: Rotary | None = None
    dropout: Dropout = 0.0
    qk_norm: Norm | None = None
    qk_normed: Literal["by head", "together"] = "by head"
    cap: Number | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim < 1:
            raise QkvError("attention: {heads} heads leave {head_dim} numbers for each, expected 1 or more",
                           heads=self.heads, head_dim=self.head_dim)
        if self.heads < 1 or self.groups < 1 or self.heads % self.groups:
            raise QkvError("attention: {groups} key/value groups do not divide {heads} heads", groups=self.groups,
                           heads=self.heads)
        if self.mask.alibi_heads not in (None, self.heads):
            raise QkvError("attention: ALiBi has slopes for {alibi_heads} heads, expected {heads}",
                           alibi_heads=self.mask.alibi_heads, heads=self.heads)
        dim, axes = (self.rotary.dim, self.rotary.axes) if self.rotary else (2, 0)
        if dim < 2 or dim % 2 or dim * axes > self.head_dim:
            raise QkvError("attention: rotary dim {dim} must be even and at most head_dim {head_dim}", dim=dim,
                           head_dim=self.head_dim)


@dataclass(frozen=True)
class Latent(Part):
    """Multi-head latent attention (Liu et al. 2024, section 2.1): keys and values from one small latent.

    `kv_rank` numbers and a shared rotary key of `rotary.dim` are all that is cached. Queries have `nope_head_dim` +
    `rotary.dim` numbers a head, values `value_dim`; `q_rank` None takes q straight from the state; `cap` as above.
    """

    heads: Size
    q_rank: Size | None
    kv_rank: Size
    nope_head_dim: Size
    value_dim: Size
    mask: Mask
    rotary: Rotary
    norm: Norm
    bias: bool = False
    scale: Number | None = None
    dropout: Dropout = 0.0
    cap: Number | None = None


@dataclass(frozen=True)
class Ffn(Part):
    """The feed-forward network of each position: act(x W_up) W_down, or act(x W_gate) * (x W_up) W_down when gated."""

    width: Size
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"]
    gated: bool = False
    bias: bool = False
    dropout: Dropout = 0.0


@dataclass(frozen=True)
class Experts(Part):
    """A mixture of feed-forward networks, of which a router picks `top_k` for each token (Shazeer et al. 2017).

    `score` turns the router's logits into weights; `weights` says whether the chosen ones are scaled to sum to 1 before
    `scale`. A `balance` of "bias" adds a stored number per expert to the scores that choose, not to the weights (Wang
    et al. 2024). Experts may form `groups`, of which the best `topk_groups` stay open: by their best score, or by
    the sum of their best two. `shared` computes every token as well, through a sigmoid gate where `shared_gate`.
    """

    num_experts: Size
    top_k: Size
    expert: Ffn
    score: Literal["softmax", "sigmoid"] = "softmax"
    weights: Literal["sum to one", "as scored"] = "sum to one"
    scale: Number = 1.0
    balance: Literal["none", "bias"] = "none"
    groups: Size = 1
    topk_groups: Size = 1
    group_score: Literal["best", "best two"] = "best"
    shared: Ffn | None = None
    shared_gate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.top_k <= self.num_experts:
            raise QkvError("experts: {top_k} chosen of {num_experts}; choose at least 1 and at most all",
                           top_k=self.top_k, num_experts=self.num_experts)
        if self.groups < 1 or self.num_experts % self.groups or not 1 <= self.topk_groups <= self.groups:
            raise QkvError("experts: {groups} groups ({topk_groups} open) do not divide {num_experts} experts",
                           groups=self.groups, topk_groups=self.topk_groups, num_experts=self.num_experts)
        if self.group_score == "best two" and self.num_experts // self.groups < 2:
            raise QkvError("experts: {groups} groups of one expert have no best two; use group_score='best'",
                           groups=self.groups)
        if self.top_k > self.num_experts // self.groups * self.topk_groups:
            raise QkvError("experts: {top_k} chosen, but {topk_groups} open groups hold fewer", top_k=self.top_k,
                           topk_groups=self.topk_groups)


@dataclass(frozen=True)
class Block(Part):
    """One layer. Each sub-layer f computes sum(x + out(f(in(x)))); an absent norm is the identity.

    pre-norm fills `norm_in`, post-norm (2017) fills `norm_sum`, sandwich-norm fills `norm_in` and `norm_out`. The last
    sub-layer is `ffn`, or `moe` for a mixture of experts. A `deepnorm` residual adds to what the sub-layer reads,
    scaled: residual_scale·in(x) + f(in(x)) (DeepNorm, Wang et al. 2022, with the norm moved to the next sub-layer); a
    `scaled` one scales what is added: x + residual_scale·out(f(in(x))) (Yang et al. 2023). Both sub-layers of a
    parallel residual read what "one" norm gives (Wang & Komatsuzaki 2021), or "each" has its own; "second" leaves the
    first without, after a normed embedding (Warner et al. 2024).
    """

    attn: Attention | Latent
    ffn: Ffn | None
    cross: Attention | None = None
    norm_in: Norm | None = None
    norm_out: Norm | None = None
    norm_sum: Norm | None = None
    residual: Literal["serial", "parallel", "deepnorm", "scaled", "none"] = "serial"
    dropout: Dropout = 0.0
    moe: Experts | None = None
    residual_scale: Number = 1.0
    norms: Literal["each", "one", "second"] = "each"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.ffn is None) == (self.moe is None):
            raise QkvError("block: give either one feed-forward network (ffn) or experts (moe)")
        if self.cross and self.residual == "parallel":
            raise QkvError("block: a parallel residual has no place for cross-attention; use residual='serial'")
        if self.norms == "one" and self.residual != "parallel":
            raise QkvError("block: only the sub-layers of a parallel residual can read one norm; use norms='each'")


@dataclass(frozen=True)
class Stack(Part):
    """A tower of blocks over one sequence, with what is added to its embeddings and what norms its end.

    Embeddings of `embed_width` numbers are projected to the width (Lan et al. 2020, section 3.1); the head's `dense`
    goes back. `context` bounds the sequence where no table of positions does. `segments` counts the kinds of text that
    an embedding of their own tells apart (Devlin et al. 2018, section 3); `relative` is shared by all blocks.
    """

    width: Size
    blocks: tuple[Block, ...]
    positions: Table | None = None
    embed_scale: Number = 1.0
    embed_norm: Norm | None = None
    final_norm: Norm | None = None
    dropout: Dropout = 0.0
    context: Size | None = None
    segments: Whole = 0
    relative: Relative | None = None
    embed_width: Size | None = None

    @cached_property
    def longest(self) -> int | None:
        """The longest sequence that the positions allow, None where nothing bounds it."""
        return self.positions.size if self.positions else self.context


@dataclass(frozen=True)
class Dense(Part):
    """A square layer before an output projection: linear (with or without `bias`), activation, norm."""

    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
    norm: Norm | None = None
    bias: bool = True


@dataclass(frozen=True)
class Head(Part):
    """The output projection to the vocabulary: its own matrix or the embedding's, with or without a bias.

    States are multiplied by `scale` and pass `dense` first, where there is one (Devlin et al. 2018's masked words). A
    `cap` c keeps logits within c·tanh(logit/c).
    """

    kind: Literal["tied", "untied"] = "tied"
    bias: bool = False
    scale: Number = 1.0
    dense: Dense | None = None
    cap: Number | None = None


@dataclass(frozen=True)
class Labels(Part):
    """The output projection to `count` labels, from the state of the first or last token of a text, or their mean."""

    count: Size
    token: Literal["first", "last", "mean"] = "first"
    dense: Dense | None = None
    bias: bool = True
    dropout: Dropout = 0.0


@dataclass(frozen=True)
class Init(Part):
    """Initial weights: `xavier` (Glorot & Bengio 2010) with embeddings N(0, 1/width), or `normal` N(0, std).

    `depth_scaled` divides the matrices that write into the residual by sqrt(2 x layers) (Radford et al. 2019).
    """

    kind: Literal["xavier", "normal"] = "normal"
    std: Number = 0.02
    depth_scaled: bool = False


Architecture = Literal["encoder-decoder", "encoder", "causal decoder", "prefix decoder"]


@dataclass(frozen=True)
class Spec(Part):
    """A whole model: an encoder, a decoder, or both; `sources` is the encoder's own vocabulary when not shared."""

    vocabulary: Size
    decoder: Stack | None = None
    encoder: Stack | None = None
    head: Head | None = Head()
    sources: Size | None = None
    init: Init = field(default_factory=Init)
    labels: Labels | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.decoder or self.encoder):
            raise QkvError("spec: neither an encoder nor a decoder; give at least one Stack")
        for stack in (self.encoder, self.decoder):
            if stack and not stack.blocks:
                raise QkvError("spec: a stack without blocks; give at least one Block")
        narrow = (self.decoder or self.encoder).embed_width  # type: ignore[union-attr]
        if narrow and self.head and not self.head.dense:
            raise QkvError("spec: embed_width {narrow} needs a head with a dense layer, which goes back", narrow=narrow)

    @cached_property
    def stack(self) -> Stack:
        """The stack whose states become logits: the decoder where there is one."""
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack

    @cached_property
    def architecture(self) -> Architecture:
        """Which kind of Transformer this is; a prefix decoder sees its whole prompt at once."""
        if self.decoder is None:
            return "encoder"
        if self.encoder:
            return "encoder-decoder"
        prefix = any(block.attn.mask.kind == "prefix" for block in self.decoder.blocks)
        return "prefix decoder" if prefix else "causal decoder"

    @cached_property
    def fills_blanks(self) -> bool:
        """Whether the decoder's words take the place of a blank in its prompt (Du et al. 2022), by two positions."""
        if self.decoder is None:
            return False
        rotaries = [getattr(block.attn, "rotary", None) for block in self.decoder.blocks]
        counted = self.decoder.positions is not None and self.decoder.positions.blanks == "counted"
        return counted or any(rotary is not None and rotary.axes == 2 for rotary in rotaries)

    @cached_property
    def has_blocks(self) -> bool:
        """Whether the stacks are made of blocks: not so in an LSTM baseline."""
        return bool(self.stack.blocks)

    @cached_property
    def context(self) -> int | None:
        """The longest sequence of the stack whose states become logits."""
        return self.stack.longest


# names and values of the JSON that earlier versions wrote, by part
RENAMED: dict[str, dict[str, str]] = {
    "Experts": {"count": "num_experts", "chosen": "top_k", "open_groups": "topk_groups"},
    "Latent": {"plain_dim": "nope_head_dim"},
    "Block": {"carry": "residual_scale", "residual=normed": "deepnorm"},
    "Rotary": {"pairs=halves": "half", "pairs=neighbours": "interleaved"},
    "Table": {"layout=halves": "half", "layout=neighbours": "interleaved"},
}


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
        kinds = [k for k in typing.get_args(kind) if k is not type(None)]
        named = typing.cast("dict[str, Any]", value) if isinstance(value, dict) else dict[str, Any]()
        fits = (k for k in kinds if update(k, named).keys() <= typing.get_type_hints(k).keys())
        kind = next(fits, kinds[0])
    if typing.get_origin(kind) is tuple:
        rows = typing.cast("list[Any]", value)
        if not isinstance(value, list) or len(rows) > LAYERS:
            raise QkvError("{where}: found {value}, expected a list of at most {most}", where=where,
                           value=repr(rows)[:100], most=LAYERS)
        return tuple(from_json(typing.get_args(kind)[0], v, f"{where}[{i}]") for i, v in enumerate(rows))
    if not dataclasses.is_dataclass(kind):
        return read_value(kind, value, where)
    hints = typing.get_type_hints(kind)
    if not isinstance(value, dict):
        raise QkvError("{where}: found {value!r}, expected an object with the keys {hints}", where=where, value=value,
                       hints=", ".join(hints))
    value = update(kind, typing.cast("dict[str, Any]", value))
    for key in value:
        if key not in hints:
            raise QkvError("{where}: unknown key {key!r}{hint}; known are {hints}", where=where, key=key,
                           hint=nearest(key, hints), hints=", ".join(hints))
    for f in dataclasses.fields(kind):
        if f.name not in value and f.default is f.default_factory is dataclasses.MISSING:
            raise QkvError("{where}: the key {key!r} is missing{hint}", where=where, key=f.name,
                           hint=nearest(f.name, value))
    build: Any = kind
    return build(**{k: from_json(hints[k], v, f"{where}.{k}") for k, v in value.items()})


def read_value(kind: Any, value: Any, where: str) -> Any:
    """A word, a flag or a number of a spec; a number is finite and not negative."""
    if typing.get_origin(kind) is Literal:
        fits = value in typing.get_args(kind)
        expected = Message("one of {some}", some=", ".join(map(str, typing.get_args(kind))))
    elif kind is bool:
        fits, expected = type(value) is bool, Message("true or false")
    elif kind is int:
        fits = type(value) is int and 0 <= value <= MOST
        expected = Message("a whole number from 0 to {most:,}", most=MOST)
    else:
        fits, expected = type(value) in (int, float) and 0 <= value < math.inf, Message("a number of 0 or more")
    if not fits:
        raise QkvError("{where}: found {value}, expected {expected}", where=where, value=repr(value)[:100],
                       expected=expected)
    return float(value) if kind is float else value


def update(kind: Any, value: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a part with the names and values of today."""
    new = RENAMED.get(getattr(kind, "__name__", ""), {})
    return {new.get(k, k): new.get(f"{k}={v}", v) if isinstance(v, str) else v for k, v in value.items()}
