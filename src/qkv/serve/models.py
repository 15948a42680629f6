"""Models by name: loaded when they are asked for, and the one unused longest unloaded where memory is short."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qkv import hub
from qkv.chat import template as templates
from qkv.chat.template import Template
from qkv.errors import QkvError, nearest
from qkv.generation.engine import Engine
from qkv.generation.runner import ComputeThread
from qkv.generation.scheduler import Limits
from qkv.messages import Message
from qkv.model import Model
from qkv.serve.fields import RequestError, clip_text
from qkv.serve.worker import Worker

Answer = TypeVar("Answer")
SHORTEST = 16  # tokens that an engine's pages hold at least


@dataclass(frozen=True)
class Holding:
    """What the models may hold: bytes of memory together, and of each engine the positions and rows."""

    memory: int | None = None
    tokens: int = 16_384
    rows: int = 32
    batch_invariant: bool = True


@dataclass(eq=False)
class Loaded:
    """A model that is loaded, with its worker; `users` are the requests that have it now."""

    name: str
    model: Model
    worker: Worker
    template: Template | None
    bytes: int
    users: int = 0
    used: float = field(default_factory=time.monotonic)

    @property
    def engine(self) -> Engine | None:
        """What writes; None where the model writes nothing."""
        return self.worker.engine

    @property
    def room(self) -> int:
        """Tokens of prompt and answer together that its context and pages hold."""
        assert self.engine is not None
        pages = (self.engine.pages.count - 1) * self.engine.pages.size
        return min(pages, self.model.spec.context or pages)


class Models:
    """The models that are served: `sources` says by name what qkv.load takes."""

    def __init__(self, sources: Mapping[str, str], load: Callable[[str], Model], holding: Holding) -> None:
        self.sources, self.load, self.holding = dict(sources), load, holding
        self.loaded: dict[str, Loaded] = {}
        self.thread = ComputeThread()
        self.created = int(time.time())
        self.turn = asyncio.Lock()  # one model is loaded at a time

    @property
    def first(self) -> str:
        """The model of a request that names none."""
        return next(iter(self.sources))

    def find_name(self, name: str | None) -> str:
        """The name, or the first one; a RequestError with status 404 says which there are."""
        name = self.first if name is None else name
        if name not in self.sources:
            raise RequestError("model: there is no {name!r} here{hint} (there are: {known})", status=404,
                               code="model_not_found", param="model", name=clip_text(name),
                               hint=nearest(clip_text(name), self.sources), known=", ".join(self.sources))
        return name

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Loaded]:
        """A model for the time of a request, in which it stays loaded."""
        name = self.find_name(name)
        if name not in self.loaded:
            async with self.turn:
                if name not in self.loaded:
                    self.loaded[name] = await self.open(name)
        found = self.loaded[name]
        found.users += 1
        try:
            yield found
        finally:
            found.users -= 1
            found.used = time.monotonic()

    async def open(self, name: str) -> Loaded:
        """Load a model, in a thread of its own; others make room first."""
        source = self.sources[name]
        try:
            await self.make_room(await asyncio.to_thread(self.weigh, source))
            model, engine = await run_apart(self.load_ready, source)
        except RequestError:
            raise
        except QkvError as e:
            raise RequestError("the model {name} could not be loaded; the server's log says why", status=503,
                               code="model_not_loaded", name=name) from e
        template = templates.find_template(model.tokenizer) if model.tokenizer else None
        worker = Worker(engine, asyncio.get_running_loop(), self.thread)
        return Loaded(name, model, worker, template, weigh_model(model, engine))

    def load_ready(self, source: str) -> tuple[Model, Engine | None]:
        """Load a model and its engine, whose kernels are tried now rather than in the first request."""
        model = self.load(source)
        engine = make_engine(model, self.holding)
        if engine is not None:
            _ = engine.passes
        return model, engine

    def weigh(self, source: str) -> int:
        """About how many bytes a model will take: its weights and its pages; 0 without a limit."""
        if self.holding.memory is None:
            return 0
        found = hub.report(source)
        return int(found["weight_bytes"] + found.get("kv_bytes_per_token", 0) * self.holding.tokens)

    async def make_room(self, wanted: int) -> None:
        """Unload those that nobody uses, the one unused longest first, until `wanted` bytes fit.

        Raises:
            RequestError: they do not, with status 503: others are in use, or the model alone is larger.
        """
        limit = self.holding.memory
        while limit is not None and wanted + sum(one.bytes for one in self.loaded.values()) > limit:
            idle = [one for one in self.loaded.values() if one.users == 0]
            if not idle:
                raise RequestError("the model needs {wanted:,} bytes beside those in use, and --memory allows "
                                   "{limit:,}; ask again later", status=503, code="no_memory",
                                   headers={"retry-after": "10"}, wanted=wanted, limit=limit)
            await self.unload(min(idle, key=lambda one: one.used))

    async def unload(self, one: Loaded) -> None:
        """End what a model writes and let go of it."""
        del self.loaded[one.name]
        await asyncio.to_thread(one.worker.close)

    async def unload_all(self) -> None:
        """Unload all, and end the thread that computes."""
        for one in list(self.loaded.values()):
            await self.unload(one)
        await asyncio.to_thread(self.thread.shutdown)

    @property
    def alive(self) -> bool:
        """Whether every model answers."""
        return all(one.worker.alive for one in self.loaded.values())


async def run_apart(function: Callable[..., Answer], *args: Any) -> Answer:
    """Call a function in a thread that ends with it, and with it its pool of libgomp (see `ComputeThread`)."""
    pool = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *args)
    finally:
        pool.shutdown(wait=False)


def make_engine(model: Model, holding: Holding) -> Engine | None:
    """An engine for a model, with pages for as many positions as its rows can have; None where it writes nothing."""
    spec = model.spec
    if spec.decoder is None or spec.head is None or not spec.has_blocks:
        return None
    most = holding.rows * spec.context if spec.context else holding.tokens
    limits = {"rows": holding.rows, "tokens": max(holding.rows, Limits.tokens)}
    return model.engine(tokens=max(SHORTEST, min(holding.tokens, most)), limits=limits,
                        batch_invariant=holding.batch_invariant)


def weigh_model(model: Model, engine: Engine | None) -> int:
    """The bytes of a model's weights, and of its pages once all are full."""
    weights = sum(t.numel() * t.element_size() for t in (*model.core.parameters(), *model.core.buffers()))
    if engine is None:
        return weights
    found = hub.report(model, dtype=str(model.core.embed.weight.dtype).removeprefix("torch."))
    return weights + int(found.get("kv_bytes_per_token", 0) * engine.pages.count * engine.pages.size)


def describe_model(name: str, one: Loaded | None, created: int) -> dict[str, Any]:
    """A model as `/v1/models` lists it."""
    found: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "qkv",
                             "loaded": one is not None}
    if one is not None:
        found |= {"kind": one.model.spec.architecture, "chat": one.template is not None,
                  "writes": one.engine is not None,
                  "max_model_len": one.room if one.engine else one.model.spec.stack.longest}
    return found


def refuse_use(one: Loaded, what: Message) -> RequestError:
    """The error for a model that cannot do what was asked."""
    from qkv.tasks.describe import describe_use

    return RequestError("{what}: the model {name} is {kind}", code="model_not_fit", param="model",
                        what=what, name=one.name, kind=describe_use(one.model.spec))
