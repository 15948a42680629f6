"""The beams of a search as a tree: every candidate, its parent, and what became of it.

The search is that of generation/beam.py, recorded while it runs. Read question.py first.
Letters: B sources (one), M beams, C candidates, V vocabulary.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.explore.body import Answer, Query
from qkv.explore.question import (
    Question,
    Refused,
    Run,
    choose_search,
    decoding_setup,
    edits_of,
    fit_text,
    question_as_json,
)
from qkv.generation.beam import BeamSearch, Hypothesis, list_candidates
from qkv.generation.candidates import Candidate, Candidates
from qkv.generation.decoder import Decoder, count_new_tokens
from qkv.lens.trace import Trace
from qkv.model import Model

Fate = Literal["kept", "ended", "pruned"]


@dataclass
class Node:
    """A candidate: its step from 0, the place of its parent among the nodes (-1: none), and its summed log-probability.

    kept: it was read on; ended: it closed a sentence; pruned: others were likelier.
    """

    step: int
    parent: int
    token: int
    sum: float
    fate: Fate = "pruned"


@dataclass(frozen=True)
class Tree:
    """The nodes step by step, each step's likeliest first; the best sentences; and the nodes of the best one."""

    nodes: list[Node]
    found: list[Hypothesis]
    best: list[int]


class RecordingSearch(BeamSearch):
    """A search for one source that writes down its candidates."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.nodes: list[Node] = []
        self.places: list[int] = [-1]  # of the live rows among the nodes
        self.born: dict[tuple[int, int], int] = {}

    def rank_candidates(self, logits: Tensor) -> Candidates:
        """As in BeamSearch; every finite candidate becomes a node."""
        found = super().rank_candidates(logits)
        step, self.born = self.written, {}
        rows = (x[0].tolist() for x in (found.sums, found.parents, found.tokens))
        for n, (total, parent, token) in enumerate(zip(*rows, strict=True)):
            if total > -torch.inf:
                self.born[parent, token] = len(self.nodes)
                ends = token in self.eos.tolist() and n < self.search.beams
                self.nodes.append(Node(step, self.places[parent], token, total, "ended" if ends else "pruned"))
        return found

    def go_on(self, stay: list[int], live: Any) -> Tensor:
        """As in BeamSearch; candidates that go on are marked as kept."""
        self.places = self.mark_kept(list_candidates(live[0])) if stay else []
        return super().go_on(stay, live)

    def write_best(self, source: int, live: list[Candidate]) -> None:
        """As in BeamSearch, where the search is over."""
        self.mark_kept(live)
        super().write_best(source, live)

    def mark_kept(self, live: list[Candidate]) -> list[int]:
        """Mark candidates; their places among the nodes."""
        places = [self.born.get((c.row, c.token), -1) for c in live]
        for c, place in zip(live, places, strict=True):
            if place >= 0 and c.total > -torch.inf:
                self.nodes[place].fate = "kept"
        return places


@torch.inference_mode()
def grow_tree(model: Model, question: Question) -> Tree:
    """The beam search of a question, as a tree.

    Raises:
        Refused: its words are not searched for by beams.
    """
    search = choose_search(model, question)
    if search is None or model.spec.decoder is None:
        raise Refused("no beams were searched here: ask with 2 or more")
    ids, options, _ = decoding_setup(model, model.ids(fit_text(model, question.text)[0]), question)
    core = model.core
    limits = count_new_tokens(core, [ids], options)
    decoder = Decoder(core, options)
    recording = RecordingSearch(decoder, limits, search, options)
    edits = edits_of(model, question.cut)
    with Trace(core, edit=edits) if edits else nullcontext():
        tokens = recording.advance(decoder.prefill([ids], limits[0]))
        while recording.beams.sources:
            tokens = recording.advance(decoder.decode(tokens))
    found = recording.found[0][: search.nbest]
    return Tree(recording.nodes, found, best_path(recording.nodes, found[0].tokens))


def best_path(nodes: list[Node], tokens: list[int]) -> list[int]:
    """The nodes of a sentence."""
    places = {(n.step, n.parent, n.token): i for i, n in enumerate(nodes)}
    found = [-1]
    for step, token in enumerate(tokens):
        found.append(places[step, found[-1], token])
    return found[1:]


def beams(run: Run, query: Query) -> Answer:
    """The tree of a run's beams, its best sentences, and the nodes of the one that was written."""
    model = run.model
    tree = grow_tree(model, run.question)
    assert model.tokenizer is not None  # ask() saw to it
    asked = f"qkv.explore.question.Question.from_json({question_as_json(run.question)!r})"
    line = f"qkv.explore.beam_tree.grow_tree(model, {asked})"
    pieces = model.tokenizer.pieces([n.token for n in tree.nodes])
    nodes = [{**vars(n), "text": text} for n, text in zip(tree.nodes, pieces, strict=True)]
    found = [{"text": model.text([i for i in h.tokens if i not in model.special.eos]), "score": h.score,
              "sum": sum(h.logprobs), "length": len(h.tokens), "ended": h.finish_reason == "stop"}
             for h in tree.found]
    return Answer({"nodes": nodes, "found": found, "best": tree.best, "line": line})
