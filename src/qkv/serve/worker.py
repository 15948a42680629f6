"""A model in the thread that computes (generation/runner.py), as a loop sees it: it is told what each step wrote.

    worker = Worker(engine, asyncio.get_running_loop(), thread)
    await worker.submit([Request(ids, options, sampling=…)], writings)     # on the loop; checked in the thread
    async for n, events in read_events(writings): ...                      # what each step wrote
    await worker.call(model.embed, texts)                                  # between two steps
"""

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from qkv.errors import QkvError
from qkv.generation.beam import Search
from qkv.generation.engine import Engine
from qkv.generation.request import Handle
from qkv.generation.runner import ComputeThread, Runner
from qkv.generation.sequence import DecodeOptions, Event
from qkv.sampling import Sampling

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Request:
    """What `Engine.submit` takes; of one that is wanted `whole` the loop hears at its end alone."""

    ids: Sequence[int]
    options: DecodeOptions
    sampling: Sampling = Sampling()  # noqa: RUF009  frozen
    search: Search | None = None
    whole: bool = False


class Writing:
    """A request in the engine, as the loop sees it."""

    def __init__(self, handle: Handle, *, whole: bool) -> None:
        self.handle, self.whole = handle, whole
        self.arrived: list[Event] = []
        self.changed = asyncio.Event()
        self.done = False

    def receive(self, events: list[Event], done: bool) -> None:
        """What a step wrote; on the loop."""
        self.arrived += events
        self.done = done
        self.changed.set()

    def cancel(self) -> None:
        """End it: its pages are free by the next step."""
        if not self.done:
            self.handle.cancel()


async def read_events(writings: Sequence[Writing]) -> AsyncGenerator[tuple[int, list[Event]]]:
    """The number of a request with its new events, of one or more steps, until all have ended. Raises their error."""
    changed, left = asyncio.Event(), set(range(len(writings)))
    for writing in writings:
        writing.changed = changed
    changed.set()  # something may have come before
    while left:
        await changed.wait()
        changed.clear()
        for n in sorted(left):
            writing = writings[n]
            events, writing.arrived = writing.arrived, []
            if events:
                yield n, events
            if writing.done and not writing.arrived:
                left.discard(n)
                if writing.handle.error:
                    raise writing.handle.error


class Worker(Runner):
    """A Runner whose answers and events come to a loop."""

    def __init__(
        self, engine: Engine | None, loop: asyncio.AbstractEventLoop, thread: ComputeThread | None = None,
    ) -> None:
        self.loop = loop
        self.live: dict[Handle, Writing] = {}
        super().__init__(engine, thread)

    @property
    def alive(self) -> bool:
        """Whether requests are answered."""
        return self.open and self.thread.alive

    def call(self, function: Callable[..., Answer], *args: Any, **how: Any) -> "asyncio.Future[Answer]":
        """What a function gives, called in the thread between two steps; from the loop."""
        return self.post(partial(function, *args, **how))

    def post(self, call: Callable[[], Answer], *, deferred: bool = False) -> "asyncio.Future[Answer]":
        """As ComputeThread.post, from the loop."""
        if not self.open:
            raise QkvError("this model is being unloaded; ask again", code="closed")
        return asyncio.wrap_future(self.thread.post(call, deferred=deferred), loop=self.loop)

    async def submit(self, requests: Sequence[Request], found: list[Writing]) -> None:  # type: ignore[override]
        """Requests that begin together, put into `found`; with an error of `Engine.submit` none of them runs."""
        whole = all(one.whole for one in requests)  # nothing is sent before they end
        try:
            await self.post(partial(self.begin, requests, found), deferred=whole)
        except asyncio.CancelledError:
            if self.open:
                self.do(lambda: [writing.cancel() for writing in found])  # whoever asked has left meanwhile
            raise

    def begin(self, requests: Sequence[Request], found: list[Writing]) -> None:
        """Put requests to the engine; in the thread."""
        assert self.engine is not None
        try:
            for one in requests:
                handle = self.engine.submit(one.ids, one.options, sampling=one.sampling, search=one.search)
                self.live[handle] = Writing(handle, whole=one.whole)
                found.append(self.live[handle])
        except QkvError:
            for writing in found:
                writing.cancel()
            raise

    def explain(self, error: Exception) -> QkvError:
        """What a client hears; the log has the rest."""
        traceback.print_exception(error)
        return QkvError("a step of the engine failed; the server's log says why", code="step", error=error)

    def announce_step(self) -> None:
        """Tell the loop what the last step wrote, all of it at once."""
        news: list[tuple[Writing, list[Event], bool]] = []
        for handle, writing in list(self.live.items()):
            if handle.done or (handle.events and not writing.whole):
                done, events = handle.done, list(handle.events)
                handle.events.clear()
                news.append((writing, events, done))
                if done:
                    del self.live[handle]
        if news and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(deliver, news)


def deliver(news: list[tuple[Writing, list[Event], bool]]) -> None:
    """Give each request its events; on the loop."""
    for writing, events, done in news:
        writing.receive(events, done)
