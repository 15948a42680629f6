"""Which experts read which token, layer by layer, and how the work was shared out.

Letters: T tokens, E experts, J chosen experts.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.experts import Experts
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.edge_ablation import Case, make_inputs
from qkv.lens.recording import Recording
from qkv.messages import Message
from qkv.plots.forms import Bars, Drawn, Form, Grid


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


class Routes(tuple[Route, ...], Drawn):
    """The routing layer by layer; `read` are the tokens."""

    read: tuple[str, ...] = ()

    def forms(self) -> tuple[Form, ...]:
        """For each layer the experts of each token with their weights, and how often each was chosen."""
        made: list[Form] = []
        for r in self:
            weight = torch.zeros(len(r.index), len(r.load)).scatter_(1, r.index.cpu(), r.weight.float().cpu())
            cells = [[f"{w:.2f}" if w else "" for w in row] for row in weight.T.tolist()]
            experts = [f"{e}" for e in range(len(r.load))]
            title = Message("{path}: which experts read each token", path=r.path)
            made.append(Grid(title, experts, self.read, weight.T, cells))
            load = Message("{path}: load of each expert", path=r.path)
            made.append(Bars(load, experts, r.load.tolist()))
        return tuple(made)


def read_routing(t: Recording, *, row: int = 0, run: int | None = None) -> Routes:
    """The routing of every layer that has experts, from the first one up.

    Raises:
        QkvError: the model has no experts, or their taps were not saved.
    """
    experts, parts = expert_modules(t), ("logits", "index", "weight")
    if not experts:
        raise QkvError("routes: this model has no experts; every token passes the same feed-forward networks")
    found: list[Route] = []
    for path, moe in experts.items():
        resolve.require_saved(t, "routes", *(f"{path}.{n}" for n in parts))
        logits, index, weight = (t.get(f"{path}.{n}", run=run)[row] for n in parts)
        score = logits.softmax(-1) if moe.spec.score == "softmax" else logits.sigmoid()
        choice = score + moe.bias if moe.spec.balance == "bias" else score
        load = torch.bincount(index.flatten(), minlength=moe.spec.num_experts)
        found.append(Route(path, index, weight, score, choice, load))
    made = Routes(found)
    made.read = resolve.tokens_read(t, row=row, run=run)
    return made


def expert_modules(t: Recording) -> dict[str, Experts]:
    """The experts of the stack that writes, by path."""
    return {m.path: m for m in t.core.stack.modules() if isinstance(m, Experts)}


@dataclass(frozen=True)
class ExpertTokens:
    """What a layer's experts read over many texts: the share of all choices that fell on each, and its own tokens.

    `tokens` lists for each expert (id, how often it read it, how often the token occurred), those that it reads more
    than its share first: by count times the log of share among the token's choices over the share among all (a G-test).
    """

    path: str
    share: tuple[float, ...]
    tokens: tuple[tuple[tuple[int, int, int], ...], ...]


@torch.no_grad()
def count_expert_tokens(core: Transformer, cases: Iterable[Case], *, top: int = 8) -> list[ExpertTokens]:
    """Read texts (a source with what is written after it, word for word as given) and count who read which token.

    Raises:
        QkvError: the model has no experts, or there is no text.
    """
    reads, seen = defaultdict[str, Counter[tuple[int, int]]](Counter), Counter[int]()
    experts: dict[str, Experts] = {}
    for case in cases:
        ids = torch.tensor([case.target], device=core.embed.weight.device)
        with Recording(core, save=["routes"]) as t:
            core.hidden(ids, make_inputs(core, [case]), mode="prefill")
        seen.update(case.target)
        for r in read_routing(t):
            reads[r.path].update((e, i) for i, row in zip(case.target, r.index.tolist(), strict=True) for e in row)
        experts = expert_modules(t)
    if not experts:
        raise QkvError("experts: there is no text to read")
    return [rank_tokens(path, reads[path], seen, moe.spec.num_experts, top) for path, moe in experts.items()]


def rank_tokens(path: str, reads: Counter[tuple[int, int]], seen: Counter[int], experts: int, top: int) -> ExpertTokens:
    """The share of each expert, and the tokens that it reads more than that share."""
    whole, chosen = reads.total(), [0] * experts
    for (e, _), n in reads.items():
        chosen[e] += n
    each = whole / seen.total()  # experts that read a token
    best: list[list[tuple[float, int, int, int]]] = [[] for _ in range(experts)]
    for (e, token), n in reads.items():
        best[e].append((n * math.log(n * whole / (each * seen[token] * chosen[e])), token, n, seen[token]))
    rows = tuple(tuple(found[1:] for found in sorted(one, reverse=True)[:top] if found[0] > 0) for one in best)
    return ExpertTokens(path, tuple(n / whole for n in chosen), rows)
