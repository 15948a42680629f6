"""The five figures of a chapter on attention, drawn from the tensors of one run: `qkv look MODEL TEXT --figures DIR`.

How four dimensions fall apart into pieces, one matrix of attention, the heads joined again, a whole block with its
trainable weights, and a word's vector while a model with fresh weights learns the text. Drawing is lens/draw.py's.
Letters: B texts, T positions, H heads, K head dim, D width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Given, begin
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.explore.tables import traced
from qkv.lens import where
from qkv.lens.draw import BLUE, ORANGE, Grid, blank, clean, grid_axes, lettered
from qkv.lens.trace import Trace
from qkv.model import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Say = Callable[..., str]  # a template and its fields -> the text that is read
DPI = 150
TEXTS, UPDATES, RATE, NUMBERS = 4, 8, 1e-2, 64  # rows of the first figure; training; numbers of a vector that are shown


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
        return [clean(w) for w in where.heard(self.t, self.block)]


def figures(
    model: Model, texts: Sequence[str], *, layer: int = -1, head: int = 0, word: str | None = None, seed: int = 0,
    say: Say = lambda text, **fields: Message(text, **fields).to("zh"),
) -> "dict[str, Figure]":  # fmt: skip
    """The figures by their file names; of several texts each is a row of the first one, the rest show the first text.

    `word` is the one whose vector is followed, `seed` draws the fresh weights that learn.

    Raises:
        QkvError: a model that names no words; a text of one token; no such layer or head; no matplotlib.
    """
    if model.spec.head is None or (model.spec.decoder is None and (not model.tokenizer or not model.tokenizer.mask_id)):
        raise QkvError("figures: they follow a model while it learns which word comes next, or is hidden; this one "
                       "names no words: take one with a head",
                       zh="图：跟着模型学下一个词或被遮的词；这个模型不说词："
                       "请用有输出层的")  # fmt: skip
    stack = model.spec.encoder or model.spec.stack
    layers, heads = len(stack.blocks), stack.blocks[0].attn.heads
    if not (-layers <= layer < layers and 0 <= head < heads):
        raise QkvError(f"figures: this model has layers 1 to {layers} and heads 1 to {heads}",
                       zh=f"图：这个模型的层从 1 到 {layers}，头从 1 到 {heads}")  # fmt: skip
    read = [Scene(model, traced(model, text, ["walk"], {}), layer % layers, head, say) for text in texts[:TEXTS]]
    with lettered():
        return {
            "ch12-attention-shape.png": shape(read),
            "ch12-attention-matrix.png": matrix(read[0]),
            "ch12-concatenate.png": concatenate(read[0]),
            "ch12-transformer-block.png": block(read[0]),
            "ch12-training-update.png": update(read[0], texts[0], word, seed),
        }


def written(made: "dict[str, Figure]", directory: Path) -> list[Path]:
    """The figures as files in a directory, which is made where it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / name for name in made]
    for path, fig in zip(paths, made.values(), strict=True):
        fig.savefig(path, dpi=DPI, metadata={"Software": None})  # the same bytes each time
    return paths


def even(x: Tensor) -> Tensor:
    """Numbers as shades: the largest, with either sign, is 1."""
    return x / x.abs().max().clamp_min(1e-30)


def shape(read: Sequence[Scene]) -> "Figure":
    """[B, H, T, K]: a row a text, a column a head, each cell one number of z."""
    every = [s("attn.z") for s in read]  # each H T K
    heads, _, dim = every[0].shape
    fig = blank(2.2 * heads + 1, 0.6 + sum(0.5 + 0.2 * z.shape[1] for z in every))
    size = f"[{len(read)}, {heads}, {max(z.shape[1] for z in every)}, {dim}]"
    name, say = f"{read[0].block}.attn", read[0].say
    fig.suptitle(say(f"四维矩阵的拆解：{name} 的 A = {size}（批、头、词元、头宽）",
                     f"Four dimensions taken apart: A of {name} = {size} (batch, head, token, width)"))  # fmt: skip
    rows = fig.subplots(len(read), heads, squeeze=False, gridspec_kw={"height_ratios": [z.shape[1] for z in every]})
    for b, (s, z) in enumerate(zip(read, every, strict=True)):
        for h in range(heads):
            grid_axes(rows[b, h], Grid(Message(), s.words if h == 0 else [""] * len(s.words), [""] * dim, even(z)[h]))
            piece = f"{z.shape[1]}×{dim}"
            place = say(f"第 {b + 1} 句 第 {h + 1} 头：{piece}", f"text {b + 1} head {h + 1}: {piece}")
            rows[b, h].set_title(place, fontsize=8)
    return fig


