"""Beam search: the best whole sentences instead of the best next token, for every source of a batch at once.

Letters: B sources still searched, M beams, C candidates, T tokens so far, V vocabulary. A hypothesis' score is its
log probability over a length penalty; its length counts the end id. engine.py runs it; a beam is an index into
a batch's cache, or a table of pages.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from qkv import sampling
from qkv.core.model import Transformer
from qkv.devices import keep_freed
from qkv.errors import QkvError
from qkv.generation.sequence import DecodeOptions, Finish

WIDEST = 4096  # beams; more take all memory long before they find a better text


@dataclass(frozen=True)
class Search:
    """How wide and how long to search.

    penalty  "gnmt" divides by ((5 + |Y|) / 6)^a (Wu et al. 2016, eq. 14; a = 0.6 in Vaswani et al. 2017),
             "power" by |Y|^a (fairseq, transformers); a is `length_penalty`
    stop     "first": as soon as `beams` hypotheses ended; "bound": when no live one can still enter the n best
             (exact for this pruning); "heuristic": as "bound", but judging live ones at their present length;
             "never": at the longest length only
    """

    beams: int = 4
    nbest: int = 1
    length_penalty: float = 0.6
    penalty: Literal["gnmt", "power"] = "gnmt"
    stop: Literal["first", "bound", "heuristic", "never"] = "first"

    def __post_init__(self) -> None:
        if not 1 <= self.beams <= WIDEST:
            raise QkvError("beams: found {beams}, expected 1 to {widest:,}", beams=self.beams, widest=WIDEST)
        if not 1 <= self.nbest <= self.beams:
            raise QkvError("nbest: found {nbest}, expected 1 to {beams}, the number of beams", nbest=self.nbest,
                           beams=self.beams)
        if not math.isfinite(self.length_penalty):
            raise QkvError("length_penalty: found {length_penalty}, expected a finite number (0 divides by 1)",
                           length_penalty=self.length_penalty)

    def divisor(self, length: int) -> float:
        """What the log probability of `length` tokens is divided by."""
        return ((5 + length) / 6 if self.penalty == "gnmt" else length) ** self.length_penalty


@dataclass(frozen=True)
class Hypothesis:
    """A finished candidate: its tokens (end id included), score, the model's logprob of each token, why it ended."""

    tokens: list[int]
    score: float
    logprobs: list[float]
    finish_reason: Finish


@dataclass
class Beams:
    """The live hypotheses of all sources still searched; rows stand source by source, children where parents stood."""

    sources: list[int]
    sums: Tensor  # B M
    tokens: Tensor  # BM T
    history: Tensor  # BM T, the running sums

    def hypothesis(self, row: int, search: Search, ended: tuple[int, float] | None = None) -> Hypothesis:
        """The live row unchanged, or ended by a token with the sum that it then has."""
        tokens, sums = self.tokens[row].tolist(), self.history[row].tolist()
        if ended:
            tokens, sums = [*tokens, ended[0]], [*sums, ended[1]]
        logprobs = [now - before for now, before in zip(sums, [0.0, *sums], strict=False)]
        score = sums[-1] / search.divisor(len(tokens))
        return Hypothesis(tokens, score, logprobs, "stop" if ended else "length")


class Rows(Protocol):
    """What a search asks of who reads its tokens: row i continues row rows[i]; of the sources these stay, or all."""

    device: torch.device

    def select_rows(self, rows: Tensor, sources: Tensor | None = None) -> None: ...

    def reorder(self, parents: Tensor) -> None: ...


