"""What the addresses share: the models, the bounds, who has how much running, and what was kept to be looked into."""

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qkv.serve.fields import RequestError
from qkv.serve.metrics import Metrics
from qkv.serve.models import Loaded, Models

Answer = TypeVar("Answer")
KEPT = 256  # answers that can still be looked into


@dataclass(frozen=True)
class Bounds:
    """What a request, and what a key, may take.

    body     bytes of a request's body, which must come within `patience` seconds
    prompt   tokens of a prompt or source; None: what the model and its pages hold
    tokens   new tokens of one answer
    queue    requests that may wait while as many as the engine has rows are answered
    seconds  from the first look at a request to the end of its answer
    streams  requests of one key at a time
    """

    body: int = 4 << 20
    patience: float = 30.0
    prompt: int | None = None
    tokens: int = 4096
    queue: int = 64
    seconds: float = 600.0
    streams: int = 1024


@dataclass(frozen=True)
class Caller:
    """Who asks: the name of the key, the request's id, the language of the errors, and what the log says of it."""

    key: str = ""
    id: str = ""
    lang: str = "en"
    notes: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Written:
    """An answer that was kept: whose it is, the model, the ids that were read and written, and their logprobs."""

    key: str
    model: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(eq=False)
class Service:
    """One server's state."""

    models: Models
    bounds: Bounds = field(default_factory=Bounds)
    metrics: Metrics = field(default_factory=Metrics)
    languages: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    draining: bool = False
    running: Counter[str] = field(default_factory=Counter[str])  # requests by model
    by_key: Counter[str] = field(default_factory=Counter[str])
    kept: OrderedDict[str, Written] = field(default_factory=OrderedDict[str, Written])
    usual: float = 1.0  # seconds that a request takes, a moving mean
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "qkv-read"))
    cancels: set[Callable[[], None]] = field(default_factory=set[Callable[[], None]])  # of what is being written

    async def think(self, function: Callable[..., Answer], *args: Any) -> Answer:
        """What a function gives that may take its time, such as a template, beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *args)

    @asynccontextmanager
    async def admit(self, caller: Caller, name: str | None) -> AsyncIterator[Loaded]:
        """A model for one request; or a RequestError with status 429, at once, where too much is waiting."""
        name = self.models.find_name(name)
        with self.count_running(caller, name):
            async with self.models.use(name) as one:
                yield one

    @contextmanager
    def count_running(self, caller: Caller, name: str) -> Iterator[None]:
        """Count a request while it runs."""
        rows, began = self.models.holding.rows, time.monotonic()
        if self.draining:
            raise RequestError("the server is shutting down", status=503, code="shutting_down",
                               headers={"retry-after": "5"})
        if self.running[name] >= rows + self.bounds.queue:
            wait = math.ceil(min(60.0, max(1.0, self.usual * (self.running[name] - rows + 1) / rows)))
            raise RequestError("{count} requests run or wait already; ask again in {seconds} s", status=429,
                               code="rate_limit_exceeded", headers={"retry-after": str(wait)},
                               count=self.running[name], seconds=wait)
        if self.by_key[caller.key] >= self.bounds.streams:
            raise RequestError("this key has {count} requests running already; wait for one of them", status=429,
                               code="rate_limit_exceeded", headers={"retry-after": "1"}, count=self.by_key[caller.key])
        self.running[name] += 1
        self.by_key[caller.key] += 1
        try:
            yield
        finally:
            self.running[name] -= 1
            self.by_key[caller.key] -= 1
            self.usual += 0.1 * (time.monotonic() - began - self.usual)

    def keep(self, number: str, answer: Written) -> None:
        """Keep an answer to be looked into, and forget the oldest."""
        self.kept[number] = answer
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)

    def find_kept(self, number: str, key: str) -> Written | None:
        """A kept answer of this key's own."""
        found = self.kept.get(number)
        return found if found is not None and found.key == key else None

    def cancel_all(self) -> None:
        """End everything that is being written."""
        for cancel in list(self.cancels):
            cancel()
