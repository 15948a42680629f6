"""Requests at any time, one step at a time: plan, read, choose. Knows no threads and no text beyond the streams given.

    engine = Engine(core)
    handle = engine.submit([5, 9, 11], DecodeOptions(20))
    for event in handle: ...            # drives the engine; so does handle.result()

A sequence (sequence.py) is one text that is written; its keys lie in pages (pages.py); the scheduler (scheduler.py)
says who reads and who writes; the core runs by passes.py; the sampler (sampler.py) chooses.
"""

import contextvars
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from qkv import sampling as sample
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.generation.beam import BeamSearch, Hypothesis, Search
from qkv.generation.decoder import count_new_tokens, find_blanks
from qkv.generation.pages import Paged, Pages
from qkv.generation.passes import Passes, Tiles, attentions
from qkv.generation.sampler import Choice, Sampler
from qkv.generation.scheduler import Group, Limits, Row, Scheduler, Work
from qkv.generation.sequence import DecodeOptions, Event, Finish, Sequence, Writer
from qkv.sampling import Sampling


@dataclass(frozen=True)
class Settings:
    """How much an engine holds, and whether company may change the last bits.

    tokens           positions that the pages hold, of all texts together
    page_size        positions of a page
    limits           what goes into one step
    keep_prefixes    find the pages of texts that begin alike, so that these are read once
    batch_invariant  every token and logprob has the bits that its request has alone
    """

    tokens: int = 16_384
    page_size: int = 16
    limits: Limits = field(default_factory=Limits)
    keep_prefixes: bool = True
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("page_size", self.page_size), *vars(self.limits).items()):
            if value < 1:
                raise QkvError("{name}: found {value}, expected at least 1", name=name, value=value)
        if self.limits.rows > self.limits.tokens:
            raise QkvError("limits: {rows} rows need as many tokens a step, and tokens is {tokens}",
                           rows=self.limits.rows, tokens=self.limits.tokens)


class Handle:
    """A request that was submitted: its tokens as they come, its result, and a way to take it back."""

    def __init__(self, engine: "Engine", group: Group, sequence: Sequence) -> None:
        self.engine, self.group, self.sequence = engine, group, sequence
        self.events: deque[Event] = deque()
        self.hypotheses: list[Hypothesis] = []  # of a search, best first
        self.error: QkvError | None = None
        self.cancelled = False

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.group.done

    def __iter__(self) -> Iterator[Event]:
        """Each token when it is chosen, as an Event; of a search nothing. Steps the engine where it must."""
        while True:
            while self.events:
                yield self.events.popleft()
            if self.done:
                break
            self.engine.wait(self)
        if self.error:
            raise self.error

    def result(self) -> Sequence:
        """The text when it is written; of a search its best, and `hypotheses` has all. Raises the request's error."""
        self.engine.wait(self, until_done=True)
        if self.error:
            raise self.error
        return self.sequence

    def cancel(self) -> None:
        """Take the request back: the next step frees its pages, and its result is what was written, "cancelled"."""
        self.cancelled = True


class Request:
    """A group of rows that the engine writes, with who chooses for it and who is told."""

    def __init__(
        self, group: Group, writer: Writer, sampler: Sampler, trace: AbstractContextManager[object] | None
    ) -> None:
        self.group, self.writer, self.sampler, self.trace = group, writer, sampler, trace
        self.handle: Handle
        self.search: BeamSearch | None = None
        self.source: Seq[int] = ()
        self.context = contextvars.copy_context()  # where a trace listens
        self.cache: Paged | None = None  # of a traced request, which sees one cache
        self.began = time.perf_counter()

    def take_token(self, choice: Choice, n: int) -> None:
        """Take the token of row n of a choice."""
        (row,), sequence = self.group.rows, self.writer.sequence
        if not math.isfinite(choice.logprobs[n]):
            raise QkvError("request {number}, token {tokens}: its logits are not finite numbers; `check` scans the "
                           "model's weights", code="logits-not-finite", number=self.group.number,
                           tokens=len(sequence.tokens))
        text = self.writer.write(choice.tokens[n], choice.logprobs[n])
        row.ids.append(choice.tokens[n])
        row.logits = None
        self.handle.events.append(Event(0, choice.tokens[n], choice.logprobs[n], text, sequence.finish_reason))
        timing, now = sequence.timing, time.perf_counter() - self.began
        timing.tokens += 1
        if timing.tokens == 1:
            timing.prefill = now
        timing.decode, timing.decoded = now - timing.prefill, timing.tokens - 1

    def advance_search(self) -> None:
        """Take the next ids of all beams."""
        search = self.search
        assert search is not None
        logits = torch.stack([row.logits for row in self.group.rows if row.logits is not None])
        tokens = search.advance(logits).tolist()
        if search.beams.sources:
            for row, token in zip(self.group.rows, tokens, strict=True):
                row.ids.append(token)
            return
        self.handle.hypotheses = search.found[0][: search.search.nbest]
        best, sequence = self.handle.hypotheses[0], self.writer.sequence
        for token, logprob in zip(best.tokens, best.logprobs, strict=True):
            self.writer.write(token, logprob)
        sequence.finish_reason = best.finish_reason


