"""Whether an attention edge or a head matters: remove it, run again, and compare the target's probability.

Many cuts run side by side: each row of a batch is one sentence with its own cut. Letters: N rows, T target tokens,
S source tokens, H heads, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from qkv import spec as parts
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.data.collate import pad_with_mask
from qkv.errors import QkvError
from qkv.lens.edit import Edit, ablate, hide
from qkv.lens.recording import Recording

Side = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True)
class Case:
    """A sentence with a question: how likely is `target[at]`? `source` is empty for a decoder alone.

    `target` holds what the decoder reads and predicts, with its start token, so `at` is at least 1. A prefix decoder
    sees the first `free` tokens of it freely.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    at: int
    free: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.at < len(self.target):
            raise QkvError("case: at = {at}, expected 1 to {target}: a token with one before it", at=self.at,
                           target=len(self.target) - 1)


@dataclass(frozen=True)
class EdgeCut:
    """One or more edges of a row to be removed: from `query` to `key`; None stands for every layer or head."""

    query: int
    key: int
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class CutEffect:
    """What a cut did: the log-probability of the target before and after, and the likeliest token afterwards."""

    cut: EdgeCut
    before: float
    after: float
    instead: int

    @property
    def drop(self) -> float:
        """How much log-probability was lost, in nats: large where the edge mattered."""
        return self.before - self.after


@dataclass(frozen=True)
class TargetScores:
    """Teacher-forced answers: the log-probability of each target token [N, T], and the likeliest token there [N, T].

    Column 0, the start token, and padding are 0.
    """

    logprobs: Tensor
    best: Tensor


@torch.no_grad()
def score_targets(core: Transformer, cases: Sequence[Case], edits: Sequence[Edit] = ()) -> TargetScores:
    """The model's log-probability of every target token of every case, with edits."""
    target, real = pad_with_mask([c.target for c in cases], core.embed.weight.device)
    with Recording(core, edit=edits):
        logits = core(target, make_inputs(core, cases), mode="prefill").logits[:, :-1].float()  # N T V
    chance = logits.log_softmax(-1).gather(-1, target[:, 1:, None])[..., 0] * real[:, 1:]
    return TargetScores(torch.nn.functional.pad(chance, (1, 0)), torch.nn.functional.pad(logits.argmax(-1), (1, 0)))


@torch.no_grad()
def score_answers(
    core: Transformer, cases: Sequence[Case], edits: Sequence[Edit] = (), *, once: bool = False
) -> tuple[Tensor, Tensor]:
    """The log-probability of each case's target[at] and the likeliest token, [N] each: cheaper than `score_targets`.

    With `once` equal sources are encoded together, as the edits leave the encoder alone.
    """
    device = core.embed.weight.device
    target, _ = pad_with_mask([c.target for c in cases], device)
    rows, at = torch.arange(len(cases), device=device), torch.tensor([c.at for c in cases], device=device)
    with Recording(core, edit=edits):
        given = make_inputs(core, cases, once=once)
        states = core.hidden(target, given, mode="prefill")[rows, at - 1]  # N D
        logits = core.head(states).float()  # N V
    return logits.log_softmax(-1)[rows, target[rows, at]], logits.argmax(-1)


def make_inputs(core: Transformer, cases: Sequence[Case], *, once: bool = False) -> Inputs:
    """What the decoder is given with its targets: the encoder's states of the sources, or how far it sees freely."""
    device, sources = core.embed.weight.device, [c.source for c in cases]
    if not (core.spec.encoder and core.spec.decoder):
        free = [c.free for c in cases]
        return Inputs(prefix_len=torch.tensor(free, device=device) if any(free) else None)
    read = list(dict.fromkeys(sources)) if once else sources
    source, there = pad_with_mask(read, device)
    memory = core.encode(source, Inputs(padding_mask=there), mode="prefill")
    if len(read) < len(sources):
        place = {ids: row for row, ids in enumerate(read)}
        rows = torch.tensor([place[ids] for ids in sources], device=device)
        memory, there = memory[rows], there[rows]
    return Inputs(memory=memory, source_padding_mask=there)


