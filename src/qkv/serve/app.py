"""The addresses, and how a request becomes an answer: read with bounds, answered whole or as events.

Next: completions.py, what the two main addresses do.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from qkv.serve import embeddings, translations
from qkv.serve.completions import CHAT_FORM, TEXT_FORM, Form, complete
from qkv.serve.fields import RequestError, read_object
from qkv.serve.gate import Access, Gate, Log, describe_error, refuse_key
from qkv.serve.metrics import TYPE, label
from qkv.serve.models import describe_model
from qkv.serve.service import Caller, Service

Bodies = AsyncGenerator[dict[str, Any]]
Make = Callable[[Service, Caller, Mapping[str, Any]], Awaitable[dict[str, Any]]]
Respond = Callable[[Request], Awaitable[Response]]
EVENTS = "text/event-stream"
UNSTORED = {"cache-control": "no-store"}
KEEP_ALIVE = 10.0  # seconds after which a stream that waits says that it is there


def make_app(
    service: Service, access: Access, *, log: Log, cookie: str = "qkv", more: Sequence[BaseRoute] = ()
) -> Starlette:
    """The ASGI application; `more` are addresses that others add, such as a page."""
    plain: dict[str, Make] = {
        "/v1/embeddings": embeddings.embed_inputs, "/v1/translate": translations.translate_texts,
        "/tokenize": embeddings.tokenize, "/detokenize": embeddings.detokenize,
    }
    routes = [
        Route("/v1/chat/completions", answer_writing(service, CHAT_FORM), methods=["POST"]),
        Route("/v1/completions", answer_writing(service, TEXT_FORM), methods=["POST"]),
        *(Route(path, answer_object(service, make), methods=["POST"]) for path, make in plain.items()),
        Route("/translate", answer_libre(service, access), methods=["POST"]),
        *(Route(path, answer_shown(service, make), methods=["GET"]) for path, make in SHOWN.items()),
        *more,
    ]
    made = Starlette(routes=routes, exception_handlers={HTTPException: raise_missing},  # type: ignore[dict-item]
                     middleware=[Middleware(Gate, access, service.metrics, log, cookie)])
    made.router.redirect_slashes = False
    return made


# What is asked


async def read_body(request: Request, service: Service) -> bytes:
    """The body of a request, within its bounds of size and time."""
    most, size, pieces = service.bounds.body, 0, list[bytes]()
    too_large = RequestError("the body has more than {most:,} bytes", status=413, code="body_too_large", most=most)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise too_large
    try:
        async with asyncio.timeout(service.bounds.patience):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise too_large
                pieces.append(piece)
    except TimeoutError:
        raise RequestError("the body did not come within {seconds} s", status=408, code="timeout",
                           seconds=service.bounds.patience) from None
    return b"".join(pieces)


async def stay_with(request: Request, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """An answer, for as long as whoever asked is there; a ClientDisconnect where they leave."""
    task = asyncio.ensure_future(answer)
    left = asyncio.ensure_future(request.receive())  # nothing but their leaving comes after the body
    try:
        while not task.done():
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
            if left.done() and not task.done():
                if left.result()["type"] == "http.disconnect":
                    raise ClientDisconnect
                left = asyncio.ensure_future(request.receive())
        return task.result()
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


# What is answered


def answer_object(service: Service, make: Make) -> Respond:
    """An address with one JSON object."""

    async def respond(request: Request) -> Response:
        body = read_object(await read_body(request, service))
        return say(await stay_with(request, make(service, request.state.caller, body)))

    return respond


def answer_writing(service: Service, form: Form) -> Respond:
    """An address where text is written, as one object or as events."""

    async def respond(request: Request) -> Response:
        body = read_object(await read_body(request, service))
        caller: Caller = request.state.caller
        bodies = complete(service, caller, body, form)
        if body.get("stream") is not True:
            return say(await stay_with(request, take_one(bodies)))
        first = await take_one(bodies, close=False)  # errors come before the head of an answer
        return Events(write_events(first, bodies, request), service.bounds.seconds + service.bounds.patience)

    return respond


async def take_one(bodies: Bodies, *, close: bool = True) -> dict[str, Any]:
    """The first of some bodies."""
    try:
        return await anext(bodies)
    finally:
        if close:
            await bodies.aclose()


class Events(StreamingResponse):
    """Server-sent events; the generator behind them ends with the connection, or when nobody reads for too long."""

    def __init__(self, lines: AsyncGenerator[bytes], seconds: float) -> None:
        super().__init__(lines, media_type=EVENTS, headers={**UNSTORED, "x-accel-buffering": "no"})
        self.lines, self.seconds = lines, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            raise ClientDisconnect from None
        finally:
            await self.lines.aclose()


async def write_events(first: dict[str, Any], bodies: Bodies, request: Request) -> AsyncGenerator[bytes]:
    """Bodies as events; an error that comes late is one too, and noted for the log."""
    async with aclosing(bodies):
        try:
            yield encode_event(first)
            async for body in keep_alive(bodies):
                yield encode_event(body) if body else b": still here\n\n"
            yield b"data: [DONE]\n\n"
        except Exception as error:
            request.state.failure = error
            yield encode_event(describe_error(error, request.state.caller.lang)[1])


async def keep_alive(bodies: Bodies) -> Bodies:
    """Bodies, and while the first of them is waited for an empty one from time to time."""
    task = asyncio.ensure_future(anext(bodies, None))
    try:
        while not (await asyncio.wait({task}, timeout=KEEP_ALIVE))[0]:
            yield {}
        if (body := task.result()) is not None:
            yield body
            async for more in bodies:
                yield more
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def encode_event(body: dict[str, Any]) -> bytes:
    """A body as an event."""
    return b"data: " + dump_json(body) + b"\n\n"


def dump_json(body: Any) -> bytes:
    """JSON in UTF-8."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def say(body: Any, status: int = 200) -> Response:
    """An answer of JSON."""
    return Response(dump_json(body), status, media_type="application/json", headers=UNSTORED)


