"""Requests at any time, one step at a time: plan, read, choose. Knows no threads and no text beyond the streams given.

    engine = Engine(core)
    handle = engine.submit([5, 9, 11], DecodeOptions(20))
    for event in handle: ...            # drives the engine; so does handle.result()

A sequence (sequence.py) is one text that is written; its keys lie in pages (pages.py); the scheduler (scheduler.py)
says who reads and who writes; the core runs by passes.py; the sampler (sampler.py) chooses. Requests that come together
are read side by side instead, from one buffer: `submit_batch`, and `generate`, which needs nothing else.
"""

import contextvars
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch

from qkv import sampling as sample
from qkv.core.model import Transformer
from qkv.devices import keep_freed, read_free_memory
from qkv.errors import QkvError
from qkv.generation.beam import BeamSearch, Search
from qkv.generation.decoder import Decoder, Ensemble, count_new_tokens, find_blanks
from qkv.generation.pages import Paged, Pages
from qkv.generation.passes import Passes, Tiles, attentions, count_beside, position_bytes
from qkv.generation.request import Batch, BeamTables, Handle, Request
from qkv.generation.sampler import Choice, Sampler
from qkv.generation.scheduler import Group, Limits, Row, Scheduler, Work
from qkv.generation.sequence import DecodeOptions, Finish, Sequence, Writer
from qkv.sampling import Sampling

SMALL = 1 << 28  # bytes; asking what is free is not worth it for less


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
            if value is not None and value < 1:
                raise QkvError("{name}: found {value}, expected at least 1", name=name, value=value)
        if self.limits.rows > self.limits.tokens:
            raise QkvError("limits: {rows} rows need as many tokens a step, and tokens is {tokens}",
                           rows=self.limits.rows, tokens=self.limits.tokens)


class Driver(Protocol):
    """Who steps an engine while somebody waits for a request, where callers do not step it themselves."""

    def wait(self, handle: Handle, *, until_done: bool) -> None: ...