def matrix(s: Scene) -> "Figure":
    """One head's pattern in percent; every row sums to 100."""
    weight = s("attn.pattern")[s.head]  # T T
    size = len(weight)
    cells = [[f"{100 * w:.0f}" if w >= 0.005 else "" for w in row] for row in weight.tolist()]
    fig = blank(2 + 0.42 * size, 1.6 + 0.32 * size)
    layer, head, square = s.layer + 1, s.head + 1, f"{size}×{size}"
    fig.suptitle(s.say(
        f"{square} 注意力矩阵（第 {layer} 层 第 {head} 头，%）\n每一行的词元看每一列的词元，每行之和 100",
        f"The {square} matrix of attention (layer {layer} head {head}, %)\nrows look at columns, every row sums to 100",
    ), fontsize=10)
    grid_axes(fig.subplots(), Grid(Message(), s.words, s.words, weight, cells if size <= 32 else ()))
    return fig


def concatenate(s: Scene) -> "Figure":
    """The heads apart, side by side again, and after W_O."""
    z, out = s("attn.z"), s("attn.out")  # H T K, T D
    heads, size, dim = z.shape
    joined = z.transpose(0, 1).flatten(1)  # T HK
    fig = blank(12, 2.2 + 0.36 * size)
    way = f"[{heads}, {size}, {dim}] → [{size}, {heads * dim}] × W_O → [{size}, {out.shape[1]}]"
    fig.suptitle(f"{s.say('多头合并', 'The heads joined')}: {way}")
    axes = fig.subplot_mosaic([[f"{h}" for h in range(heads)], ["joined"] * heads, ["out"] * heads])
    for h in range(heads):
        grid_axes(axes[f"{h}"], Grid(Message(), s.words if h == 0 else [""] * size, [""] * dim, even(z)[h]))
        axes[f"{h}"].set_title(f"{s.say('头', 'head')} {h + 1}: {size}×{dim}", fontsize=9)
    names = s.say("拼接", "joined"), s.say("线性变换 W_O 之后", "after W_O")
    for name, x, title in zip(("joined", "out"), (joined, out), names, strict=True):
        grid_axes(axes[name], Grid(Message(), s.words, [""] * x.shape[1], even(x)))
        axes[name].set_title(f"{title}: {size}×{x.shape[1]}", fontsize=9)
    for h in range(1, heads):
        axes["joined"].axvline(h * dim - 0.5, color="black", linewidth=1)
    return fig


def block(s: Scene) -> "Figure":
    """The layer from below upwards: blue boxes are trained, a line at the side goes round what is added to it."""
    core: Any = s.model.core
    module = (core.encoder if s.model.spec.encoder else core.decoder).layers[s.layer]
    weights = {name: p for name, p in module.named_parameters() if not name.endswith("bias")}
    count = f"{sum(p.numel() for p in module.parameters()):,}"
    rows = list(flow(s, weights))
    fig = blank(9, 0.7 * len(rows) + 1)
    ax = fig.subplots()
    ax.set_axis_off()
    ax.set_xlim(0, 10)
    ax.set_ylim(-0.6, len(rows) - 0.4)
    fig.suptitle(s.say(f"Transformer Block：{s.block}，{count} 个可训练参数（蓝色）",
                       f"Transformer block: {s.block}, {count} trainable parameters (blue)"))  # fmt: skip
    residual, start, apart = (s.model.spec.encoder or s.model.spec.stack).blocks[s.layer].residual, 0, 0
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
            ax.plot([3, 0.3, 0.3, 4.6], [start, start, y, y], color="gray", linewidth=1, zorder=0)
            apart = apart or (y + 1 if residual == "parallel" else 0)
        if boxes[0][0].startswith(("attn_in", "ffn_in") if residual == "normed" else ("resid", "⊕")):
            start = y
    return fig


Boxes = list[tuple[str, bool]]  # a row of boxes: a text, and whether it is trained


def flow(s: Scene, weights: Mapping[str, Tensor]) -> Iterator[Boxes]:
    """The rows of a layer, in the order of the forward pass."""
    spec = (s.model.spec.encoder or s.model.spec.stack).blocks[s.layer]
    yield stream(s, "resid_in")
    for part in ("attn", "moe" if spec.moe else "ffn"):
        slot = "ffn" if part == "moe" else part
        inside, last = f"{spec.attn.heads} × softmax(Q·K/√K)·V", ("attn.out",)
        if part != "attn":
            one = spec.moe.expert if spec.moe else spec.ffn
            assert one is not None  # a layer has one of the two
            inside, last = one.activation, (f"{part}.down", "moe.shared.down")
        yield from boxes(weights, f"{slot}_in.")
        yield from boxes(weights, f"{part}.", without=last)
        yield [(inside, False)]
        yield from (row for start in last for row in boxes(weights, start))
        yield from boxes(weights, f"{slot}_out.")
        times = f" × {spec.carry:g}" if spec.carry != 1.0 else ""
        if spec.residual != "none":
            yield [(s.say("⊕ 残差相加", "⊕ residual") + times, False)]
        yield from boxes(weights, f"{slot}_sum.")
        if part == "attn" and f"{s.block}.resid_mid" in s.t.known:
            yield stream(s, "resid_mid")
    yield stream(s, "resid_out")


