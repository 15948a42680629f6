"""The live page: a small server on 127.0.0.1 that answers a browser's questions about models.

Only requests with the token of the printed address are answered; it becomes a cookie that scripts cannot read. Torch
works in one thread, so that two tabs wait for each other. The answers are made in answers.py; `qkv look --serve` runs
it.
"""

import asyncio
import errno
import hashlib
import json
import os
import re
import secrets
import socket
import sys
import threading
import traceback
import webbrowser
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from qkv.errors import QkvError, nearest
from qkv.explore import answers, probe_answers, record
from qkv.explore.body import JSON, Answer, Query, dump_json, translate_both
from qkv.explore.question import Question, RecentRuns, Refused, Run, ask
from qkv.generation.runner import ComputeThread
from qkv.messages import join
from qkv.model import Model
from qkv.serve.listen import Protocol

HOST, PORT = "127.0.0.1", 8123
STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("index.html", "text/html"), "/app.js": ("app.js", "text/javascript"), "/app.css": ("app.css", "text/css"),
}
GLANCE = 0.1  # seconds between two looks whether who asked is still there
LARGEST = 1 << 20  # bytes of a question
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin", "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
UNSTORED = {"cache-control": "no-store"}


class Events:
    """The events of a run that trains in this process, numbered; the latest are kept for later visitors."""

    def __init__(self, kept: int = 4096) -> None:
        self.kept: deque[tuple[int, dict[str, Any]]] = deque(maxlen=kept)
        self.count = 0
        self.lock = threading.Lock()
        self.closed = False  # set when the server ends

    def send(self, event: Mapping[str, Any]) -> None:
        """One more event; from any thread."""
        with self.lock:
            self.count += 1
            self.kept.append((self.count, dict(event)))

    def events_after(self, last: int) -> list[tuple[int, dict[str, Any]]]:
        """The events after a number, as far as they are kept; all of them where the number is of another process."""
        with self.lock:
            return [e for e in self.kept if e[0] > last or last > self.count]


