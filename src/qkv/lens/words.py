"""Words as vectors: neighbours and analogies in the embedding table, and how a word moves through the layers.

Letters: V vocabulary, D width, L layers, N anchors.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.model import Transformer, build_step
from qkv.errors import QkvError
from qkv.lens import where
from qkv.messages import Message
from qkv.plots.forms import Bars, Drawn, Form, Lines

if TYPE_CHECKING:
    from qkv.lens.trace import Trace


@dataclass(frozen=True)
class Near:
    """A token near a word: its id, how it looks, and the cosine between the two vectors."""

    id: int
    piece: str
    cosine: float


class Nears(list[Near], Drawn):
    """Tokens near a word or a point, the nearest first; `title` says near what."""

    title: str = ""

    def forms(self) -> tuple[Form, ...]:
        """The cosine of each."""
        return (Bars(self.title, [n.piece for n in self], [n.cosine for n in self]),)


@dataclass(frozen=True)
class Shift(Drawn):
    """A word's way: `cosine` [L+1, N] to each anchor after each layer, row 0 before the first one.

    With two anchors `between` [L+1] says where on the line from the first (0) to the second (1) the word's state lies.
    """

    word: str
    anchors: tuple[str, ...]
    names: tuple[str, ...]
    cosine: Tensor
    between: Tensor | None

    def forms(self) -> tuple[Form, ...]:
        """A line for each anchor, and with two of them the place between."""
        names = [n.removesuffix(".resid_out") for n in self.names]
        series = {f"cos {a}": self.cosine[:, i].tolist() for i, a in enumerate(self.anchors)}
        if self.between is not None:
            series[f"{self.anchors[0]} 0 … 1 {self.anchors[1]}"] = self.between.tolist()
        return (Lines(Message("where {word} moves, layer by layer", word=self.word), names, series),)


def table(core: Transformer, side: str = "target") -> Tensor:
    """The embedding table [V, D]; an encoder with a vocabulary of its own has another one."""
    return (core.source_embed if side == "source" and core.spec.sources else core.embed).weight.detach()


def vector(core: Transformer, tokenizer: Any, word: str, side: str = "target") -> tuple[Tensor, list[int]]:
    """A word's row of the embedding table [D], the mean of its pieces' where it has several; and their ids."""
    if tokenizer is None:
        raise QkvError("words need a tokenizer: this model has none")
    ids = where.spelt(tokenizer, word, side)
    return table(core, side)[ids].float().mean(0), ids


def neighbours(core: Transformer, tokenizer: Any, word: str, n: int = 10, *, side: str = "target") -> Nears:
    """The n tokens whose embeddings point most nearly the same way as a word's, the nearest first."""
    found, ids = vector(core, tokenizer, word, side)
    near = nearest(core, tokenizer, found, n, ids, side)
    near.title = Message("{word}: nearest in the embedding table", word=word)
    return near


def analogy(
    core: Transformer, tokenizer: Any, a: str, b: str, c: str, *, n: int = 5, side: str = "target"
) -> Nears:
    """a is to b as c is to…: the tokens nearest to b - a + c on the unit sphere, a, b and c left out.

    Mikolov et al. 2013 (Linguistic regularities, section 4); whether it holds is a fact about this very table.
    """
    found = [vector(core, tokenizer, w, side) for w in (a, b, c)]
    va, vb, vc = (F.normalize(v, dim=0) for v, _ in found)
    near = nearest(core, tokenizer, vb - va + vc, n, [i for _, ids in found for i in ids], side)
    near.title = Message("{a} : {b} = {c} : ?", a=a, b=b, c=c)
    return near


def nearest(core: Transformer, tokenizer: Any, to: Tensor, n: int, without: list[int], side: str) -> Nears:
    """The n tokens nearest to a vector by cosine, but for some; rows of the table that no token has are left out."""
    rows = table(core, side)[: len(tokenizer)] if hasattr(tokenizer, "__len__") else table(core, side)
    cosine = F.cosine_similarity(rows.float(), to[None].to(rows.device), dim=-1)  # V
    cosine[[i for i in without if i < len(cosine)]] = -torch.inf
    best = cosine.topk(min(n, len(cosine) - len(set(without))))
    ids = best.indices.tolist()
    return Nears(Near(*row) for row in zip(ids, tokenizer.pieces(ids), best.values.tolist(), strict=True))


def shift(
    t: "Trace", pos: int | str, anchors: list[str], *, row: int = 0, run: int | None = None, side: str = ""
) -> Shift:
    """How the state of a word moves towards anchors, layer by layer; `side="encoder."` looks at the source.

    Each anchor is read by the same stack as a text of its own, and compared layer by layer: states of different layers
    have no common axes. The state of a word is that of its last piece.
    """
    if not anchors:
        raise QkvError("shift: name at least one anchor, such as a word that the meaning might move to")
    prefix = side if side and t.core.spec.decoder and t.core.spec.encoder else where.dot(t)
    stack = t.core.encoder if where.side(t, prefix) == "encoder" else t.core.decoder
    names = (f"{prefix}embed", *(f"{prefix}layers.{i}.resid_out" for i in range(len(stack.layers))))
    if not set(names) <= t.needed:
        raise QkvError('shift: the states after each layer were not saved; add them: save=["shift"]')
    slot = where.spot(t, pos, path=prefix, row=row, run=run)
    states = torch.stack([t.get(name, run=run)[row, slot].float() for name in names])  # L D
    goals = torch.stack([alone(t, word, names) for word in anchors], 1)  # L N D
    cosine = F.cosine_similarity(states[:, None], goals, dim=-1)
    between = None
    if len(anchors) == 2:
        way = goals[:, 1] - goals[:, 0]  # L D
        between = ((states - goals[:, 0]) * way).sum(-1) / way.square().sum(-1).clamp_min(1e-30)
    piece = where.shown(t, where.passed(t, prefix, run).ids[row, slot : slot + 1].tolist())[0]
    return Shift(pos if isinstance(pos, str) else piece, tuple(anchors), names, cosine, between)


@torch.no_grad()
def alone(t: "Trace", word: str, names: tuple[str, ...]) -> Tensor:
    """The states [L+1, D] of a word's last piece where the word is the whole text."""
    from qkv.lens.trace import Trace

    core, encoder = t.core, where.side(t, names[0]) == "encoder"
    ids = torch.tensor([where.spelt(where.tokens(t), word, "source" if encoder else "target")])
    ids = ids.to(core.embed.weight.device)
    stack = core.encoder if encoder else core.decoder
    table = core.source_embed if encoder and core.spec.sources else core.embed
    if stack.spec.blocks[0].cross:
        raise QkvError("shift: a decoder that reads a source says nothing of a word alone; look at "
                       "side='encoder.'")
    with Trace(core, save=list(names)) as heard:
        stack(table(ids), build_step(stack, ids, mode="prefill"))
    return torch.stack([heard[name][0, -1].float() for name in names])
