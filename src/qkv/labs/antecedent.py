"""Which noun does 它 stand for? Minimal pairs, causal cuts and silenced heads; `qkv demo` and two_it.py use it.

Swap the verb and see whether the noun flips; cut each edge and see which one the noun needed: from 它 and from the verb
(in the encoder), and from the word being written (in the cross-attention); silence the head that matters most and see
what all translations lose. The head is chosen on one half of the pairs and judged on the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from qkv.core.attention import Attention
from qkv.data.corpus import Pair, Swap
from qkv.errors import QkvError
from qkv.lens import edge_ablation
from qkv.lens.edit import Edit, ablate
from qkv.model import Model

IT = "它"
EDGES, CHOOSING = 200, 100  # pairs whose edges are cut one by one, and pairs on which the head is chosen, at most


@dataclass(frozen=True)
class Half:
    """One sentence of a minimal pair: its ids, and where 它, the verb and both nouns stand in the Chinese."""

    zh: str
    en: str
    case: edge_ablation.Case
    pieces: tuple[str, ...]
    it: int
    meant: int
    other: int
    verb: int = -1

    def role(self, key: int) -> str:
        """What a source position is to the question."""
        places = {self.meant: "noun", self.other: "other noun", self.it: IT, self.verb: "verb"}
        return places.get(key, "elsewhere")


QUERIES = ("written", "verb", "it")


@dataclass(frozen=True)
class Edge:
    """The two sentences of a pair: by how much log P(noun) drops when the edge to each source word is cut.

    `drops` holds, for each query (the word being written, the verb, 它), one row per sentence; `moved` says whether the
    noun that is meant is the strongest in both sentences.
    """

    pair: Swap
    pieces: tuple[tuple[str, ...], ...]
    drops: dict[str, tuple[tuple[float, ...], ...]]
    moved: dict[str, bool]


@dataclass(frozen=True)
class Proof:
    """What came out, over `pairs` held-out minimal pairs.

    flip_rate: both translations name their own noun. edge_moves: by query, the share of the first EDGES pairs whose
    strongest causal edge points at the noun that is meant, in both sentences. strongest: where the word being written
    points in those, by role. severed: the share of nouns still guessed right (given the words before) when edges are
    cut, by which edges. head: the path and number of the head chosen on pairs of the first half, CHOOSING at most;
    before and after: the share of right nouns in the translations of the other half, with all heads and without that
    one; others: other sentences exactly right.
    """

    pairs: int
    flip_rate: float
    noun_accuracy: float
    edge_moves: dict[str, float]
    strongest: dict[str, float]
    severed: dict[str, float]
    head: tuple[str, int]
    before: float
    after: float
    others_before: float
    others_after: float
    edges: tuple[Edge, ...]

    @property
    def cut_effect(self) -> float:
        """How much of the right nouns is lost without the edges that lead to the noun meant, from verb and writer."""
        return self.severed["nothing"] - self.severed["both"]


def measure(model: Model, swaps: Sequence[Swap], others: Sequence[Pair] = ()) -> Proof:
    """All measurements over minimal pairs; `others` are sentences without 它, to see what else a head does.

    Raises:
        QkvError: no pair, or one that the model's vocabulary cannot say.
    """
    if not swaps:
        raise QkvError("two-it: no minimal pairs to measure on")
    halves = [h for s in swaps for h in two(model, s)]
    right = check_nouns(model, halves)
    both = [a and b for a, b in zip(right[::2], right[1::2], strict=True)]
    edges, points = moving(model, swaps[:EDGES], halves[: 2 * EDGES])
    middle = len(swaps) // 2 * 2
    head = most_needed(model, halves[: min(middle, 2 * CHOOSING)])
    before, after = right[middle:], check_nouns(model, halves[middle:], [silence_head(head)])
    return Proof(
        len(swaps), average(both), average(right), {q: average([e.moved[q] for e in edges]) for q in QUERIES},
        {r: average([p == r for p in points]) for r in ("noun", "verb", IT, "other noun", "elsewhere")},
        measure_cuts(model, halves), head, average(before), average(after),
        measure_exact(model, others), measure_exact(model, others, [silence_head(head)]), edges,
    )


def two(model: Model, s: Swap) -> tuple[Half, Half]:
    """The two sentences of a pair; the one word in which they differ is the verb."""
    a = prepare_half(model, s.zh_a, s.en_a, s.noun_a, s.noun_b)
    b = prepare_half(model, s.zh_b, s.en_b, s.noun_b, s.noun_a)
    verb = next((i for i, (x, y) in enumerate(zip(a.pieces, b.pieces, strict=False)) if x != y), -1)
    return replace(a, verb=verb), replace(b, verb=verb)


def prepare_half(model: Model, read: str, said: str, meant: tuple[str, str], other: tuple[str, str]) -> Half:
    """A sentence made ready: the noun asked for is the last one named in the English."""
    tokenizer = model.tokenizer
    if tokenizer is None or not model.encoder_decoder:
        raise QkvError("two-it needs a translating model with its tokenizer")
    source, target = tokenizer.encode(read), tokenizer.encode(said, side="target")
    written, pieces = tokenizer.pieces(target), tokenizer.pieces(source)
    try:
        at = max(i for i, p in enumerate(written) if p.strip() == meant[1])
        places = pieces.index(IT), pieces.index(meant[0]), pieces.index(other[0])
    except ValueError:
        raise QkvError("two-it: {read!r} / {said!r} does not hold {meant} and {other} as single tokens", read=read,
                       said=said, meant=meant, other=other) from None
    start = model.special.start
    assert start is not None
    case = edge_ablation.Case(tuple(source), (start, *target), at + 1)
    return Half(read, said, case, tuple(pieces), *places)


def check_nouns(model: Model, halves: Sequence[Half], edits: Sequence[Edit] = ()) -> list[bool]:
    """Whether each translation ends by naming the noun that is meant."""
    with model.trace(edit=edits):
        results = model.translate([h.zh for h in halves], beam=1, max_new_tokens=40)
    return [last_noun(r.text) == last_noun(h.en) for r, h in zip(results, halves, strict=True)]


def last_noun(sentence: str) -> str:
    """The clause about 它 names its noun after its last `the`."""
    words = sentence.lower().rstrip(".?! ").split()
    return next((noun for the, noun in reversed(list(pairwise(words))) if the == "the"), "")


def moving(model: Model, swaps: Sequence[Swap], halves: Sequence[Half]) -> tuple[tuple[Edge, ...], list[str]]:
    """Which source word each noun needed, by the edges of three queries; and what the word being written points at."""
    cases, drops = [h.case for h in halves], dict[str, list[torch.Tensor]]()
    drops["written"] = edge_ablation.measure_edge_drops(model.core, cases, [c.at - 1 for c in cases], side="cross")
    drops["verb"] = edge_ablation.measure_edge_drops(model.core, cases, [h.verb for h in halves])
    drops["it"] = edge_ablation.measure_edge_drops(model.core, cases, [h.it for h in halves])
    for query in ("verb", "it"):
        for h, drop in zip(halves, drops[query], strict=True):
            drop[getattr(h, query)] = 0.0  # its own position is no answer
    hits = {q: [int(d.argmax()) == h.meant for h, d in zip(halves, drops[q], strict=True)] for q in QUERIES}
    edges = tuple(
        Edge(
            pair, (halves[i].pieces, halves[i + 1].pieces),
            {q: (round_drops(drops[q][i]), round_drops(drops[q][i + 1])) for q in QUERIES},
            {q: hits[q][i] and hits[q][i + 1] for q in QUERIES},
        )
        for i, pair in zip(range(0, len(halves), 2), swaps, strict=True)
    )
    return edges, [h.role(int(d.argmax())) for h, d in zip(halves, drops["written"], strict=True)]


def measure_cuts(model: Model, halves: Sequence[Half]) -> dict[str, float]:
    """The share of nouns guessed right with certain edges cut, in all layers and heads, over all sentences.

    `verb`: from the verb to the noun meant; `written`: from the word being written to it; `both`; and, to compare,
    `control`: the same two edges to the other noun.
    """
    core, cases = model.core, [h.case for h in halves]

    def edits(verb: str | None, written: str | None) -> list[Edit]:
        found: list[Edit] = []
        if verb:
            cuts = [edge_ablation.EdgeCut(h.verb, getattr(h, verb)) for h in halves]
            found += edge_ablation.make_edits(core, cases, cuts, "encoder")
        if written:
            cuts = [edge_ablation.EdgeCut(h.case.at - 1, getattr(h, written)) for h in halves]
            found += edge_ablation.make_edits(core, cases, cuts, "cross")
        return found

    ways = {"nothing": (None, None), "verb": ("meant", None), "written": (None, "meant"), "both": ("meant", "meant"),
            "control": ("other", "other")}
    said = {name: edge_ablation.score_answers(core, cases, edits(*way))[1].tolist() for name, way in ways.items()}
    return {name: average([b == c.target[c.at] for b, c in zip(best, cases, strict=True)])
            for name, best in said.items()}


def round_drops(drop: torch.Tensor) -> tuple[float, ...]:
    return tuple(round(float(x), 4) for x in drop)


def silence_head(head: tuple[str, int]) -> Edit:
    """The edit that silences one head."""
    return ablate(f"{head[0]}.z", heads=[head[1]])


def most_needed(model: Model, halves: Sequence[Half]) -> tuple[str, int]:
    """The head, of any attention in the model, whose silence costs the right nouns most log-probability."""
    cases, core = [h.case for h in halves], model.core
    parts = [m for m in core.modules() if isinstance(m, Attention)]
    spots = [(m.path, h) for m in parts for h in range(m.spec.heads)]
    scores = [edge_ablation.score_answers(core, cases, [silence_head(s)])[0].mean().item() for s in spots]
    return spots[min(range(len(spots)), key=scores.__getitem__)]


def measure_exact(model: Model, pairs: Sequence[Pair], edits: Sequence[Edit] = ()) -> float:
    """The share of sentences translated exactly."""
    if not pairs:
        return float("nan")
    with model.trace(edit=edits):
        results = model.translate([p.zh for p in pairs], beam=1, max_new_tokens=40)
    return average([r.text == p.en for r, p in zip(results, pairs, strict=True)])


def average(values: Sequence[bool]) -> float:
    return sum(values) / len(values)