def attentions_of(core: Transformer, side: Side) -> list[tuple[str, parts.Attention | parts.Latent]]:
    """The attentions of a side, from the first layer up: the path of each and its spec."""
    spec = core.spec
    both = bool(spec.encoder and spec.decoder)
    stack = spec.encoder if side == "encoder" else spec.decoder
    if stack is None or spec.decoder is None or (side == "cross" and not both):
        raise QkvError("patch: this model has no {side} attention that its decoder's words depend on",
                       side=side)
    dot = ("encoder." if side == "encoder" else "decoder.") if both else ""
    name = "cross" if side == "cross" else "attn"
    found = [(f"{dot}layers.{i}.{name}", b.cross if side == "cross" else b.attn) for i, b in enumerate(stack.blocks)]
    return [(path, at) for path, at in found if at]


def make_edits(core: Transformer, cases: Sequence[Case], cuts: Sequence[EdgeCut | None], side: Side) -> list[Edit]:
    """The cuts of each row as edits of that side's attention."""
    queries = max(len(c.source if side == "encoder" else c.target) for c in cases)
    keys = max(len(c.target if side == "decoder" else c.source) for c in cases)
    found: list[Edit] = []
    for layer, (path, at) in enumerate(attentions_of(core, side)):
        gone = torch.zeros(len(cases), at.heads, queries, keys, dtype=torch.bool)
        for row, cut in enumerate(cuts):
            if cut and cut.layer in (None, layer):
                gone[row, slice(None) if cut.head is None else cut.head, cut.query, cut.key] = True
        if bool(gone.any()):
            found.append(hide(path, gone))
    return found


def run_cuts(
    core: Transformer, cases: Sequence[Case], cuts: Sequence[EdgeCut | None], *, side: Side, rows: int = 512
) -> Iterator[tuple[Tensor, Tensor]]:
    """Log-probabilities and likeliest tokens, [T] each, of every case under its cut, in order."""
    for i in range(0, len(cases), rows):
        part = cases[i : i + rows]
        found = score_targets(core, part, make_edits(core, part, cuts[i : i + rows], side))
        for case, logprobs, best in zip(part, found.logprobs, found.best, strict=True):
            yield logprobs[: len(case.target)], best[: len(case.target)]


def score_cuts(
    core: Transformer, cases: Sequence[Case], cuts: Sequence[EdgeCut | None], *, side: Side, rows: int = 256
) -> Tensor:
    """log P(target[at]) of every case under its cut [N]; those of like length run together."""
    found = torch.empty(len(cases))
    order = sorted(range(len(cases)), key=lambda i: (len(cases[i].source), len(cases[i].target)))
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        some = [cases[i] for i in part]
        edits = make_edits(core, some, [cuts[i] for i in part], side)
        found[part] = score_answers(core, some, edits, once=side != "encoder")[0].cpu()
    return found


def measure_edge_drops(
    core: Transformer, cases: Sequence[Case], queries: Sequence[int], *, side: Side = "encoder"
) -> list[Tensor]:
    """Which words a query needs: for each case, the drop of log P(target[at]) when its edge to each key is cut, [S].

    `queries` gives one position per case: of the source for the encoder, of the target for the decoder and for `cross`
    (whose keys are the source; position `at - 1` writes `target[at]`). The edge is cut in all layers and heads at once;
    a decoder's query has keys up to itself only. All cases run in one go.
    """
    rows: list[Case] = []
    cuts: list[EdgeCut | None] = []
    sizes: list[int] = []
    for case, query in zip(cases, queries, strict=True):
        size = query + 1 if side == "decoder" else len(case.source)
        sizes.append(size)
        rows += [replace(case, target=case.target[: case.at + 1])] * (size + 1)
        # one key left alone cannot be cut: a query must look somewhere
        cuts += [None, *(EdgeCut(query, key) if size > 1 else None for key in range(size))]
    found = score_cuts(core, rows, cuts, side=side).tolist()
    drops: list[Tensor] = []
    for size in sizes:
        now, found = found[: size + 1], found[size + 1 :]
        drops.append(now[0] - torch.tensor(now[1:]))
    return drops


