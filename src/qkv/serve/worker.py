"""The one thread in which a model computes: it steps an engine, does other work between two steps, and tells a loop.

    worker = Worker(engine, asyncio.get_running_loop())
    writings = await worker.submit([Request(ids, options, sampling=…)])    # on the loop; checked in the thread
    async for n, events in read_events(writings): ...                      # what each step wrote
    await worker.call(model.embed, texts)                                  # between two steps

`Runner` (generation/) holds its lock through a step, so that a caller on a loop would wait for it; here nobody waits.
"""

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qkv.errors import QkvError
from qkv.generation.beam import Search
from qkv.generation.engine import Engine
from qkv.generation.request import Handle
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

    def __init__(self, handle: Handle, worker: "Worker", *, whole: bool) -> None:
        self.handle, self.worker, self.whole = handle, worker, whole
        self.arrived: list[Event] = []
        self.changed = asyncio.Event()
        self.done = False

    def receive(self, events: list[Event], done: bool) -> None:
        """What a step wrote; on the loop."""
        self.arrived += events
        self.done = done
        self.changed.set()

    def cancel(self) -> None:
        """End it, in the thread that steps: then its pages are free."""
        if not self.done:
            self.worker.inbox.append(self.handle.cancel)
            self.worker.awake.set()


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


class Worker:
    """Owns an engine, or, of a model that writes nothing, only the thread."""

    def __init__(self, engine: Engine | None, loop: asyncio.AbstractEventLoop) -> None:
        self.engine, self.loop, self.open = engine, loop, True
        self.inbox: deque[Callable[[], None]] = deque()
        self.awake = threading.Event()
        self.live: dict[Handle, Writing] = {}
        self.thread = threading.Thread(target=self.run, name="qkv-serve", daemon=True)
        self.thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self.thread.is_alive()

    def call(self, function: Callable[..., Answer], *args: Any, **how: Any) -> "asyncio.Future[Answer]":
        """What a function gives, called in the thread between two steps; from the loop."""
        answer: asyncio.Future[Answer] = self.loop.create_future()

        def settle(found: Any, error: BaseException | None) -> None:
            if answer.cancelled():
                for writing in found if isinstance(found, list) else ():
                    if isinstance(writing, Writing):
                        writing.cancel()  # whoever asked has left meanwhile
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(found)

        def work() -> None:
            if answer.cancelled():
                return
            try:
                found, error = function(*args, **how), None
            except Exception as e:
                found, error = None, e
            self.loop.call_soon_threadsafe(settle, found, error)

        if not self.open:
            raise QkvError("this model is being unloaded; ask again", code="closed")
        self.inbox.append(work)
        self.awake.set()
        return answer

    def submit(self, requests: Sequence[Request]) -> "asyncio.Future[list[Writing]]":
        """Requests that begin together; the errors of `Engine.submit` come when this is awaited, and then none runs."""
        return self.call(self.begin, requests)

    def begin(self, requests: Sequence[Request]) -> list[Writing]:
        """Put requests to the engine; in the thread."""
        assert self.engine is not None
        found: list[Writing] = []
        try:
            for one in requests:
                handle = self.engine.submit(one.ids, one.options, sampling=one.sampling, search=one.search)
                self.live[handle] = Writing(handle, self, whole=one.whole)
                found.append(self.live[handle])
        except QkvError:
            for writing in found:
                writing.handle.cancel()
            raise
        return found

    def run(self) -> None:
        """Work while there is some, sleep while there is none, until `close`."""
        while self.open:
            self.awake.clear()
            while self.inbox:
                self.inbox.popleft()()
            if self.engine is not None and self.engine.busy:
                try:
                    self.engine.step()
                except Exception as error:  # whatever it is, nobody may wait for ever
                    traceback.print_exc()
                    self.engine.fail_all(QkvError("a step of the engine failed; the server's log says why",
                                                  code="step", error=error))
                self.tell_loop()
            elif self.live:
                self.tell_loop()  # a request that was done when it came
            elif not self.inbox:
                self.awake.wait()
        while self.inbox:  # nobody may wait for ever
            self.inbox.popleft()()
        if self.engine is not None:
            self.engine.fail_all(None)
        self.tell_loop()

    def tell_loop(self) -> None:
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

    def close(self) -> None:
        """End the thread; what is still written ends as cancelled."""
        self.open = False
        self.awake.set()
        self.thread.join()


def deliver(news: list[tuple[Writing, list[Event], bool]]) -> None:
    """Give each request its events; on the loop."""
    for writing, events, done in news:
        writing.receive(events, done)