def answer_libre(service: Service, access: Access) -> Respond:
    """LibreTranslate's address: its clients send forms too, and the key in the body."""

    async def respond(request: Request) -> Response:
        data, caller = await read_body(request, service), request.state.caller
        form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        body = read_form(data) if form and not data.startswith(b"{") else read_object(data)
        if access.keys.hashes and not caller.key:
            key = body.get("api_key")
            name = access.keys.find_name(key) if isinstance(key, str) else None
            if name is None:
                raise refuse_key()
            caller = replace(caller, key=name)
        return say(await stay_with(request, translations.translate_as_libre(service, caller, body)))

    return respond


def read_form(data: bytes) -> dict[str, Any]:
    """The fields of a form."""
    try:
        found: dict[str, Any] = {k: v[-1] for k, v in parse_qs(data.decode(), strict_parsing=True, errors="strict",
                                                              max_num_fields=64).items()}
    except ValueError:
        raise RequestError("the body is no form and no JSON", code="invalid_json") from None
    if str(found.get("alternatives", "x")).isdecimal():
        found["alternatives"] = int(found["alternatives"])
    return found


# What is shown


def answer_shown(service: Service, make: Callable[[Service, Request], Response]) -> Respond:
    """An address that only shows something."""

    async def respond(request: Request) -> Response:
        return make(service, request)

    return respond


def show_models(service: Service, request: Request) -> Response:
    """All models."""
    models = service.models
    rows = [describe_model(name, models.loaded.get(name), models.created) for name in models.sources]
    return say({"object": "list", "data": rows})


def show_model(service: Service, request: Request) -> Response:
    """One model."""
    models, name = service.models, service.models.find_name(request.path_params["name"])
    return say(describe_model(name, models.loaded.get(name), models.created))


def show_languages(service: Service, request: Request) -> Response:
    """What is translated into what."""
    return say(translations.list_languages(service))


def show_health(service: Service, request: Request) -> Response:
    """Whether the process works: every loaded model's thread runs."""
    fine = service.models.alive
    return say({"status": "ok" if fine else "a model's thread has ended"}, 200 if fine else 503)


def show_ready(service: Service, request: Request) -> Response:
    """Whether requests are taken: a model is loaded, and the server does not shut down."""
    fine = bool(service.models.loaded) and service.models.alive and not service.draining
    return say({"status": "ready" if fine else "not ready", "models": list(service.models.loaded)},
               200 if fine else 503)


def show_metrics(service: Service, request: Request) -> Response:
    """What Prometheus reads."""
    gauges: dict[str, dict[str, float]] = {"num_requests_running": {}, "num_requests_waiting": {},
                                           "kv_cache_usage_perc": {}}
    for name, one in service.models.loaded.items():
        at = label(model_name=name)
        gauges["num_requests_running"][at] = service.running[name]
        if one.engine is not None:
            gauges["num_requests_waiting"][at] = len(one.engine.scheduler.waiting)
            pages = one.engine.pages
            gauges["kv_cache_usage_perc"][at] = round(1 - pages.free / (pages.count - 1), 4)
    return Response(service.metrics.format_text(gauges), media_type=TYPE)


SHOWN: dict[str, Callable[[Service, Request], Response]] = {
    "/v1/models": show_models, "/v1/models/{name:path}": show_model, "/languages": show_languages,
    "/health": show_health, "/ready": show_ready, "/metrics": show_metrics,
}


async def raise_missing(request: Request, error: HTTPException) -> Response:
    """An address, or a method of one, that is not there: said as all errors are."""
    raise RequestError("there is no {method} {path} here", status=error.status_code, code="not_found",
                       method=request.method[:16], path=request.url.path[:100])