class BeamTables:
    """What a beam search knows as its decoder: each beam is a table of pages, and a beam's child reads its parent's."""

    def __init__(self, group: Group, pages: Pages) -> None:
        self.group, self.pages, self.device = group, pages, pages.device

    def select_rows(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Row i continues row rows[i]; nothing is copied until a shared page is written."""
        old = self.group.rows
        self.group.rows = [Row(list(old[i].ids), self.pages.fork(old[i].table)) for i in rows.tolist()]
        for row in old:
            self.pages.release(row.table)

    def reorder(self, parents: Tensor) -> None:
        """As `select_rows`: tables move, keys do not."""
        self.select_rows(parents)


class Engine:
    """Takes requests at any time and writes them together; `step` moves each running one by at most one token."""

    def __init__(self, core: Transformer, settings: Settings = Settings()) -> None:
        self.core, self.settings = core, settings
        device, size = core.embed.weight.device, settings.page_size
        self.pages = Pages(-(-settings.tokens // size) + 1, size, device)
        self.scheduler = Scheduler(self.pages, settings.limits)
        self.passes = (Tiles if settings.batch_invariant else Passes)(core, self.pages)
        windows = [a.mask.window for a in attentions(core.spec)]
        self.window = None if None in windows else max(w for w in windows if w)
        self.requests: dict[Group, Request] = {}
        self.submitted = 0

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.requests)

    def submit(
        self, prompt: Seq[int], options: DecodeOptions = DecodeOptions(), *, sampling: Sampling = Sampling(),  # noqa: B008
        search: Search | None = None, trace: AbstractContextManager[object] | None = None,
    ) -> Handle:
        """A request: its prompt, or for an encoder-decoder its source, is read when its turn comes.

        With `search` beams look for the likeliest text. `trace` listens to this request's passes alone.

        Raises:
            QkvError: a prompt that is empty, too long or of unknown ids, or more than all pages hold.
        """
        spec, start = self.core.spec, list(options.start)
        (limit,) = count_new_tokens(self.core, [prompt], options)
        if not options.cache or options.chunk:
            raise QkvError("engine: it always keeps keys, and reads long prompts in pieces of its own; remove cache "
                           "and chunk")
        prefix = spec.architecture == "prefix decoder"
        ids = start if spec.encoder else [*prompt, *start] if prefix else list(prompt)
        self.check_room(len(ids), limit, search.beams if search else 1)
        group = Group(self.submitted, [Row(ids)], whole=len(ids) if prefix else 0, window=self.window)
        shared = self.settings.keep_prefixes and trace is None and not prefix
        group.root = (repr(list(prompt)).encode() if spec.encoder else b"") if shared else None
        if prefix:
            group.inputs = replace(group.inputs, prefix_len=torch.tensor([len(prompt)], device=self.pages.device))
        if spec.fills_blanks:
            places = torch.tensor(find_blanks([prompt], options.blanks), device=self.pages.device)
            group.inputs = replace(group.inputs, blank_pos=places)
        seed = sample.seeds(sampling.seed, [prompt])[0] if sampling.temperature else 0
        writer = Writer(Sequence(tuple(prompt), seed), options, limit)
        request = Request(group, writer, Sampler(sampling, options, self.pages.device), trace)
        request.handle = Handle(self, group, writer.sequence)
        if spec.encoder:
            request.source = list(prompt)
        if search:
            request.search = BeamSearch(BeamTables(group, self.pages), [limit], search, options, [prompt])
        self.submitted += 1
        if limit == 0:  # the prompt fills the context
            writer.sequence.finish_reason, group.done = "length", True
            return request.handle
        if trace is not None:
            request.cache = Paged(self.pages)
            request.context.run(trace.__enter__)
        self.requests[group] = request
        self.scheduler.waiting.append(group)
        return request.handle

    def check_room(self, prompt: int, limit: int, beams: int) -> None:
        """QkvError for a request that needs more pages than there are, even alone."""
        size, there = self.settings.page_size, self.pages.count - 1
        pages = -(-(prompt + limit - 1) // size) if beams == 1 else beams * (-(-(prompt + limit) // size) + 1)
        if pages > there:
            fits = (there * size if beams == 1 else (there // beams - 1) * size) - prompt
            raise QkvError("engine: a prompt of {prompt} tokens that may write {limit} more with {beams} beams needs "
                           "{pages} pages, and there are {there}; at most {fits} new tokens would fit, or give tokens="
                           "{tokens} or more", code="pages", prompt=prompt, limit=limit, beams=beams, pages=pages,
                           there=there, fits=max(0, fits), tokens=pages * size)

    @torch.inference_mode()
    def step(self) -> bool:
        """Plan, read, choose, once; False where there was nothing to do."""
        for request in [r for r in self.requests.values() if r.handle.cancelled]:
            self.close_request(request, reason="cancelled")
        plan = self.scheduler.plan()
        quiet: list[Work] = []
        for work in plan:
            request = self.requests[work.group]
            if request.source and not work.group.memory and work.group.inputs.memory is None:
                self.try_request(request, self.read_source)
            if request.trace is not None and not work.group.done:
                self.try_request(request, lambda request, work=work: self.passes.run_piece(work, request.cache))
            elif not work.group.done:
                quiet.append(work)
        contextvars.Context().run(self.passes.run, quiet)  # whoever listens to the caller does not hear it
        for work in plan:
            if not work.group.done:
                self.scheduler.note(work)
        self.choose([r for g in self.scheduler.running if all(row.logits is not None for row in g.rows)
                     for r in [self.requests[g]]])
        return bool(plan)

    def read_source(self, request: Request) -> None:
        """The source of an encoder-decoder, read once."""
        group = request.group
        group.inputs, group.memory = self.passes.encode_source(request.source, group.rows[0].ids[0])

    def choose(self, ready: Seq[Request]) -> None:
        """The next token of each request whose logits are there; those that choose alike do it together."""
        alike: dict[object, list[Request]] = {}
        for request in ready:
            if request.search:
                self.try_request(request, Request.advance_search)
            else:
                together = not self.settings.batch_invariant
                key = (request.sampler.sampling, request.sampler.options.forbid) if together else request
                alike.setdefault(key, []).append(request)
        for requests in alike.values():
            logits = torch.stack([r.group.rows[0].logits for r in requests if r.group.rows[0].logits is not None])
            choice = requests[0].sampler.choose(logits, [r.writer.sequence for r in requests])
            for n, request in enumerate(requests):
                self.try_request(request, lambda r, n=n, choice=choice: r.take_token(choice, n))
        for request in ready:
            if request.writer.sequence.finish_reason:
                self.close_request(request)

    def try_request(self, request: Request, action: Callable[[Request], None]) -> None:
        """Do something for one request, where its trace listens: its error ends it, and the others go on."""
        try:
            request.context.run(action, request)
        except QkvError as error:
            request.handle.error = error
            self.close_request(request, reason="error")

    def close_request(self, request: Request, *, reason: Finish | None = None) -> None:
        """A request leaves: its pages are free now."""
        if self.requests.pop(request.group, None) is None:
            return
        self.scheduler.remove(request.group)
        request.writer.sequence.finish_reason = reason or request.writer.sequence.finish_reason
        if request.trace is not None:
            try:
                request.context.run(request.trace.__exit__, None, None, None)
            except QkvError as error:
                request.handle.error = request.handle.error or error

    def fail_all(self, error: QkvError | None) -> None:
        """End every request: with an error, or as cancelled."""
        for request in list(self.requests.values()):
            request.handle.error = error
            self.close_request(request, reason="error" if error else "cancelled")

    def wait(self, handle: Handle, *, until_done: bool = False) -> None:
        """Step until a request has something new, or is done."""
        while not handle.done and (until_done or not handle.events):
            worked = self.step()
            assert worked or handle.done, "the scheduler left a request without work"
