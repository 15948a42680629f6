"""What a trace says, read off without another run: guesses by layer, the strongest edges, the alignment.

Attention weights say where a head looked, not what mattered: patch.py measures that.
Letters: B rows, T positions, S source positions, H heads, L layers, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.lens import where
from qkv.lens.trace import Trace
from qkv.messages import Message
from qkv.plots.forms import Drawn, Form, Grid
from qkv.spec import Spec

Part = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True)
class Guesses(Drawn):
    """The likeliest next tokens after each layer: `ids` and `chances` [L+1, T, N], the likeliest first.

    Row 0 is the embedding, the last row is what the model says. `used` is False where the guess was thrown away
    because the next token was given. `read` are the positions' own tokens, `best` [L+1][T] the likeliest ones in words.
    """

    names: tuple[str, ...]
    ids: Tensor
    chances: Tensor
    used: tuple[bool, ...]
    read: tuple[str, ...] = ()
    best: tuple[tuple[str, ...], ...] = ()

    def forms(self) -> tuple[Form, ...]:
        """The likeliest token in each cell, the last layer first; brackets mark what was thrown away."""
        chances, names = self.chances[..., 0].float().flip(0), [n.removesuffix(".resid_out") for n in self.names]
        cells = [
            [f"{word} {100 * p:.0f}%" if used else f"({word})" for word, p, used in zip(*row, self.used, strict=True)]
            for row in zip(self.best[::-1], chances.tolist(), strict=True)
        ]
        note = Message("brackets: the next token was given, so the guess was thrown away")
        used = torch.tensor(self.used, device=chances.device)
        title = Message("guesses after each layer")
        return (Grid(title, names[::-1], self.read, chances * used, cells, Message() if all(self.used) else note),)


@dataclass(frozen=True)
class Edge:
    """A query looked at a key: how much, in which layer and head."""

    layer: int
    head: int
    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Alignment(Drawn):
    """How much each target position looked at each source position: `weight` [T, S], mean over a layer's heads."""

    layer: int
    weight: Tensor
    target: tuple[str, ...] = ()
    source: tuple[str, ...] = ()

    def forms(self) -> tuple[Form, ...]:
        """Target rows over source columns, in percent."""
        cells = [[f"{100 * w:.0f}" if w >= 0.01 else "" for w in row] for row in self.weight.tolist()]
        title = Message("alignment (layer {layer}, %): where each row's token looked once it was read",
                        layer=self.layer + 1)
        return (Grid(title, self.target, self.source, self.weight, cells),)


def layers(t: Trace, part: Part) -> list[str]:
    """The paths of the attentions of a part, from the first layer up."""
    return paths(t.core.spec, part)


def paths(spec: Spec, part: Part) -> list[str]:
    """The same for a model of that spec."""
    stack = spec.encoder if part == "encoder" else spec.decoder
    if stack is None or (part == "cross" and stack.blocks[0].cross is None):
        raise QkvError("this model has no {part}", part=part)
    dot = ("encoder." if part == "encoder" else "decoder.") if spec.encoder and spec.decoder else ""
    return [f"{dot}layers.{i}.{'cross' if part == 'cross' else 'attn'}" for i in range(len(stack.blocks))]


@torch.no_grad()
def logits(
    t: Trace, *, row: int = 0, run: int | None = None, places: slice = slice(None)
) -> tuple[tuple[str, ...], Tensor]:
    """Each layer's own guess: its states through the final norm and the head, [L+1, T, V] (nostalgebraist 2020).

    The final norm is computed anew for each layer, so the last row equals the model's logits. Early layers speak
    another basis than the head reads: their guesses are a picture, not a belief.
    """
    core, spec = t.core, t.core.spec
    if spec.head is None:
        raise QkvError("lens: this model has no head, so its layers guess no tokens")
    stack = core.decoder if spec.decoder else core.encoder
    dot = "decoder." if spec.encoder and spec.decoder else ""
    taps = (f"{dot}embed", *(f"{dot}layers.{i}.resid_out" for i in range(len(stack.layers))))
    if not set(taps) <= t.needed:
        raise QkvError('lens: the states after each layer were not saved; add them: save=["lens"]')
    states = torch.stack([t.get(n, run=run)[row, places] for n in taps])  # L T D
    return taps, core.head(stack.final_norm(states)).float()


def lens(
    t: Trace, *, top: int = 5, row: int = 0, prompt: int | None = None, run: int | None = None,
    pos: int | str | None = None,
) -> Guesses:  # fmt: skip
    """The `top` likeliest next tokens after each layer, at each position or at `pos`; `prompt` positions are given.

    Without `prompt`, the guesses that generation could use are those at the last position of each call.
    """
    kept = slice(None)
    if pos is not None:
        slot = where.spot(t, pos, row=row, run=run)
        kept = slice(slot, slot + 1)
    taps, rows = logits(t, row=row, run=run, places=kept)
    best = rows.softmax(-1).topk(min(top, rows.shape[-1]), -1)
    heard = t.run(taps[0], run)
    used = heard.used if prompt is None else [i >= prompt - 1 for i in range(heard.ids.shape[1])]
    ids, read = best.indices[..., 0].tolist(), heard.ids[row].tolist()
    words = tuple(tuple(t.tokenizer.pieces(r) if t.tokenizer else map(str, r)) for r in ids)
    return Guesses(taps, best.indices, best.values, tuple(used[kept]), tuple(where.shown(t, read))[kept], words)


def edges(t: Trace, query: int, *, part: Part = "decoder", top: int = 10, row: int = 0) -> list[Edge]:
    """The strongest edges from one position, over all layers and heads of a part."""
    found: list[Edge] = []
    for layer, path in enumerate(layers(t, part)):
        weight = t[f"{path}.pattern"][row, :, query]  # H S
        best = weight.flatten().topk(min(top, weight.numel()))
        for w, i in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            found.append(Edge(layer, i // weight.shape[1], query, i % weight.shape[1], w))
    return sorted(found, key=lambda e: -e.weight)[:top]


def alignment(t: Trace, *, layer: int | None = None, row: int = 0, source: int | None = None) -> Alignment:
    """The soft alignment of one layer's cross-attention; `source` counts the real words to be covered, end tokens not.

    Without `layer`, the one is chosen that covers the source best: the mean over source words of the largest share that
    any target position gave them. A layer that rests on one token covers little.
    """
    across = layers(t, "cross")
    maps = [t[f"{p}.pattern"][row].mean(0) for p in (across if layer is None else [across[layer]])]  # each T S
    words = where.heard(t, row=row), where.heard(t, "encoder.", row=row)
    if layer is None:
        covers = [m[:, :source].amax(0).mean() for m in maps]
        layer = int(torch.stack(covers).argmax())
        return Alignment(layer, maps[layer], *words)
    return Alignment(layer, maps[0], *words)
