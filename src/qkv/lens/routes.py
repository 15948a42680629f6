"""Which experts read which token, layer by layer, and how the work was shared out.

Letters: T tokens, E experts, J chosen experts.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.core.experts import Experts
from qkv.errors import QkvError
from qkv.lens import where

if TYPE_CHECKING:
    from qkv.lens.trace import Trace


@dataclass(frozen=True)
class Route:
    """One layer's routing: the chosen experts `index` [T, J] with `weight` [T, J], and the `load` of each expert [E].

    `score` [T, E] is what the router thought; `choice` [T, E] is that with the bias that helps to choose.
    """

    path: str
    index: Tensor
    weight: Tensor
    score: Tensor
    choice: Tensor
    load: Tensor


def routes(t: "Trace", *, row: int = 0, run: int | None = None) -> tuple[Route, ...]:
    """The routing of every layer that has experts, from the first one up.

    Raises:
        QkvError: the model has no experts, or their taps were not saved.
    """
    if not modules(t):
        raise QkvError("routes: this model has no experts; every token passes the same feed-forward networks")
    found: list[Route] = []
    for path, moe in modules(t).items():
        for name in ("logits", "index", "weight"):
            if f"{path}.{name}" not in t.needed:
                raise QkvError(f'routes: {path}.{name} was not saved; add it: save=["routes"]')
        logits, index, weight = (t.get(f"{path}.{n}", run=run)[row] for n in ("logits", "index", "weight"))
        score = logits.softmax(-1) if moe.spec.score == "softmax" else logits.sigmoid()
        choice = score + moe.bias if moe.spec.balance == "bias" else score
        load = torch.bincount(index.flatten(), minlength=moe.spec.count)
        found.append(Route(path, index, weight, score, choice, load))
    return tuple(found)


def modules(t: "Trace") -> dict[str, Experts]:
    """The experts of the stack that speaks, by path."""
    stack = t.core.decoder if where.side(t) == "decoder" else t.core.encoder
    return {m.path: m for m in stack.modules() if isinstance(m, Experts)}
