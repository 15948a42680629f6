"""The five figures of a chapter on attention, drawn from the tensors of one run: `qkv look MODEL TEXT --figures DIR`.

How four dimensions fall apart into pieces, one matrix of attention, the heads joined again, a whole block with its
trainable weights, and a word's vector from layer to layer. Letters: B texts, T positions, H heads, K head dim, D width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.adapt.quantise import count_parameters, find_shapes
from qkv.errors import QkvError
from qkv.explore.tables import trace_text
from qkv.lens import resolve
from qkv.lens.trace import Trace
from qkv.messages import Message
from qkv.model import Model
from qkv.plots import figure
from qkv.plots.forms import BLUE, Grid, Lines
from qkv.plots.text import clean
from qkv.spec import Block

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Say = Callable[..., str]  # a template and its fields -> the text that is read
TEXTS, NUMBERS = 4, 64  # rows of the first figure; numbers of a vector that are shown


@dataclass(frozen=True)
class Scene:
    """One traced text: the attention that is drawn, its layer and head (from 0), and the tokens that it read."""

    model: Model
    t: Trace
    layer: int
    head: int
    say: Say

    @property
    def block(self) -> str:
        """The path of the layer."""
        return f"{'encoder.' if self.model.encoder_decoder else ''}layers.{self.layer}"

    def __call__(self, name: str) -> Tensor:
        """What a tap of the layer carried, of the only row."""
        return self.t[f"{self.block}.{name}"][0].float().cpu()

    @property
    def words(self) -> list[str]:
        """The tokens."""
        return [clean(w) for w in resolve.tokens_read(self.t, self.block)]

    @property
    def spec(self) -> Block:
        """What the layer is."""
        return (self.model.spec.encoder or self.model.spec.stack).blocks[self.layer]


def make_figures(
    model: Model, texts: Sequence[str], *, layer: int = -1, head: int = 0, word: str | int | None = None,
    say: Say = lambda text, **fields: Message(text, **fields).to("zh"),
) -> "dict[str, Figure]":
    """The figures by their file names; of several texts each is a row of the first one, the rest show the first text.

    `word` is the one whose vector is followed: a word of the text or its position, by default the first token.

    Raises:
        QkvError: no such layer, head or word; no matplotlib.
    """
    blocks = (model.spec.encoder or model.spec.stack).blocks
    layers, heads = len(blocks), blocks[0].attn.heads
    if not (-layers <= layer < layers and 0 <= head < heads):
        raise QkvError("figures: this model has layers 1 to {layers} and heads 1 to {heads}", layers=layers,
                       heads=heads)
    read = [Scene(model, trace_text(model, text, ["walk"], {}), layer % layers, head, say) for text in texts[:TEXTS]]
    return {
        "ch12-attention-shape.png": draw_shape(read),
        "ch12-attention-matrix.png": draw_matrix(read[0]),
        "ch12-concatenate.png": draw_joining(read[0]),
        "ch12-transformer-block.png": draw_block(read[0]),
        "ch12-vector-by-layer.png": draw_vector(read[0], 0 if word is None else word),
    }


def even(x: Tensor) -> Tensor:
    """Numbers as shades: the largest, with either sign, is 1."""
    return x / x.abs().max().clamp_min(1e-30)


def show_numbers(title: str, rows: Sequence[str], x: Tensor) -> Grid:
    """A matrix [R, C] as shades without a name for each column."""
    return Grid(title, rows, [""] * x.shape[1], x)


def draw_shape(read: Sequence[Scene]) -> "Figure":
    """[B, H, T, K]: a row a text, a column a head, each cell one number of z."""
    every, say = [s("attn.z") for s in read], read[0].say  # each H T K
    heads, _, dim = every[0].shape
    rows = [show_heads(s, z, lambda h, piece, b=b: say("text {b} head {h}: {piece}", b=b, h=h, piece=piece))
            for b, (s, z) in enumerate(zip(read, every, strict=True), start=1)]
    size = f"[{len(read)}, {heads}, {max(z.shape[1] for z in every)}, {dim}]"
    return figure.draw(rows, say("Four dimensions taken apart: A of {name} = {size} (batch, head, token, width)",
                                 name=f"{read[0].block}.attn", size=size))


def show_heads(s: Scene, z: Tensor, title: Callable[[int, str], str]) -> list[Grid]:
    """The heads [H, T, K] side by side, the first one with the tokens."""
    names = [s.words] + [[""] * z.shape[1]] * (len(z) - 1)
    return [show_numbers(title(h, f"{z.shape[1]}×{z.shape[2]}"), *part)
            for h, part in enumerate(zip(names, even(z), strict=True), start=1)]


def draw_matrix(s: Scene) -> "Figure":
    """One head's pattern in percent; every row sums to 100."""
    weight = s("attn.pattern")[s.head]  # T T
    size = len(weight)
    cells = [[f"{100 * w:.0f}" if w >= 0.005 else "" for w in row] for row in weight.tolist()]
    title = s.say("The {square} matrix of attention (layer {layer} head {head}, %)", square=f"{size}×{size}",
                  layer=s.layer + 1, head=s.head + 1)
    note = s.say("rows look at columns, every row sums to 100")
    return figure.draw([Grid(title, s.words, s.words, weight, cells * (size <= 32), note)])