class BeamSearch:
    """One beam search over a batch: `advance` until no source is left; `found` holds what ended."""

    def __init__(self, decoder: Rows, limits: list[int], search: Search, options: DecodeOptions) -> None:
        self.decoder, self.limits, self.search, self.options = decoder, limits, search, options
        self.eos = torch.tensor(options.eos, dtype=torch.long, device=decoder.device)
        self.found: list[list[Hypothesis]] = [[] for _ in limits]
        # long sums of fp32 would drift; MPS has nothing wider
        wide = torch.float32 if decoder.device.type == "mps" else torch.float64
        none = torch.zeros(len(limits), 0, dtype=wide, device=decoder.device)
        self.beams = Beams(list(range(len(limits))), none.new_zeros(len(limits), 1), none.long(), none)

    def advance(self, logits: Tensor) -> Tensor:
        """Choose among the followers of every live hypothesis, logits [BM, V]; give the next ids to read [BM]."""
        sums, parents, tokens = self.rank_candidates(logits)  # B C
        ends = torch.isin(tokens, self.eos)  # B C
        self.collect(sums, parents, tokens, ends)
        # the likeliest that do not end continue, in order
        live = ends.int().sort(dim=-1, stable=True).indices[:, : self.search.beams]  # B M
        sums, parents, tokens = sums.gather(1, live), parents.gather(1, live), tokens.gather(1, live)
        sums = sums.masked_fill(ends.gather(1, live), -math.inf)
        old = self.beams
        place = order_children(parents, old.sums.shape[1])  # B M
        sums, parents, tokens = sums.gather(1, place), parents.gather(1, place), tokens.gather(1, place)
        rows = parents.flatten()
        written = torch.cat((old.tokens[rows], tokens.flatten()[:, None]), 1)  # BM T
        history = torch.cat((old.history[rows], sums.flatten()[:, None]), 1)  # BM T
        self.beams = Beams(old.sources, sums, written, history)
        return self.drop_finished(rows, first=old.tokens.shape[1] == 0)

    def rank_candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best followers of each source, best first: their sums, parent rows and tokens, each [B, C].

        C = beams x (1 + end ids), so that enough are left when every end id of every beam is among them.
        """
        sources, beams = self.beams.sums.shape
        wanted = self.search.beams * (1 + max(1, len(self.eos)))
        forbid = self.options.forbid
        if self.options.renormalize and forbid:  # before the softmax: the rest sums to 1
            logits = logits.index_fill(-1, torch.tensor(forbid, device=logits.device), -math.inf)  # BM V
        logprobs, ids = sampling.select_top(logits, wanted, forbid)  # BM C
        each = ids.shape[-1]
        sums = (self.beams.sums[:, :, None] + logprobs.view(sources, beams, each)).flatten(1)  # B MC
        top = sums.topk(min(wanted, sums.shape[1]))
        tokens = ids.view(sources, beams * each).gather(1, top.indices)
        first = torch.arange(sources, device=logits.device)[:, None] * beams
        parents = first + top.indices // each
        short = max(0, self.search.beams - top.values.shape[1])  # a vocabulary smaller than the beam
        return pad(top.values, (0, short), value=-math.inf), pad(parents, (0, short)), pad(tokens, (0, short))

    def collect(self, sums: Tensor, parents: Tensor, tokens: Tensor, ends: Tensor) -> None:
        """Candidates that end and stand among the first `beams` become hypotheses; each source keeps its best."""
        width = self.search.beams
        ended = (ends & sums.isfinite())[:, :width].nonzero().tolist()
        if sums.isnan().any():
            raise QkvError("beam search: the model's logits are not finite numbers; `check` scans its "
                           "weights")
        for n, c in ended:
            source = self.beams.sources[n]
            last = (int(tokens[n, c]), float(sums[n, c]))
            self.found[source].append(self.beams.hypothesis(int(parents[n, c]), self.search, last))
            self.found[source] = sorted(self.found[source], key=lambda h: -h.score)[:width]

    def drop_finished(self, rows: Tensor, *, first: bool) -> Tensor:
        """Finished sources leave the batch, and the cache follows the beams' parents `rows`."""
        beams, width = self.beams, self.search.beams
        length = beams.tokens.shape[1]
        best = beams.sums.amax(1).tolist()
        stay = [n for n, source in enumerate(beams.sources) if not self.is_done(source, length, best[n])]
        for n in set(range(len(best))) - set(stay):
            self.add_live(n)
        if len(stay) == len(best):
            if first:
                self.decoder.select_rows(rows)  # each source's one row becomes its beams
            else:
                self.decoder.reorder(rows)
            return beams.tokens[:, -1]
        # the last ones fill the holes, so that few rows move
        tail = [n for n in stay if n >= len(stay)]
        stay = [n if n in stay else tail.pop() for n in range(len(stay))]
        index = torch.tensor(stay, dtype=torch.long, device=rows.device)
        kept = (index[:, None] * width + torch.arange(width, device=rows.device)).flatten()
        self.beams = Beams([beams.sources[n] for n in stay], beams.sums[index], beams.tokens[kept], beams.history[kept])
        if stay:
            self.decoder.select_rows(rows[kept], index)
        return self.beams.tokens[:, -1]

    def is_done(self, source: int, length: int, best: float) -> bool:
        """Whether the search for this source is over, its likeliest live hypothesis having the sum `best`."""
        search, found, longest = self.search, self.found[source], self.limits[source]
        if length >= longest or best == -math.inf:
            return True
        if search.stop == "never" or len(found) < (search.beams if search.stop == "first" else search.nbest):
            return False
        if search.stop == "first":
            return True
        # sums only fall, and the divisor is monotonic in the length: its best case stands at one of the two ends
        reach = (length,) if search.stop == "heuristic" else (length + 1, longest)
        return found[search.nbest - 1].score >= best / max(search.divisor(n) for n in reach)

    def add_live(self, n: int) -> None:
        """Where too few ended, the live ones make up the n best, after those that did end."""
        found, width = self.found[self.beams.sources[n]], self.search.beams
        likeliest = self.beams.sums[n].sort(descending=True, stable=True).indices.tolist()
        for k in likeliest[: max(0, self.search.nbest - len(found))]:
            if float(self.beams.sums[n, k]) > -math.inf:
                found.append(self.beams.hypothesis(n * width + k, self.search))