@dataclass(eq=False)
class Desk:
    """What the server answers with: models by name (loaded when asked for), their runs, a watched folder, events.

    Torch works in the one thread of `worker`, so that two tabs never meet in it.
    """

    names: list[str]
    load: Callable[[str], Model]
    lang: str = "en"
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first: Mapping[str, Any] = field(default_factory=dict)  # the question that the page opens with
    watched: Path | None = None
    events: Events = field(default_factory=Events)
    models: dict[str, Model] = field(default_factory=dict)
    shelf: RecentRuns = field(default_factory=RecentRuns)
    worker: Executor = field(default_factory=ComputeThread)
    begun: tuple[str, Future[str]] | None = None  # the answers with which the page opens, and the model they are of
    replay: Callable[[str], Run | None] = lambda run: None  # a run of what was written elsewhere, made when asked for

    def open_model(self, name: str | None) -> tuple[str, Model]:
        """The model of a name, the first one without; a Refused names those there are."""
        name = name or self.names[0]
        if name not in self.names:
            there = ", ".join(self.names)
            raise Refused("there is no model {name}{hint}; there are {there}", name=name,
                          hint=nearest(str(name), self.names), there=there)
        if name not in self.models:
            self.models[name] = self.load(name)
        return name, self.models[name]

    def open_run(self, body: Mapping[str, Any]) -> Run:
        """Put a question; its run."""
        name, model = self.open_model(body.get("model"))
        question = Question.from_json({k: v for k, v in body.items() if k != "model"})
        return self.shelf.get_or_make(question.id(name), lambda: ask(model, question, name))

    def find_run(self, run: str) -> Run:
        """A run by its name: one that was asked for here, or that was written elsewhere."""
        if run not in self.shelf.runs and (found := self.replay(run)):
            return self.shelf.get_or_make(run, lambda: found)
        return self.shelf.get(run)

    def opening(self) -> str:
        """The answers with which the page opens, made before a browser asks; empty where it opens with no text."""
        texts = self.examples.get(self.names[0], ())
        question = self.first or ({"text": texts[0]} if texts else {})
        try:
            return record.preload(self.open_run(question), self.describe_page({}), question) if question else ""
        except QkvError:
            return ""  # the page asks, and says what is wrong

    def describe_page(self, values: Mapping[str, str]) -> Answer:
        """What the page shows first."""
        Query(values).allow_only("model")
        name, model = self.open_model(values.get("model"))
        found = answers.describe_model(model, name, self.names, self.lang, list(self.examples.get(name, ())))
        return Answer({**found.keys, "first": dict(self.first)}) if self.first and name == self.names[0] else found

    def answer_table(self, values: Mapping[str, str], what: str) -> Answer:
        """One answer about a model without a text."""
        if what not in answers.TABLES:
            raise Refused("there is no /api/{rest}", status=404, rest=what)
        return answers.TABLES[what](self.open_model(values.get("model"))[1], Query(values))

    def request_text(self, body: Mapping[str, Any], run: str) -> Answer:
        """Ask a training run to record a text from now on; returns the texts asked for so far."""
        found = probe_answers.open_run(self.watched, run)
        found.request_text(str(body.get("text") or ""))
        return Answer({"texts": list(found.requests)})

    def list_routes(self) -> list[tuple[str, str, Callable[..., Answer]]]:
        """(method, path, what makes the answer): given the query or the JSON, and the parts of the path by name."""
        open_record = partial(probe_answers.open_run, self.watched)
        return [
            ("POST", "/api/run", lambda body: Answer({"run": self.open_run(body).id})),
            ("GET", "/api/r/{run}/{what}", lambda values, run, what: answers.answer(self.find_run(run), what, values)),
            ("GET", "/api/about", self.describe_page),
            ("GET", "/api/watch", lambda values: probe_answers.list_runs(self.watched)),
            ("GET", "/api/watch/{run}/steps", lambda values, run: probe_answers.answer_run(open_record(run))),
            ("GET", "/api/watch/{run}/step/{number}",
             lambda values, run, number: probe_answers.answer_step(open_record(run), number)),
            ("POST", "/api/watch/{run}/texts", self.request_text),
            ("GET", "/api/{what}", self.answer_table),
        ]

    def prepare(self) -> None:
        """Begin to make the answers with which the page opens."""
        self.begun = self.names[0], self.worker.submit(self.opening)

    def preload(self) -> str:
        """Those answers, where they are made: a browser that comes before asks for them."""
        if self.begun is None:
            return ""
        name, made = self.begun
        if name != self.names[0]:  # a model was trained meanwhile, and the page now opens with it
            self.prepare()
            return ""
        return made.result() if made.done() and not made.exception() else ""

    def respond_with(self, make: Callable[..., Answer]) -> Callable[[Request], Awaitable[Response]]:
        """An address whose answers are made in the one thread where torch works."""

        def make_body(given: Mapping[str, Any], parts: Mapping[str, str]) -> tuple[str, bytes]:
            try:
                found = make(given, **parts)
                return found.type, found.body()
            except QkvError:
                raise
            except Exception as error:
                traceback.print_exc()  # the panel shows the fault, the terminal shows where
                fault = f"{type(error).__name__}: {error}".splitlines()[0]
                raise Refused("this was not expected: {said}", status=500, said=fault) from error

        async def respond(request: Request) -> Response:
            given = await read_json(request) if request.method == "POST" else dict(request.query_params)
            loop = asyncio.get_running_loop()
            answer = loop.run_in_executor(self.worker, make_body, given, request.path_params)
            while not (await asyncio.wait({answer}, timeout=GLANCE))[0]:
                if await request.is_disconnected():
                    answer.cancel()  # what has not begun never does
                    raise ClientDisconnect
            kind, body = await answer
            return Response(body, media_type=kind, headers=UNSTORED)

        return respond

    async def open_file(self, path: str, request: Request) -> Response:
        """A file of the page, with a tag by which a browser need not fetch it again."""
        name, kind = FILES[path]
        data = record.read_page_file(STATIC / name).encode()
        if name == "index.html" and (ready := self.preload()):
            data = data.replace(b"<script", ready.encode() + b"\n<script", 1)
        tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    async def open_events(self, request: Request) -> Response:
        """The events of a training as they come."""
        last_id = request.headers.get("last-event-id", "")
        lines = stream_events(self.events, request, int(last_id) if re.fullmatch("[0-9]{1,18}", last_id) else 0)
        return StreamingResponse(lines, media_type="text/event-stream", headers=UNSTORED)