class Engine:
    """Takes requests at any time and writes them together; `step` moves each running one by at most one token.

    Whoever waits for a handle steps it, on one thread; a Runner (runner.py) serves many.
    """

    def __init__(self, core: Transformer, settings: Settings = Settings()) -> None:
        self.core, self.settings, self.device = core, settings, core.embed.weight.device
        self.requests: dict[Group, Request] = {}
        self.paged: set[Group] = set()  # those of them that lie in the pages
        self.batches: list[Batch] = []
        self.submitted = 0
        self.driver: Driver | None = None
        self.taken_back = False

    @cached_property  # as what follows: requests that come together need none of it
    def pages(self) -> Pages:
        """Where keys lie."""
        return Pages(-(-self.settings.tokens // self.settings.page_size) + 1, self.settings.page_size, self.device)

    @cached_property
    def scheduler(self) -> Scheduler:
        """Who reads and who writes."""
        return Scheduler(self.pages, self.settings.limits, count_beside(self.core), self.passes.round_up)

    @cached_property
    def passes(self) -> Passes:
        """How the core is run."""
        return (Tiles if self.settings.batch_invariant else Passes)(self.core, self.pages)

    @cached_property
    def window(self) -> int | None:
        """Positions that any layer still looks back to; None: all of them."""
        windows = [a.mask.window for a in attentions(self.core.spec)]
        return None if None in windows else max(w for w in windows if w)

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.requests)

    def submit(
        self, prompt: Seq[int], options: DecodeOptions = DecodeOptions(), *, sampling: Sampling = Sampling(),  # noqa: B008
        search: Search | None = None, trace: AbstractContextManager[object] | None = None, seed: int | None = None,
    ) -> Handle:
        """A request: its prompt, or for an encoder-decoder its source, is read when its turn comes.

        With `search` beams look for the likeliest text. `trace` listens to this request's passes alone. `seed` is what
        its draws are made of, else that of `sampling` with the prompt.

        Raises:
            QkvError: a prompt that is empty, too long or of unknown ids, or more than all pages or the memory hold.
        """
        (request,) = self.open_requests([prompt], options, sampling, search)
        request.sequence.seed = request.sequence.seed if seed is None else seed
        if trace is not None:
            request.context.run(trace.__enter__)
            request.trace, request.cache = trace, Paged(self.pages)
        self.admit(request, search)
        return request.handle

    def submit_batch(
        self, prompts: Seq[Seq[int]], options: DecodeOptions = DecodeOptions(), *, sampling: Sampling = Sampling(),  # noqa: B008
        search: Search | None = None, ensemble: Seq[Transformer] = (),
    ) -> list[Handle]:
        """Requests that nobody joins: read side by side, heard by whoever listens to the caller.

        The cores of `ensemble`, of the same vocabulary, write with this one: each token has the mean of their
        probabilities. Where the engine is batch invariant each is a request of its own.

        Raises:
            QkvError: as `submit`, and for an ensemble in a batch-invariant engine.
        """
        if self.settings.batch_invariant:
            if ensemble:
                raise QkvError("engine: an ensemble is not batch invariant; remove batch_invariant")
            requests = self.open_requests(prompts, options, sampling, search)
            for request in requests:
                self.admit(request, search)
            return [request.handle for request in requests]
        requests = self.write_requests(prompts, options, sampling, search, ensemble)
        if not requests:
            return []
        cores, limits = (self.core, *ensemble), [request.writer.limit for request in requests]
        rows = len(prompts) * (search.beams if search else 1)
        for core in cores:
            check_memory(core, rows * (max(map(len, prompts)) + min(max(limits), 64)))
        if search:
            keep_freed()  # logits come and go at every step, and page faults took 5 to 8 % of the time
        members = [Decoder(one, options) for one in cores]
        reader = Ensemble(members) if ensemble else members[0]
        finder = BeamSearch(reader, limits, search, options, prompts) if search else None
        self.batches.append(Batch(requests, reader, finder))
        self.requests |= {request.group: request for request in requests}
        return [request.handle for request in requests]

    def write_requests(
        self, prompts: Seq[Seq[int]], options: DecodeOptions, sampling: Sampling, search: Search | None,
        ensemble: Seq[Transformer] = (),
    ) -> list[Request]:
        """Requests for prompts that can be read, each with its limit and its seed."""
        own = replace(options, guides=()) if search else options  # a search leads its beams itself
        each = [count_new_tokens(core, prompts, options) for core in (self.core, *ensemble)]
        seeds = sample.seeds(sampling.seed, prompts) if sampling.temperature else [0] * len(prompts)
        usual, found = Sampler(sampling, options, self.device), list[Request]()
        for prompt, seed, limit in zip(prompts, seeds, map(min, zip(*each, strict=True)), strict=True):
            mine = options.select_guide(len(found))
            sampler = usual if mine is options else Sampler(sampling, mine, self.device)
            writer = Writer(Sequence(tuple(prompt), seed), own.select_guide(len(found)), limit)
            found.append(Request(Handle(self, Group(self.submitted, []), writer.sequence), writer, sampler))
            self.submitted += 1
        return found

    def open_requests(
        self, prompts: Seq[Seq[int]], options: DecodeOptions, sampling: Sampling, search: Search | None
    ) -> list[Request]:
        """Requests for which the pages have room; the first asks whether the machine has room for the pages."""
        if not options.cache or options.chunk:
            raise QkvError("engine: it always keeps keys, and reads long prompts in pieces of its own; remove cache "
                           "and chunk")
        if not self.pages.storage:
            check_memory(self.core, self.settings.tokens)
        requests = self.write_requests(prompts, options, sampling, search)
        for request in requests:
            start = len(options.start)
            read = start if self.core.spec.encoder else len(request.sequence.prompt) + start * self.free_prefix
            self.check_room(read, request.writer.limit, search.beams if search else 1)
        return requests

    @property
    def free_prefix(self) -> bool:
        """Whether prompts are read in both directions, and what is written begins behind them."""
        return self.core.spec.architecture == "prefix decoder"

    def admit(self, request: Request, search: Search | None) -> None:
        """A request waits for its turn in the pages."""
        spec, group, options = self.core.spec, request.group, request.sampler.options
        prompt, start, device = request.sequence.prompt, options.start, self.device
        ids = list(start) if spec.encoder else [*prompt, *start] if self.free_prefix else list(prompt)
        group.rows, group.window = [Row(ids)], self.window
        group.root = repr(list(prompt)).encode() if spec.encoder else b""
        if self.free_prefix:
            group.whole = len(ids)
            group.inputs = replace(group.inputs, prefix_len=torch.tensor([len(prompt)], device=device))
        elif not spec.encoder and request.trace is None:
            group.blocks = self.passes.count_in_blocks(len(ids))
        if self.free_prefix or request.trace is not None or not self.settings.keep_prefixes:
            group.root = None
        if spec.fills_blanks:
            places = torch.tensor(find_blanks([prompt], options.blanks), device=device)
            group.inputs = replace(group.inputs, blank_pos=places)
        request.source = prompt if spec.encoder else ()
        if search:
            request.search = BeamSearch(BeamTables(group, self.pages), [request.writer.limit], search, options,
                                        [prompt])
        self.requests[group] = request
        self.paged.add(group)
        self.scheduler.waiting.append(group)

    def check_room(self, prompt: int, limit: int, beams: int) -> None:
        """QkvError for a request that needs more pages than there are, even alone."""
        size, there = self.settings.page_size, self.pages.count - 1
        pages = -(-(prompt + limit - 1) // size) if beams == 1 else beams * (-(-(prompt + limit) // size) + 1)
        if pages > there:
            fits = (there * size + 1 if beams == 1 else (there // beams - 1) * size) - prompt
            raise QkvError("engine: a prompt of {prompt} tokens that may write {limit} more with {beams} beams needs "
                           "{pages} pages, and there are {there}; at most {fits} new tokens would fit, or give tokens="
                           "{tokens} or more", code="pages", prompt=prompt, limit=limit, beams=beams, pages=pages,
                           there=there, fits=max(0, fits), tokens=pages * size)

    @torch.inference_mode()
    def step(self) -> bool:
        """Plan, read, choose, once; False where there was nothing to do."""
        if self.taken_back:
            self.close_cancelled()
        batches, self.batches = self.batches, []
        for batch in batches:
            if not batch.done:
                self.batches.append(batch)
                self.step_batch(batch)
        plan = self.scheduler.plan() if self.paged else []
        if plan:
            self.read_work(plan)
            self.choose([r for g in self.scheduler.running if all(row.logits is not None for row in g.rows)
                         for r in [self.requests[g]]])
        return bool(plan or batches)

    def step_batch(self, batch: Batch) -> None:
        """One token for each row of a batch; an error that is not one row's ends them all."""
        began = time.perf_counter()
        try:
            logits = batch.context.run(batch.read_next)
            if batch.search:
                ended = batch.advance_search(logits)
            else:
                choice = batch.live[0].sampler.choose(logits, [request.sequence for request in batch.live])
                batch.last = choice.ids
                ended = self.share_choice(batch.live, choice)
        except QkvError as error:
            for request in batch.requests:
                self.fail_request(request, error)
            return
        except BaseException:
            for request in batch.requests:
                self.close_request(request, reason="cancelled")
            raise
        batch.timing.add_tokens(len(batch.live), time.perf_counter() - began)
        for request in ended:
            self.close_request(request)

    def read_work(self, plan: list[Work]) -> None:
        """The work of a step through the core: traced requests by themselves, the others together."""
        quiet: list[Work] = []
        for work in plan:
            request = self.requests[work.group]
            if request.source and not work.group.memory and work.group.inputs.memory is None:
                self.try_request(request, self.read_source)
            if request.trace is not None and not work.group.done:
                self.try_request(request, lambda request, work=work: self.passes.run_pass([work], cache=request.cache))
            elif not work.group.done:
                quiet.append(work)
        contextvars.Context().run(self.passes.run, quiet)  # whoever listens to the caller does not hear it
        for work in plan:
            if not work.group.done:
                self.scheduler.note(work)

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
                alike.setdefault(request if self.settings.batch_invariant else request.alike, []).append(request)
        for requests in alike.values():
            logits = torch.stack([r.group.rows[0].logits for r in requests if r.group.rows[0].logits is not None])
            self.share_choice(requests, requests[0].sampler.choose(logits, [r.sequence for r in requests]))
        for request in ready:
            if request.sequence.finish_reason:
                self.close_request(request)

    def share_choice(self, requests: Seq[Request], choice: Choice) -> list[Request]:
        """Give each request its token of a choice; those that ended with it."""
        for n, request in enumerate(requests):
            try:
                request.take_token(choice, n)
            except QkvError as error:
                self.fail_request(request, error)
        return [request for request in requests if request.sequence.finish_reason]

    def try_request(self, request: Request, action: Callable[[Request], None]) -> None:
        """Do something for one request, where its trace listens: its error ends it, and the others go on."""
        try:
            request.context.run(action, request)
        except QkvError as error:
            self.fail_request(request, error)

    def fail_request(self, request: Request, error: QkvError) -> None:
        """A request ends with an error; of one that ended already nothing changes."""
        if not request.group.done:
            request.handle.error = error
            self.close_request(request, reason="error")

    def close_request(self, request: Request, *, reason: Finish | None = None) -> None:
        """A request leaves: its pages are free now."""
        if self.requests.pop(request.group, None) is None:
            return
        request.group.done = True
        if request.group in self.paged:
            self.paged.remove(request.group)
            self.scheduler.remove(request.group)
        request.sequence.finish_reason = reason or request.sequence.finish_reason
        if request.trace is not None:
            try:
                request.context.run(request.trace.__exit__, None, None, None)
            except QkvError as error:
                request.handle.error = request.handle.error or error

    def close_cancelled(self) -> None:
        """Requests that were taken back leave."""
        self.taken_back = False
        for request in [r for r in self.requests.values() if r.handle.cancelled]:
            self.close_request(request, reason="cancelled")

    def fail_all(self, error: QkvError | None) -> None:
        """End every request: with an error, or as cancelled."""
        for request in list(self.requests.values()):
            request.handle.error = error
            self.close_request(request, reason="error" if error else "cancelled")

    def wait(self, handle: Handle, *, until_done: bool = False) -> None:
        """Step until a request has something new, or is done; a driver steps where there is one."""
        if self.driver:
            return self.driver.wait(handle, until_done=until_done)
        while not handle.done and (until_done or not handle.events):
            worked = self.step()
            assert worked or handle.done, "the scheduler left a request without work"
        return None

    def note_cancel(self) -> None:
        """A request was taken back: it leaves at once, or by the next step of a driver."""
        self.taken_back = True
        if self.driver is None:
            self.close_cancelled()


def check_memory(core: Transformer, positions: int) -> None:
    """QkvError where the keys and values of so many positions do not fit into the memory that is free."""
    fits = count_fitting(core) if positions * position_bytes(core) > SMALL else positions
    if positions > fits:
        raise QkvError("keys and values of {positions:,} tokens need {needed:.1f} GiB, and there is room for {fits:,} "
                       "tokens; give fewer tokens, rows or beams", code="memory", positions=positions,
                       needed=positions * position_bytes(core) / (1 << 30), fits=fits)


def count_fitting(core: Transformer) -> int:
    """How many positions' keys and values the free memory of the core's device holds; where nobody says, any number."""
    free = read_free_memory(str(core.embed.weight.device))
    return sys.maxsize if free is None else free // position_bytes(core)


def generate(
    core: Transformer, prompts: Seq[Seq[int]], *, sampling: Sampling = Sampling(),  # noqa: B008  frozen
    options: DecodeOptions = DecodeOptions(),  # noqa: B008
) -> list[Sequence]:
    """Continue each prompt until it stops; of an encoder-decoder the prompts are sources, `options.start` its targets'.

    Raises QkvError for a prompt that is empty, longer than the context, or of unknown ids, and for logits that are
    not finite. A row that reaches the context's end stops with "length".
    """
    handles = Engine(core).submit_batch(prompts, options, sampling=sampling)
    return [handle.result() for handle in handles]
