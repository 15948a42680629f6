"""Beam search: the best whole sentences instead of the best next token, for every source of a batch at once.

Letters: B sources still searched, M beams, C candidates, T tokens so far, V vocabulary. A hypothesis' score is its
log probability, as adjusted where penalties are given, over a length penalty; its length counts the end id. engine.py
runs it; a beam is an index into a batch's cache, or a table of pages. What a text must obey (constraints.py) goes along
with each beam. The device ranks followers; the host reads them once a step, and what was written stays with it.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from qkv import sampling
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.generation.candidates import Candidate, Candidates, Reach, select_top, share_beams
from qkv.generation.constraints import Guide
from qkv.generation.sampler import bar_followers
from qkv.generation.sequence import DecodeOptions, Finish
from qkv.sampling import Adjustments

WIDEST = 4096  # beams; more take all memory long before they find a better text


@dataclass(frozen=True)
class Search(Adjustments):
    """How wide and how long to search, and by which adjusted log probabilities.

    penalty  "gnmt" divides by ((5 + |Y|) / 6)^a (Wu et al. 2016, eq. 14; a = 0.6 in Vaswani et al. 2017),
             "power" by |Y|^a (fairseq, transformers); a is `length_penalty`
    stop     "first": as soon as `beams` hypotheses ended; "settled": as "first", but not while a live one is better
             than the n best, at its present length (a confident model ends a poor hypothesis at every step, and
             "first" stops before it ends the right one); "bound": when no live one can still enter the n best (exact
             for this pruning); "heuristic": as "bound", but judging live ones at their present length; "never": at the
             longest length only
    groups   the beams search in so many groups of equal size, one after another at each step: a group pays
             `diversity_penalty` for each time that the groups before it chose the same token (Vijayakumar et al. 2016)
    """

    beams: int = 4
    nbest: int = 1
    length_penalty: float = 0.6
    penalty: Literal["gnmt", "power"] = "gnmt"
    stop: Literal["first", "settled", "bound", "heuristic", "never"] = "settled"
    groups: int = 1
    diversity_penalty: float = 0.0

    where = "search"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.beams <= WIDEST:
            raise QkvError("beams: found {beams}, expected 1 to {widest:,}", beams=self.beams, widest=WIDEST)
        if not 1 <= self.nbest <= self.beams:
            raise QkvError("nbest: found {nbest}, expected 1 to {beams}, the number of beams", nbest=self.nbest,
                           beams=self.beams)
        if not (self.groups >= 1 and self.beams % self.groups == 0):
            raise QkvError("groups: found {groups}, expected a number that divides the {beams} beams", code="groups",
                           groups=self.groups, beams=self.beams)
        if self.diversity_penalty < 0:
            raise QkvError("diversity_penalty: found {value}, expected 0 (no diversity) or more",
                           code="diversity-penalty", value=self.diversity_penalty)
        if (self.groups > 1) != (self.diversity_penalty > 0):
            raise QkvError("groups is {groups} and diversity_penalty {value}: diverse beams need two groups or more "
                           "and a penalty above 0", code="groups", groups=self.groups, value=self.diversity_penalty)

    @property
    def width(self) -> int:
        """The beams of a group."""
        return self.beams // self.groups

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


class Ended(NamedTuple):
    """A candidate that ended a text of so many tokens, or was cut off, and its score."""

    score: float
    last: Candidate
    length: int
    reason: Finish


@dataclass
class Beams:
    """The live hypotheses of all sources still searched; rows stand source by source, children where parents stood."""

    sources: list[int]
    sums: Tensor  # B M
    guides: list[Guide | None]  # BM


class Rows(Protocol):
    """What a search asks of who reads its tokens: row i continues row rows[i]; of the sources these stay, or all."""

    device: torch.device

    def select_rows(self, rows: Tensor, sources: Tensor | None = None) -> None: ...

    def reorder(self, parents: Tensor) -> None: ...


class BeamSearch:
    """One beam search over a batch: `advance` until no source is left; `found` holds what ended.

    With groups every source stands there once for each group, side by side.
    """

    def __init__(
        self, decoder: Rows, limits: list[int], search: Search, options: DecodeOptions, prompts: Seq[Seq[int]] = ()
    ) -> None:
        if any(list(prompt) != list(prompts[n - n % search.groups]) for n, prompt in enumerate(prompts)) or (
            len(limits) % search.groups
        ):
            raise QkvError("groups: {groups} groups search side by side, which a request by itself cannot; remove "
                           "groups, or the engine", code="groups", groups=search.groups)
        if options.stop_strings:
            found = repr(options.stop_strings)
            raise QkvError("beam search: stop strings {found} are not supported; stop at ids, or use generate",
                           found=found)
        if not options.cache:
            raise QkvError("beam search: it needs the cache; remove cache=False, or use generate")
        self.decoder, self.limits, self.search, self.options = decoder, limits, search, options
        self.eos = torch.tensor(options.eos, dtype=torch.long, device=decoder.device)
        self.found: list[list[Hypothesis]] = [[] for _ in limits]  # the n best of sources that are done
        self.ended: list[list[Ended]] = [[] for _ in limits]  # best first
        self.faults: dict[int, QkvError] = {}  # of sources whose search failed
        self.written, self.steps = 0, list[Any]()  # tokens of each row; what went on at each step, [BM, 4]
        # long sums of fp32 would drift; MPS has nothing wider
        wide = torch.float32 if decoder.device.type == "mps" else torch.float64
        guides = list[Guide | None](options.guides if len(options.guides) > 1 else options.guides * len(limits))
        check_guides(guides, limits)
        self.best = min(search.nbest, search.width)  # of a group
        self.guided, self.before = bool(guides), [options.list_before(p) for p in prompts]
        none = torch.zeros(len(limits), 1, dtype=wide, device=decoder.device)
        self.beams = Beams(list(range(len(limits))), none, guides)

    def advance(self, logits: Tensor) -> Tensor:
        """Choose among the followers of every live hypothesis, logits [BM, V]; give the next ids to read [BM]."""
        found = self.rank_candidates(logits)
        self.written += 1
        # ids are exact in the type of sums; this is all that the host reads
        table = torch.stack([x.to(found.sums.dtype) for x in vars(found).values()], -1)  # B C 4
        return self.go_on(*self.take_candidates(np.array(table.flatten().tolist()).reshape(table.shape)))

    def take_candidates(self, table: Any) -> tuple[list[int], Any]:
        """Of all sources' candidates [B, C, 4], best first, those that go on [B, M, 4], and which sources go on.

        The four: the sum, the row that is continued, the token, its logprob under the model itself (Candidate).
        Those that end and stand among the first `beams` may become hypotheses. The likeliest that do not end continue;
        where too few are left, one that ended fills the place.
        """
        ends = np.isin(table[..., 2], self.options.eos)  # B C
        columns = np.argsort(ends, 1, kind="stable")[:, : self.search.width]  # B M
        live = np.take_along_axis(table, columns[..., None], 1)  # B M 4
        live[np.take_along_axis(ends, columns, 1), 0] = -math.inf
        for n in np.flatnonzero(ends[:, : self.search.width].any(1)):
            self.take_ended(self.beams.sources[n], list_candidates(table[n, : self.search.width]))
        broken, stay = np.isnan(table[..., 0]).any(1).tolist(), list[int]()
        for n, (source, best) in enumerate(zip(self.beams.sources, live[..., 0].max(1).tolist(), strict=True)):
            if broken[n]:
                self.faults[source] = QkvError(
                    "text {number}: its logits are not finite numbers; `check` scans the model's weights",
                    code="logits-not-finite", number=source // self.search.groups + 1)
            elif self.is_done(source, self.written, best):
                self.write_best(source, list_candidates(live[n]))
            else:
                stay.append(n)
        children = place_children(live[..., 1].astype(int), self.beams.sums.shape[1])  # B M
        return stay, np.take_along_axis(live, children[..., None], 1)

    def take_ended(self, source: int, each: list[Candidate]) -> None:
        """Those of a source's first candidates that ended are kept, if they are among the best ones."""
        ended = [self.end_text(c, "stop") for c in each if c.token in self.options.eos and c.total > -math.inf]
        self.ended[source] = sorted(self.ended[source] + ended, key=lambda e: -e.score)[: self.search.width]

    def end_text(self, last: Candidate, reason: Finish) -> Ended:
        """A candidate of this step as the end of a text, with its score."""
        return Ended(last.total / self.search.divisor(self.written), last, self.written, reason)

    def write_out(self, ended: Ended) -> Hypothesis:
        """The hypothesis that a candidate ends, read from its last token back."""
        row, tokens, logprobs = ended.last.row, [ended.last.token], [ended.last.logprob]
        for step in reversed(self.steps[: ended.length - 1]):
            _, row, token, logprob = step[int(row)].tolist()
            tokens.append(int(token))
            logprobs.append(logprob)
        return Hypothesis(tokens[::-1], ended.score, logprobs[::-1], ended.reason)

    def go_on(self, stay: list[int], live: Any) -> Tensor:
        """Finished sources leave the batch, and the cache follows the beams' parents; the next ids to read."""
        left, tail = set(stay), [n for n in stay if n >= len(stay)]  # the last fill the holes, so that few rows move
        stay = [n if n in left else tail.pop() for n in range(len(stay))]
        rows, old, device = live[stay].reshape(-1, 4), self.beams, self.decoder.device
        parents, tokens = torch.from_numpy(rows[:, 1:3].T.astype(int))
        self.steps.append(rows)
        sums = torch.tensor(rows[:, 0], dtype=old.sums.dtype, device=device).view(-1, self.search.width)
        guides = [self.lead(c) for c in list_candidates(rows)] if self.guided else []
        self.beams = Beams([old.sources[n] for n in stay], sums, guides)
        if self.written > 1 and len(stay) == len(live):
            self.decoder.reorder(parents)
        elif stay:  # at first each source's one row becomes its beams
            self.decoder.select_rows(parents, torch.tensor(stay) if len(stay) < len(live) else None)
        return tokens.to(device)

    def lead(self, c: Candidate) -> Guide | None:
        """The guide of the row that a candidate goes on from, after it."""
        guide = self.beams.guides[c.row] if self.guided else None
        return guide.follow(c.token) if guide is not None and c.total > -math.inf else guide

    def rank_candidates(self, logits: Tensor) -> Candidates:
        """The best followers of each source, best first: each [B, C].

        C = beams x (1 + end ids), so that enough are left when every end id of every beam is among them.
        """
        wanted = self.search.width * (1 + max(1, len(self.eos)))
        forbid = self.options.forbid
        if self.options.renormalize and forbid:  # before the softmax: the rest sums to 1
            logits = logits.index_fill(-1, torch.tensor(forbid, device=logits.device), -math.inf)  # BM V
        if self.search.adjusts or self.guided or self.search.groups > 1:
            return self.rank_adjusted(logits, wanted)
        logprobs, ids = select_top(logits, wanted, forbid)  # BM C
        return self.join_followers(logprobs, ids, logprobs, wanted)

    def join_followers(self, values: Tensor, ids: Tensor, logprobs: Tensor, wanted: int) -> Candidates:
        """The best `wanted` of a source out of the best of each of its rows: values, ids and logprobs [BM, C]."""
        sources, beams = self.beams.sums.shape
        each = ids.shape[-1]
        sums = (self.beams.sums[:, :, None] + values.view(sources, beams, each)).flatten(1)  # B MC
        top = sums.topk(min(wanted, sums.shape[1]))
        first = torch.arange(sources, device=ids.device)[:, None] * beams
        tokens, own = (x.view(sources, beams * each).gather(1, top.indices) for x in (ids, logprobs.to(sums.dtype)))
        found = Candidates(top.values, first + top.indices // each, tokens, own)
        short = max(0, self.search.width - top.values.shape[1])  # a vocabulary smaller than the beam
        return Candidates(pad(found.sums, (0, short), value=-math.inf),
                          *(pad(x, (0, short)) for x in (found.parents, found.tokens, found.logprobs)))

    def rank_adjusted(self, logits: Tensor, wanted: int) -> Candidates:
        """As `rank_candidates`, by log probabilities [BM, V] after penalties, guides and the choice of other groups."""
        own = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))  # BM V
        values = self.adjust(own) if self.search.adjusts else own
        forbid = torch.tensor(self.options.forbid, dtype=torch.long, device=own.device)
        values = bar_followers(values.index_fill(-1, forbid, -math.inf), self.beams.guides)
        if self.search.groups > 1:
            return self.rank_groups(values, own, wanted)
        return self.rank_values(values, own, wanted)

    def rank_values(self, values: Tensor, own: Tensor, wanted: int) -> Candidates:
        """The best by these values [BM, V], none of them refused, those that guides want among them."""
        while True:
            best, ids = sampling.top_of(values, min(wanted, values.shape[-1]))  # BM C
            found = self.join_followers(best, ids, own.gather(1, ids), wanted)
            refused = self.find_refused(found)
            if not refused:
                break
            rows, tokens = zip(*refused, strict=True)
            values = values.index_put((torch.tensor(rows), torch.tensor(tokens)), values.new_tensor(-math.inf))
        if not any(guide and guide.remaining for guide in self.beams.guides):
            return found
        reach = Reach(values, own, self.beams.sums, self.beams.guides, self.options.eos)
        return share_beams(found, reach, self.search.width)

    def find_refused(self, found: Candidates) -> list[tuple[int, int]]:
        """The rows and tokens of candidates that their guides do not allow."""
        if not self.guided:
            return []
        rows = zip(found.sums.flatten().tolist(), found.parents.flatten().tolist(), found.tokens.flatten().tolist(),
                   strict=True)
        return [(row, token) for total, row, token in rows if total > -math.inf
                and (guide := self.beams.guides[row]) is not None and guide.refuses(token)]

    def adjust(self, logprobs: Tensor) -> Tensor:
        """Log probabilities [BM, V] after the penalties of the search."""
        beams, device, none = self.beams, logprobs.device, logprobs.shape[-1]
        start = [torch.tensor(self.before[n] if self.before else (), dtype=torch.long, device=device)
                 for n in beams.sources]
        before = pad_sequence(start, batch_first=True, padding_value=none, padding_side="left")  # B T
        own = torch.from_numpy(self.list_tokens(len(logprobs))).to(device)  # BM T
        text = torch.cat((before.repeat_interleave(beams.sums.shape[1], 0), own), 1)  # BM T
        written = torch.full((len(text),), self.written, device=device)
        return sampling.adjust(logprobs, self.search, text, written, self.eos.expand(len(text), -1))

    def list_tokens(self, rows: int) -> Any:
        """What each row wrote [BM, T]."""
        found, row = np.empty((rows, self.written), dtype=int), np.arange(rows)
        for at, step in reversed(list(enumerate(self.steps))):
            found[:, at], row = step[row, 2], step[row, 1].astype(int)
        return found

    def rank_groups(self, values: Tensor, own: Tensor, wanted: int) -> Candidates:
        """One group after another: each pays for what those before it chose to go on with."""
        groups, width = self.search.groups, self.beams.sums.shape[1]
        times = values.new_zeros(len(self.limits) // groups, values.shape[-1])  # of each source's tokens
        group = torch.tensor([n % groups for n in self.beams.sources], device=values.device)  # B
        source = torch.tensor([n // groups for n in self.beams.sources], device=values.device)  # B
        found = self.rank_values(values, own, wanted)
        for g in range(1, groups):
            ends = torch.isin(found.tokens, self.eos)  # B C
            columns = ends.int().sort(dim=-1, stable=True).indices[:, : self.search.width]  # B M
            live = found.select_columns(columns)
            chosen = (group == g - 1)[:, None] & ~ends.gather(1, columns) & live.sums.isfinite()  # B M
            times.index_put_((source[:, None].expand_as(chosen)[chosen], live.tokens[chosen]),
                             values.new_tensor(1.0), accumulate=True)
            paid = values - self.search.diversity_penalty * times[source].repeat_interleave(width, 0)  # BM V
            later = self.rank_values(paid, own, wanted)
            mine = (group == g)[:, None]
            found = Candidates(*(torch.where(mine, new, old) for new, old in
                                 zip(vars(later).values(), vars(found).values(), strict=True)))
        return found

    def is_done(self, source: int, length: int, best: float) -> bool:
        """Whether the search for this source is over, its likeliest live hypothesis having the sum `best`."""
        search, found, longest = self.search, self.ended[source], self.limits[source]
        if length >= longest or best == -math.inf:
            return True
        enough = search.width if search.stop in ("first", "settled") else self.best
        if search.stop == "never" or len(found) < enough:
            return False
        if search.stop == "first":
            return True
        # sums only fall, and the divisor is monotonic in the length: its best case stands at one of the two ends
        reach = (length + 1, longest) if search.stop == "bound" else (length,)
        return found[self.best - 1].score >= best / max(search.divisor(n) for n in reach)

    def write_best(self, source: int, live: list[Candidate]) -> None:
        """Write out the n best of a source that is done; where too few ended, the live ones stand after them."""
        found = self.ended[source]
        for c in sorted(live, key=lambda c: -c.total):
            whole = not ((guide := self.lead(c)) and guide.remaining)
            if len(found) < self.best and whole and c.total > -math.inf:
                found.append(self.end_text(c, "length"))
        self.found[source] = [self.write_out(e) for e in found[: self.best]]
        if not found:
            self.faults[source] = QkvError(
                "text {number}: nothing was found that obeys what is asked of it (to begin with, hold or avoid certain "
                "words, or follow a grammar); ask for less, or raise beam", code="no-token",
                number=source // self.search.groups + 1)


def list_candidates(rows: Any) -> list[Candidate]:
    """The candidates of a table [C, 4]."""
    return [Candidate(total, int(row), int(token), logprob) for total, row, token, logprob in rows.tolist()]


def check_guides(guides: Seq[Guide | None], limits: Seq[int]) -> None:
    """QkvError for the first text that has no room for what it must hold."""
    for n, (guide, limit) in enumerate(zip(guides, limits, strict=bool(guides))):
        if guide is not None and guide.remaining > limit:
            raise QkvError("text {number}: what it must hold has {needed} tokens, and at most {limit} may be written; "
                           "shorten it or raise max_new_tokens", code="constraint-length", number=n + 1,
                           needed=guide.remaining, limit=limit)


def place_children(rows: Any, beams: int) -> Any:
    """Which child stands at each place [B, M]: the first one of a parent at that one's, the others at free ones.

    `rows` [B, M] are the parents, of so many `beams` each. A cache row moves only where one has several children.
    """
    parents = rows % beams
    later = np.tril(parents[:, :, None] == parents[:, None], -1).any(2)  # B M, has an elder sister
    taken = (parents[:, None] == np.arange(rows.shape[1])[:, None]).any(2)  # B M
    place = np.where(later, 0, parents)
    place[later] = np.nonzero(~taken)[1]  # each source has as many free places
    return np.argsort(place, 1)


def join_groups(found: list[list[Hypothesis]], groups: int) -> list[list[Hypothesis]]:
    """The hypotheses of each source: the best of every group, the best one first, then the second best, and so on.

    What several groups found stands there once.
    """
    joined: list[list[Hypothesis]] = []
    for n in range(0, len(found), groups):
        ranks = zip_longest(*found[n : n + groups])
        ordered = [h for rank in ranks for h in sorted(filter(None, rank), key=lambda h: -h.score)]
        best = {tuple(h.tokens): h for h in reversed(ordered)}
        joined.append([h for h in ordered if best[tuple(h.tokens)] is h])
    return joined


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
    beam and stop="first" or "settled" this is greedy decoding. The cores of `ensemble`, of the same vocabulary, search
    with it: each token has the mean of their probabilities.
    With groups each group's best come before any second best, and there may be fewer than n.
    Raises QkvError as `generate` does, and where no text obeys its guide; the other texts are searched for first.
    """
    from qkv.generation.engine import Engine  # which searches by what stands above

    if search.groups > 1:  # a group is a search of its own, beside those of the same source
        prompts = [prompt for prompt in prompts for _ in range(search.groups)]
        each = tuple(g for g in options.guides for _ in range(search.groups if len(options.guides) > 1 else 1))
        options = replace(options, guides=each)
    handles = Engine(core).submit_batch(prompts, options, search=search, ensemble=ensemble)
    for handle in handles:
        handle.engine.wait(handle, until_done=True)
    for handle in handles:
        handle.result()
    found = join_groups([handle.hypotheses for handle in handles], search.groups)
    return [hypotheses[: search.nbest] for hypotheses in found]