@dataclass(frozen=True)
class Gate:
    """Lets in the right Host with the token or its cookie, and for questions the page's own Origin; adds GUARDS."""

    app: ASGIApp
    token: str
    port: int

    @property
    def hosts(self) -> list[str]:
        """The names under which the page is reached."""
        return [f"{HOST}:{self.port}", f"localhost:{self.port}"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)

        async def send_guarded(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(GUARDS)
            await send(message)

        answer = self.welcome(request)
        if answer is None and (refusal := self.find_refusal(request)):
            answer = await say_error(request, refusal)
        await (answer or self.app)(scope, receive, send_guarded)

    def is_token(self, text: str) -> bool:
        """Whether a text is the token, in a time that does not tell how much of it is right."""
        return secrets.compare_digest(text.encode(), self.token.encode())

    def welcome(self, request: Request) -> Response | None:
        """The first visit, with the right Host and the token in the address, gets its cookie."""
        found = request.url.path == "/" and request.headers.get("host", "") in self.hosts
        if not (found and self.is_token(request.query_params.get("token", ""))):
            return None
        response = RedirectResponse("/", 303)
        response.set_cookie(f"qkv-{self.port}", self.token, httponly=True, samesite="strict", path="/")
        return response

    def find_refusal(self, request: Request) -> Refused | None:
        """Why a request is not answered."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.hosts:
            return Refused("Host is {host!r}: expected {hosts}", status=403, host=host,
                           hosts=join(" or ", self.hosts))
        if not self.is_token(request.cookies.get(f"qkv-{self.port}", "")):
            return Refused("no token: open the whole address that the terminal printed", status=403)
        if request.method != "GET" and origin not in [f"http://{name}" for name in self.hosts]:
            return Refused("Origin is {origin!r}: only this page may ask", status=403, origin=origin)
        return None


def make_app(desk: Desk, *, token: str, port: int) -> Starlette:
    """The ASGI application of the page alone."""
    return make_page(desk, [Middleware(Gate, token=token, port=port)])


def make_page(desk: Desk, middleware: Sequence[Middleware] = ()) -> Starlette:
    """The page with its answers, let in by the middleware or by what it is a part of."""
    api = [Route(path, desk.respond_with(make), methods=[method]) for method, path, make in desk.list_routes()]
    pages = [*(Route(path, partial(desk.open_file, path)) for path in FILES), Route("/api/events", desk.open_events)]
    return Starlette(routes=[*pages, *api], middleware=middleware,
                     exception_handlers={QkvError: say_error, HTTPException: say_missing, ClientDisconnect: drop})


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object of a POST, of at most a mebibyte."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST:
            raise Refused("a question has at most {largest} bytes", status=413, largest=LARGEST)
    try:
        found = json.loads(body)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused("there is half a character in it: a lone surrogate", status=400) from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused("expected a JSON object", status=400)
    return found


async def say_error(request: Request, error: Any) -> Response:
    """A QkvError as the page shows it: as HTML in the place of the document, as JSON elsewhere."""
    words, status = translate_both(error.message), getattr(error, "status", 422)
    if request.url.path != "/":
        return Response(dump_json({"error": words}), status, media_type=JSON, headers=UNSTORED)
    text = "".join(f"<p lang={lang}>{escape(text, quote=False)}</p>" for lang, text in words.items()).replace("'", "")
    return Response(f"<!doctype html><meta charset=utf-8><title>qkv</title>{text}", status, media_type="text/html")


async def drop(request: Request, error: Any) -> Response:
    """What nobody reads: whoever asked has left."""
    return Response(status_code=400)


async def say_missing(request: Request, error: Any) -> Response:
    """What is said of an unknown address."""
    return await say_error(request, Refused("there is no {method} {path}", status=error.status_code,
                                            method=request.method, path=request.url.path))


async def stream_events(events: Events, request: Request, last: int) -> AsyncIterator[str]:
    """Server-sent events after the number that the browser saw last."""
    idle = 0
    yield "retry: 1000\n\n"
    while not (events.closed or await request.is_disconnected()):
        found = events.events_after(last)
        for last, event in found:
            yield f"id: {last}\ndata: {dump_json({'kind': 'note', **event}).decode()}\n\n"
        idle = 0 if found else idle + 1
        if idle % 100 == 99:
            yield ": still here\n\n"
        await asyncio.sleep(0.1)


# Running it


def bind_socket(port: int | None) -> socket.socket:
    """A socket that listens on 127.0.0.1: at `port`, or at the first free one from 8123 on.

    Raises:
        QkvError: the port is taken; the next free one is named.
    """
    if listening := listen_at_first(range(PORT, PORT + 64) if port is None else [port]):
        return listening
    if port is None:
        raise QkvError("ports {port} to {port2} are all taken; choose one with --port", port=PORT,
                       port2=PORT + 63)
    other = listen_at_first([*range(port + 1, min(port + 200, 65536)), 0])
    with other or socket.socket() as free:
        raise QkvError("--port {port}: the port is taken (or not allowed); {free} is free", port=port,
                       free=free.getsockname()[1])


def listen_at_first(ports: Iterable[int]) -> socket.socket | None:
    """A socket at the first of these ports that is free and allowed, where no other process can listen any more."""
    for port in ports:
        try:
            found = socket.create_server((HOST, port))
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it only where a socket names TCP
            return found
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                raise
    return None


class Server(uvicorn.Server):
    """uvicorn, which on Ctrl-C first ends the streams that would keep it waiting."""

    def __init__(self, config: uvicorn.Config, events: Events) -> None:
        super().__init__(config)
        self.events = events

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.events.closed = True
        super().handle_exit(sig, frame)


class Page:
    """A server that is about to run: its address, and two ways to run it, here or beside what this process does."""

    def __init__(self, desk: Desk, *, port: int | None = None, token: str | None = None) -> None:
        self.desk, self.socket = desk, bind_socket(port)
        self.port = self.socket.getsockname()[1]
        self.token = token or secrets.token_urlsafe(24)
        desk.prepare()
        app = make_app(desk, token=self.token, port=self.port)
        settings = uvicorn.Config(app, log_level="error", lifespan="off", http=Protocol, ws="none",
                                  timeout_graceful_shutdown=5, server_header=False)
        self.server = Server(settings, desk.events)
        self.thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address that lets a browser in."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until Ctrl-C, which is raised again as KeyboardInterrupt."""
        try:
            self.server.run(sockets=[self.socket])
        finally:
            self.desk.worker.shutdown(cancel_futures=True)

    def start(self) -> str:
        """Serve in a thread beside this one; the address."""
        self.thread = threading.Thread(target=self.run, name="qkv-page", daemon=True)
        self.thread.start()
        return self.url

    def stop(self) -> None:
        """End a server that was started."""
        self.desk.events.closed = self.server.should_exit = True
        if self.thread:
            self.thread.join(5)
        self.socket.close()


def open_browser(url: str) -> bool:
    """Open a browser at an address; False where there is none, or no display to show it on."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
