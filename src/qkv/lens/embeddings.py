"""Words as vectors: neighbours and analogies in the embedding table.

Letters: V vocabulary, D width.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.arguments import Count
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.messages import Message
from qkv.plots.forms import Bars, Drawn, Form

Side = Literal["source", "target"]


@dataclass(frozen=True)
class Neighbour:
    """A token near a word: its id, how it looks, and the cosine between the two vectors."""

    id: int
    piece: str
    cosine: float


class Neighbours(list[Neighbour], Drawn):
    """Tokens near a word or a point, the nearest first; `title` says near what."""

    title: str = ""

    def forms(self) -> tuple[Form, ...]:
        """The cosine of each."""
        return (Bars(self.title, [n.piece for n in self], [n.cosine for n in self]),)


class Source(Protocol):
    """Where the words are: a model, or a trace of it."""

    core: Transformer
    tokenizer: Any


def embedding_table(core: Transformer, side: str = "target") -> Tensor:
    """The embedding table [V, D]; an encoder with a vocabulary of its own has another one."""
    return (core.source_embed if side == "source" and core.spec.sources else core.embed).weight.detach()


def word_vector(t: Source, word: str, side: str = "target") -> tuple[Tensor, list[int]]:
    """A word's row of the embedding table [D], the mean of its pieces' where it has several; and their ids."""
    if t.tokenizer is None:
        raise QkvError("words need a tokenizer: this model has none")
    ids = resolve.encode_word(t.tokenizer, word, side)
    return embedding_table(t.core, side)[ids].float().mean(0), ids


def find_neighbours(t: Source, word: str, n: Count = 10, *, side: Side = "target") -> Neighbours:
    """The n tokens whose embeddings point most nearly the same way as a word's, the nearest first."""
    found, ids = word_vector(t, word, side)
    title = Message("{word}: nearest in the embedding table", word=word)
    return find_nearest(t, found, n, without=ids, side=side, title=title)


def solve_analogy(t: Source, a: str, b: str, c: str, *, n: Count = 5, side: Side = "target") -> Neighbours:
    """a is to b as c is to…: the tokens nearest to b - a + c on the unit sphere, a, b and c left out.

    Mikolov et al. 2013 (Linguistic regularities, section 4); whether it holds is a fact about this very table.
    """
    found = [word_vector(t, w, side) for w in (a, b, c)]
    va, vb, vc = (F.normalize(v, dim=0) for v, _ in found)
    ids, title = [i for _, ids in found for i in ids], Message("{a} : {b} = {c} : ?", a=a, b=b, c=c)
    return find_nearest(t, vb - va + vc, n, without=ids, side=side, title=title)


def find_nearest(t: Source, to: Tensor, n: int, *, without: list[int], side: str, title: str) -> Neighbours:
    """The n tokens nearest to a vector by cosine, but for some; rows of the table that no token has are left out."""
    table, tokenizer = embedding_table(t.core, side), t.tokenizer
    rows = table[: len(tokenizer)] if hasattr(tokenizer, "__len__") else table
    cosine = F.cosine_similarity(rows.float(), to[None].to(rows.device), dim=-1)  # V
    cosine[[i for i in without if i < len(cosine)]] = -torch.inf
    best = cosine.topk(min(n, len(cosine) - len(set(without))))
    ids = best.indices.tolist()
    near = Neighbours(Neighbour(*row) for row in zip(ids, tokenizer.pieces(ids), best.values.tolist(), strict=True))
    near.title = title
    return near