def draw_joining(s: Scene) -> "Figure":
    """The heads apart, side by side again, and after W_O."""
    z, out = s("attn.z"), s("attn.out")  # H T K, T D
    heads, size, dim = z.shape
    joined = z.transpose(0, 1).flatten(1)  # T HK
    apart = show_heads(s, z, lambda h, piece: f"{s.say('head')} {h}: {piece}")
    whole = [show_numbers(f"{title}: {size}×{x.shape[1]}", s.words, even(x))
             for title, x in ((s.say("joined"), joined), (s.say("after W_O"), out))]
    way = f"[{heads}, {size}, {dim}] → [{size}, {heads * dim}] × W_O → [{size}, {out.shape[1]}]"
    fig = figure.draw([apart, *whole], f"{s.say('The heads joined')}: {way}")
    for h in range(1, heads):
        fig.axes[heads].axvline(h * dim - 0.5, color="black", linewidth=1)
    return fig


def draw_vector(s: Scene, word: str | int) -> "Figure":
    """A word's vector before the first layer and after each, with its length and how far it has come."""
    model, say, side = s.model, s.say, s.block.rpartition("layers.")[0]
    slot = resolve.find_position(s.t, word, path=s.block)
    layers = len((model.spec.encoder or model.spec.stack).blocks)
    taps = [f"{side}layers.0.resid_in", *(f"{side}layers.{i}.resid_out" for i in range(layers))]
    states = torch.stack([s.t[name][0, slot].float().cpu() for name in taps])  # L D
    names = [say("embedding"), *(say("layer {i}", i=i + 1) for i in range(layers))]
    kept = states[:, :NUMBERS]
    each = kept / kept.abs().amax(1, keepdim=True).clamp_min(1e-30)
    turned = {say("cosine with the embedding"): states[0], say("cosine with the last layer"): states[-1]}
    series = {name: torch.cosine_similarity(states, to[None]).tolist() for name, to in turned.items()}
    title = say("The vector of “{words}” layer by layer (first {shape} numbers, each row by its own largest)",
                words=s.words[slot], shape=kept.shape[1])
    return figure.draw([show_numbers(title, names, each), Lines("", names, series)])


def draw_block(s: Scene) -> "Figure":
    """The layer from below upwards: blue boxes are trained, a line at the side goes round what is added to it."""
    core: Any = s.model.core
    module = (core.encoder if s.model.spec.encoder else core.decoder).layers[s.layer]
    weights = {name: shape for name, shape in find_shapes(module).items() if not name.endswith("bias")}
    count = f"{count_parameters(module):,}"
    rows = list(flow(s, weights))
    fig = figure.open_figure(9, 0.7 * len(rows) + 1)
    ax = fig.subplots()
    ax.set_axis_off()
    ax.set_xlim(0, 10)
    ax.set_ylim(-0.6, len(rows) - 0.4)
    with figure.use_fonts():
        title = s.say("Transformer block: {block}, {count} trainable parameters (blue)", block=s.block, count=count)
        fig.suptitle(title)
        draw_flow(s.spec.residual, ax, rows)
    return fig


