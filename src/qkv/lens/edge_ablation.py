"""Whether an attention edge or a head matters: remove it, run again, and compare the target's probability.

Many cuts run side by side: each row of a batch is one sentence with its own cut. Letters: N rows, T target tokens,
S source tokens, Q query positions, H heads, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from qkv import spec as parts
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.data.collate import pad_with_mask
from qkv.errors import QkvError
from qkv.lens.attention_maps import AttentionPart as Side
from qkv.lens.attention_maps import attention_paths
from qkv.lens.edit import Edit, ablate, hide
from qkv.lens.recording import Recording

LOGITS = 1 << 26  # that the cuts of one batch make


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
    """An edge of a row to be removed in every layer and head: from `query` to `key`."""

    query: int
    key: int


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
    return TargetScores(pad(chance, (1, 0)), pad(logits.argmax(-1), (1, 0)))


@torch.no_grad()
def score_answers(
    core: Transformer, cases: Sequence[Case], edits: Sequence[Edit] = (), *, once: bool = False
) -> tuple[Tensor, Tensor]:
    """The log-probability of each case's target[at] and the likeliest token, [N] each: cheaper than `score_targets`.

    With `once` equal sources are encoded together, as the edits leave the encoder alone. An encoder alone answers at
    the place `at` of the source itself.
    """
    device, decodes = core.embed.weight.device, core.spec.decoder is not None
    read, real = pad_with_mask([c.target if decodes else c.source for c in cases], device)
    rows, at = torch.arange(len(cases), device=device), torch.tensor([c.at for c in cases], device=device)
    with Recording(core, edit=edits):
        given = make_inputs(core, cases, once=once) if decodes else Inputs(padding_mask=real)
        logits = core.head(core.hidden(read, given, mode="prefill")[rows, at - int(decodes)]).float()  # N V
    wanted = torch.tensor([c.target[c.at] for c in cases], device=device)
    return logits.log_softmax(-1)[rows, wanted], logits.argmax(-1)


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
        rows = torch.tensor([read.index(ids) for ids in sources], device=device)
        memory, there = memory[rows], there[rows]
    return Inputs(memory=memory, source_padding_mask=there)


def attentions_of(core: Transformer, side: Side) -> list[tuple[str, parts.Attention | parts.Latent]]:
    """The attentions of a side, from the first layer up: the path of each and its spec."""
    spec = core.spec
    if spec.decoder is None:
        raise QkvError("patch: this model has no {side} attention that its decoder's words depend on", side=side)
    paths, stack = attention_paths(spec, side), spec.encoder if side == "encoder" and spec.encoder else spec.decoder
    specs = [b.cross if side == "cross" and b.cross else b.attn for b in stack.blocks]
    return list(zip(paths, specs, strict=True))


def count_places(case: Case, side: Side) -> tuple[int, int]:
    """The queries and the keys of a side's attention."""
    source, target = len(case.source), len(case.target)
    return source if side == "encoder" else target, target if side == "decoder" else source


def make_edits(core: Transformer, cases: Sequence[Case], cuts: Sequence[EdgeCut | None], side: Side) -> list[Edit]:
    """The cut of each row as edits of that side's attention."""
    paths = [path for path, _ in attentions_of(core, side)]
    queries, keys = map(max, zip(*(count_places(c, side) for c in cases), strict=True))
    gone = torch.zeros(len(cases), 1, queries, keys, dtype=torch.bool)
    for row, cut in enumerate(cuts):
        if cut:
            gone[row, :, cut.query, cut.key] = True
    return [hide(path, gone) for path in paths] if bool(gone.any()) else []


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


def cut_every_edge(core: Transformer, case: Case, *, side: Side = "encoder") -> tuple[Tensor, Tensor, Tensor]:
    """Each query-key edge of a side cut in turn, in all layers and heads: before [T], after and instead [Q, S, T].

    `instead` is the likeliest token after the cut. A decoder's edges into the future do not exist; theirs equal before.
    """
    queries, keys = count_places(case, side)
    pairs = [(q, k) for q in range(queries) for k in range(keys) if keys > 1 and (side != "decoder" or k <= q > 0)]
    cuts, rows = [None, *(EdgeCut(*pair) for pair in pairs)], rows_at_once(core, case)
    chunks = [([case] * len(cuts[i : i + rows]), cuts[i : i + rows]) for i in range(0, len(cuts), rows)]
    scores = [score_targets(core, cases, make_edits(core, cases, some, side)) for cases, some in chunks]
    logprobs, best = torch.cat([s.logprobs for s in scores]), torch.cat([s.best for s in scores])  # N T
    after = logprobs[0].expand(queries, keys, -1).clone()  # Q S T
    instead = best[0].expand(queries, keys, -1).clone()  # Q S T
    for n, (q, k) in enumerate(pairs, 1):
        after[q, k], instead[q, k] = logprobs[n], best[n]
    return logprobs[0], after, instead


def cut_every_head(core: Transformer, case: Case, *, side: Side = "encoder") -> list[Tensor]:
    """Each head of a side silenced in turn: the log-probability of each target token, [H, T] for each layer."""
    found: list[Tensor] = []
    for path, at in attentions_of(core, side):
        kept = 1 - torch.eye(at.heads, device=core.embed.weight.device)[:, :, None, None]  # a row for each head
        silent = [Edit("scale", f"{path}.z", chunk) for chunk in kept.split(rows_at_once(core, case))]
        found.append(torch.cat([score_targets(core, [case] * len(e.value), [e]).logprobs for e in silent]))  # type: ignore[arg-type]
    return found


def rows_at_once(core: Transformer, case: Case) -> int:
    """How many copies of a case run side by side: at most 512, and no more than LOGITS logits."""
    return max(1, min(512, LOGITS // (len(case.target) * core.spec.vocabulary)))


def cut_heads(core: Transformer, heads: Sequence[tuple[int, int]], *, side: Side = "encoder") -> list[Edit]:
    """Edits that silence heads (layer, head) of a side's attention: for `Trace(core, edit=cut_heads(...))`."""
    paths = [path for path, _ in attentions_of(core, side)]
    return [ablate(f"{paths[layer]}.z", heads=head) for layer, head in heads]