def order_children(parents: Tensor, beams: int) -> Tensor:
    """Where each child [B, M] goes, as an index into them: its parent's place if it is the first, else a free one.

    A cache row moves only where one parent has several children.
    """
    width = parents.shape[1]
    slots = parents % beams  # B M
    later = (slots[:, :, None] == slots[:, None, :]).tril(-1).any(-1)  # B M
    taken = torch.zeros_like(later).scatter_(1, slots, value=True)  # B M
    free = taken.int().sort(dim=1, stable=True).indices  # B M
    place = torch.where(later, free.gather(1, (later.cumsum(1) - 1).clamp_min(0)), slots)
    assert width >= beams
    return place.argsort(1)


@torch.inference_mode()
def beam(
    core: Transformer,
    prompts: Seq[Seq[int]],
    *,
    search: Search = Search(),
    options: DecodeOptions = DecodeOptions(),  # noqa: B008
    ensemble: Seq[Transformer] = (),
) -> list[list[Hypothesis]]:
    """The n best continuations of each prompt, best first; for an encoder-decoder the prompts are sources.

    An end id ends a hypothesis (stop strings do not); one cut off at the limit stands after all that ended. With one
    beam and stop="first" this is greedy decoding. The cores of `ensemble`, of the same vocabulary, search with it: each
    token has the mean of their probabilities.
    Raises QkvError as `generate` does.
    """
    from qkv.generation.engine import Engine  # which searches by what stands above

    if options.stop_strings:
        found = repr(options.stop_strings)
        raise QkvError("beam search: stop strings {found} are not supported; stop at ids, or use generate",
                       found=found)
    if not options.cache:
        raise QkvError("beam search: it needs the cache; remove cache=False, or use generate")
    keep_freed()  # logits come and go at every step, and page faults took 5 to 8 % of the time
    handles = Engine(core).submit_batch(prompts, options, search=search, ensemble=ensemble)
    for handle in handles:
        handle.result()
    return [handle.hypotheses for handle in handles]