def stream(s: Scene, name: str) -> Boxes:
    """The residual stream at a place, with the root of its numbers' mean square."""
    x = s(name)
    size = f"{float(x.square().mean().sqrt()):.3f}"
    return [(f"{name} {[*x.shape]}  " + s.say(f"均方根 {size}", f"root mean square {size}"), False)]


def boxes(weights: Mapping[str, Tensor], start: str, *, without: tuple[str, ...] = ()) -> Iterator[Boxes]:
    """The weights whose names begin so, three in a row."""
    found = [(f"{name.removesuffix('.weight')}\n{[*p.shape]} = {p.numel():,}", True) for name, p in weights.items()
             if name.startswith(start) and not name.startswith(without or "-")]  # fmt: skip
    yield from (found[i : i + 3] for i in range(0, len(found), 3))


def update(s: Scene, text: str, word: str | None, seed: int) -> "Figure":
    """A word's vector after each update of a fresh model that learns this text, and in the model itself."""
    model, say = s.model, s.say
    assert model.tokenizer is not None  # the text was read with it
    ids = model.ids(text)
    token = where.spelt(model.tokenizer, word, "source")[-1] if word else ids[0]
    rows, losses = learnt(model, ids, token, seed)
    far = [float((row - rows[0]).norm()) for row in rows]
    trained = table(model.core, model)[token].detach().float().cpu()
    kept = torch.stack([*rows, trained])[:, :NUMBERS]
    labels = [say("初始化（随机）", "at first (random)"),
              *(say(f"第 {n} 次更新", f"update {n}") for n in range(1, len(rows))),
              say("这个训练好的模型", "this trained model")]  # fmt: skip
    fig = blank(11, 6.5)
    name, size = where.word(s.t, token), kept.shape[1]
    fig.suptitle(say(f"“{name}”的词向量在训练中（前 {size} 个数，种子 {seed}）",
                     f"The vector of “{name}” while it is trained (first {size} numbers, seed {seed})"))  # fmt: skip
    top, below = fig.subplots(2, 1, gridspec_kw={"height_ratios": [3, 2]})
    each = kept / kept.abs().amax(1, keepdim=True).clamp_min(1e-30)
    grid_axes(top, Grid(Message(), labels, [""] * size, each))
    sides = ((below, far, BLUE, say("离初始化多远 |e − e₀|", "how far it moved |e − e₀|")),
             (below.twinx(), losses, ORANGE, say("损失", "loss")))  # fmt: skip
    for ax, values, colour, label in sides:
        ax.plot(range(len(values)), values, color=colour, marker="o")
        ax.set_ylabel(label, color=colour)
    below.set_xlabel(say("更新次数", "updates"))
    return fig


def learnt(model: Model, ids: list[int], token: int, seed: int) -> tuple[list[Tensor], list[float]]:
    """The token's row of the table [D] before and after each update of fresh weights, and the loss at each.

    Raises:
        QkvError: one token, which nothing comes after.
    """
    if len(ids) < 2:
        raise QkvError("figures: the text is one token, from which nothing can be learnt; give a longer one",
                       zh="图：文本只有一个 token，学不到什么；请给长些的")  # fmt: skip
    core = Transformer(model.spec)
    initialise(core, seed)
    said = model.translate(model.text(ids), beam=1).tokens if model.encoder_decoder else []
    optimiser = torch.optim.AdamW(core.parameters(), lr=RATE)
    rows, losses = [table(core, model)[token].detach().clone()], list[float]()
    for n in range(UPDATES + 1):
        loss = loss_of(core, model, ids, said)
        losses.append(float(loss.detach()))
        if n < UPDATES:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rows.append(table(core, model)[token].detach().clone())
    return rows, losses


def loss_of(core: Transformer, model: Model, ids: list[int], said: list[int]) -> Tensor:
    """The mean cross-entropy of the text's own next tokens, of its translation's, or of every third one, hidden."""
    if not model.spec.decoder:
        target, hidden = torch.tensor([ids]), torch.arange(len(ids)) % 3 == 1
        assert model.tokenizer is not None
        given = target.masked_fill(hidden, model.tokenizer.mask_id or 0)
        return F.cross_entropy(core(given, begin(core.encoder, given))[0, hidden], target[0, hidden])
    if model.encoder_decoder:
        source = torch.tensor([ids])
        start = [] if model.special.start is None else [model.special.start]
        given, target = Given(memory=core.encode(source, begin(core.encoder, source))), torch.tensor([[*start, *said]])
    else:
        given, target = Given(), torch.tensor([ids])
    logits = core(target[:, :-1], begin(core.decoder, target[:, :-1], given))
    return F.cross_entropy(logits[0], target[0, 1:])


def table(core: Transformer, model: Model) -> Tensor:
    """The embedding table of the text's side."""
    return (core.source_embed if model.encoder_decoder and model.spec.sources else core.embed).weight
