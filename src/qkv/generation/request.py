"""A request: who chooses its tokens, who is told, and the two ways in which its ids are read.

One that comes by itself has rows in the pages, where each beam of a search is a table (`BeamTables`). Those that come
together are a `Batch`: nobody joins them, so their keys lie side by side in one buffer, and one product reads them all.
Letters: B rows, V vocabulary.
"""

import contextvars
import math
import time
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.generation.beam import BeamSearch, Hypothesis
from qkv.generation.decoder import Decoder, Ensemble
from qkv.generation.pages import Paged, Pages
from qkv.generation.sampler import Choice, Sampler
from qkv.generation.scheduler import Group, Row
from qkv.generation.sequence import Event, Sequence, Timing, Writer


class Host(Protocol):
    """What a handle asks of the engine that it belongs to."""

    def wait(self, handle: "Handle", *, until_done: bool = False) -> None: ...

    def note_cancel(self) -> None: ...


class Handle:
    """A request that was submitted: its tokens as they come, its result, and a way to take it back.

    Leaving off before the end, by a closed iteration or by an interrupt, takes it back too.
    """

    def __init__(self, engine: Host, group: Group, sequence: Sequence) -> None:
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
        try:
            ended = False
            while not ended:
                ended = self.done  # before its events are looked at: a thread may add the last ones
                while self.events:
                    yield self.events.popleft()
                if not ended:
                    self.engine.wait(self)
        finally:
            self.cancel()
        if self.error:
            raise self.error

    def result(self) -> Sequence:
        """The text when it is written; of a search its best, and `hypotheses` has all. Raises the request's error."""
        try:
            self.engine.wait(self, until_done=True)
        finally:
            self.cancel()
        if self.error:
            raise self.error
        return self.sequence

    def cancel(self) -> None:
        """Take the request back: by the next step its pages are free; its result is what was written, "cancelled"."""
        if not self.done:
            self.cancelled = True
            self.engine.note_cancel()


class Request:
    """One text that the engine writes, with who chooses for it and who is told."""

    def __init__(self, handle: Handle, writer: Writer, sampler: Sampler) -> None:
        self.handle, self.writer, self.sampler = handle, writer, sampler
        self.group, self.sequence = handle.group, writer.sequence
        self.search: BeamSearch | None = None  # over tables of pages
        self.source: Seq[int] = ()
        self.trace: AbstractContextManager[object] | None = None
        self.context = contextvars.Context()  # where its trace listens, and whoever listens to the caller does not
        self.cache: Paged | None = None  # of a traced request, which sees one cache
        self.since = time.perf_counter()

    @cached_property
    def alike(self) -> object:
        """Requests that are equal in this may be chosen for together."""
        options = replace(self.sampler.options, max_new_tokens=None, text_stream=None, stop_strings=(), guides=())
        return self.sampler.sampling, options

    def take_token(self, choice: Choice, n: int) -> None:
        """Take the token of row n of a choice.

        Raises:
            QkvError: the logits were not finite numbers.
        """
        token, logprob, sequence = choice.tokens[n], choice.logprobs[n], self.sequence
        if not math.isfinite(logprob):
            raise QkvError("request {number}, token {tokens}: its logits are not finite numbers; `check` scans the "
                           "model's weights", code="logits-not-finite", number=self.group.number,
                           tokens=len(sequence.tokens))
        text, top = self.writer.write(token, logprob), choice.top[n] if choice.top else ()
        if top:
            sequence.top_logprobs.append(top)
        self.handle.events.append(Event(0, token, logprob, text, sequence.finish_reason, top))
        for row in self.group.rows:
            row.ids.append(token)
            row.logits = None
            now = time.perf_counter()
            sequence.timing.add_tokens(1, now - self.since)
            self.since = now

    def take_found(self, search: BeamSearch, n: int) -> None:
        """Take what a search found for its source n, best first, or why it failed."""
        self.handle.error, self.handle.hypotheses = search.faults.get(n), search.found[n][: search.search.nbest]
        if self.handle.error:
            self.sequence.finish_reason = "error"
            return
        best = self.handle.hypotheses[0]
        for token, logprob in zip(best.tokens, best.logprobs, strict=True):
            self.writer.write(token, logprob)
        self.sequence.finish_reason = best.finish_reason

    def advance_search(self) -> None:
        """Take the next ids of all beams."""
        search = self.search
        assert search is not None
        tokens = search.advance(torch.stack([row.logits for row in self.group.rows if row.logits is not None]))
        if not search.beams.sources:
            self.take_found(search, 0)
        for row, token in zip(self.group.rows, tokens.tolist(), strict=False):  # none where the search is over
            row.ids.append(token)


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


class Batch:
    """Requests that came together, read side by side; one that ends leaves, and the others close up.

    They hear what listens to their caller, as one pass over all rows.
    """

    def __init__(self, requests: Seq[Request], reader: Decoder | Ensemble, search: BeamSearch | None) -> None:
        self.requests, self.reader, self.search = requests, reader, search
        self.live = list(requests)
        self.last: Tensor | None = None  # B, the ids that are read next
        self.timing = Timing()
        for request in requests:
            request.sequence.timing = self.timing
        self.context = contextvars.copy_context()

    @property
    def done(self) -> bool:
        """Whether all its requests ended."""
        return all(request.group.done for request in self.live)

    def read_next(self) -> Tensor:
        """Logits [B, V] after one more token of each row, or after the prompts."""
        if self.search is None:
            self.drop_finished()
        if self.last is not None:
            return self.reader.decode(self.last)
        room = max(request.writer.limit for request in self.live)
        return self.reader.prefill([r.sequence.prompt for r in self.live], min(room, 64 if self.search else 256))

    def drop_finished(self) -> None:
        """Rows whose requests ended leave; a search sees to its own."""
        stay = [n for n, request in enumerate(self.live) if not request.group.done]
        if len(stay) == len(self.live):
            return
        self.live = [self.live[n] for n in stay]
        if self.last is not None:
            index = torch.tensor(stay, dtype=torch.long, device=self.last.device)
            self.last = self.last[index]
            self.reader.select_rows(index, index)

    def advance_search(self, logits: Tensor) -> list[Request]:
        """Take the next ids of all beams of all sources; the requests that are done."""
        search = self.search
        assert search is not None
        self.last = search.advance(logits)
        left = set(search.beams.sources)
        ended = [n for n, request in enumerate(self.requests) if n not in left and not request.group.done]
        for n in ended:
            self.requests[n].take_found(search, n)
        return [self.requests[n] for n in ended]