def rank_edges_by_effect(
    core: Transformer, case: Case, query: int, *, keys: Sequence[int] | None = None, side: Side = "encoder",
    by: Literal["all", "layer", "head"] = "all",
) -> list[CutEffect]:
    """What cutting each edge from `query` does to the target, the largest drop first.

    `by` cuts an edge in all layers and heads at once, in one layer, or in one head.
    """
    size = query + 1 if side == "decoder" else len(case.source)
    spots: list[tuple[int | None, int | None]] = [(None, None)]
    if by != "all":
        layers = enumerate(attentions_of(core, side))
        spots = [(i, h) for i, (_, at) in layers for h in ([None] if by == "layer" else range(at.heads))]
    keys = range(size) if keys is None else keys
    cuts: list[EdgeCut | None] = [None]
    cuts += [EdgeCut(query, key, layer, head) for layer, head in spots for key in keys]
    results = list(run_cuts(core, [case] * len(cuts), cuts, side=side))
    before = float(results[0][0][case.at])
    effects = [
        CutEffect(cut, before, float(lp[case.at]), int(best[case.at]))
        for cut, (lp, best) in zip(cuts, results, strict=True) if cut
    ]
    return sorted(effects, key=lambda e: -e.drop)


def cut_every_edge(core: Transformer, case: Case, *, side: Side = "encoder") -> tuple[Tensor, Tensor, Tensor]:
    """Each query-key edge of a side cut in turn, in all layers and heads: before [T], after and instead [Q, S, T].

    `instead` is the likeliest token after the cut. A decoder's edges into the future do not exist; theirs equal before.
    """
    queries = len(case.source if side == "encoder" else case.target)
    keys = len(case.target if side == "decoder" else case.source)
    pairs = [(q, k) for q in range(queries) for k in range(keys) if side != "decoder" or k <= q > 0]
    cuts: list[EdgeCut | None] = [None, *(EdgeCut(q, k) for q, k in pairs if keys > 1)]
    results = list(run_cuts(core, [case] * len(cuts), cuts, side=side))
    before, best = results[0]
    after = before.expand(queries, keys, -1).clone()  # Q S T
    instead = best.expand(queries, keys, -1).clone()  # Q S T
    for cut, (lp, token) in zip(cuts[1:], results[1:], strict=True):
        if cut:
            after[cut.query, cut.key], instead[cut.query, cut.key] = lp, token
    return before, after, instead


def cut_heads(core: Transformer, heads: Sequence[tuple[int, int]], *, side: Side = "encoder") -> list[Edit]:
    """Edits that silence heads (layer, head) of a side's attention: for `Recording(core, edit=cut_heads(...))`."""
    paths = [path for path, _ in attentions_of(core, side)]
    return [ablate(f"{paths[layer]}.z", heads=head) for layer, head in heads]


def measure_head_effects(core: Transformer, cases: Sequence[Case], *, side: Side = "encoder") -> Tensor:
    """The drop of log P(target[at]) of each case when one head is silenced: [L, H, N], L layers of H heads."""
    at = torch.tensor([c.at for c in cases], device=core.embed.weight.device)[:, None]
    before = score_targets(core, cases).logprobs.gather(1, at)[:, 0]  # N

    def measure_drop(layer: int, head: int) -> Tensor:
        after = score_targets(core, cases, cut_heads(core, [(layer, head)], side=side))
        return before - after.logprobs.gather(1, at)[:, 0]

    layers = enumerate(attentions_of(core, side))
    return torch.stack([torch.stack([measure_drop(i, h) for h in range(a.heads)]) for i, (_, a) in layers])  # L H N