def draw_flow(residual: str, ax: Any, rows: "Sequence[Boxes]") -> None:
    """The boxes from below upwards, with arrows between them and a line at the side for each residual."""
    start = apart = 0
    for y, boxes in enumerate(rows):
        if y and y == apart:  # the second branch of a parallel layer reads what the first one read
            ax.annotate("", (6.5, y), (9.7, y), arrowprops={"arrowstyle": "->"})
            ax.plot([7, 9.7, 9.7], [0, 0, y], color="black", linewidth=1, zorder=0)
        elif y:
            ax.annotate("", (5, y - 0.3), (5, y - 0.7), arrowprops={"arrowstyle": "->"})
        for i, (text, trained) in enumerate(boxes):
            look = {"boxstyle": "round,pad=0.35", "fc": BLUE if trained else "#e8e8e8", "ec": "none"}
            x, ink = 0.7 + 8.6 / len(boxes) * (i + 0.5), "white" if trained else "black"
            ax.text(x, y, text.replace("$", r"\$"), ha="center", va="center", color=ink, fontsize=8, bbox=look)
        if boxes[0][0].startswith("⊕"):
            ax.plot([5, 0.3, 0.3, 5], [start, start, y, y], color="gray", linewidth=1, zorder=0)
            apart = apart or (y + 1 if residual == "parallel" else 0)
        if boxes[0][0].startswith(("attn_in", "ffn_in") if residual == "deepnorm" else ("resid", "⊕")):
            start = y


Boxes = list[tuple[str, bool]]  # a row of boxes: a text, and whether it is trained


def flow(s: Scene, weights: Mapping[str, torch.Size]) -> Iterator[Boxes]:
    """The rows of a layer, in the order of the forward pass."""
    spec, ffn = s.spec, s.spec.moe.expert if s.spec.moe else s.spec.ffn
    assert ffn is not None  # a layer has one of the two
    second = "moe" if spec.moe else "ffn"
    yield stream_box(s, "resid_in")
    for slot, part, inside, last in (
        ("attn", "attn", f"{spec.attn.heads} × softmax(Q·K/√K)·V", ("attn.out",)),
        ("ffn", second, ffn.activation, (f"{second}.down", "moe.shared.down")),
    ):
        yield from boxes(weights, f"{slot}_in.")
        yield from boxes(weights, f"{part}.", without=last)
        yield [(inside, False)]
        yield from (row for start in last for row in boxes(weights, start))
        yield from boxes(weights, f"{slot}_out.")
        times = f" × {spec.residual_scale:g}" if spec.residual_scale != 1.0 else ""
        if spec.residual == "scaled":
            yield [(times.strip(), False)]
            times = ""
        if spec.residual != "none":
            yield [(s.say("⊕ residual") + times, False)]
        yield from boxes(weights, f"{slot}_sum.")
        if part == "attn" and f"{s.block}.resid_mid" in s.t.known:
            yield stream_box(s, "resid_mid")
    yield stream_box(s, "resid_out")


def stream_box(s: Scene, name: str) -> Boxes:
    """The residual stream at a place, with the root of its numbers' mean square."""
    x = s(name)
    size = f"{float(x.square().mean().sqrt()):.3f}"
    return [(f"{name} {[*x.shape]}  " + s.say("root mean square {size}", size=size), False)]


def boxes(weights: Mapping[str, torch.Size], start: str, *, without: tuple[str, ...] = ()) -> Iterator[Boxes]:
    """The weights whose names begin so, three in a row."""
    found = [(f"{name.removesuffix('.weight')}\n{[*shape]} = {shape.numel():,}", True)
             for name, shape in weights.items() if name.startswith(start) and not name.startswith(without or "-")]
    yield from (found[i : i + 3] for i in range(0, len(found), 3))
