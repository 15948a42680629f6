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
import secrets
import socket
import sys
import threading
import traceback
import webbrowser
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from qkv.errors import QkvError, nearest
from qkv.explore import answers, probe_answers, record
from qkv.explore.body import Answer, Query, dump_json, translate_both
from qkv.explore.question import Question, RecentRuns, Refused, Run, ask
from qkv.messages import Message, join
from qkv.model import Model

HOST, PORT = "127.0.0.1", 8123
STATIC = Path(__file__).parent / "static"
FILES = {"app.js": "text/javascript", "app.css": "text/css"}
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
EMPTY = Message("static/index.html is not built yet")


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
    """What the server answers with: models by name (loaded when asked for), their runs, a watched folder, events."""

    names: list[str]
    load: Callable[[str], Model]
    lang: str = "en"
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first: Mapping[str, Any] = field(default_factory=dict)  # the question that the page opens with
    watched: Path | None = None
    events: Events = field(default_factory=Events)
    models: dict[str, Model] = field(default_factory=dict)
    shelf: RecentRuns = field(default_factory=RecentRuns)

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

    def describe_page(self, query: Query) -> Answer:
        """What the page shows first."""
        query.allow_only("model")
        name, model = self.open_model(query.get_text("model") or None)
        found = answers.describe_model(model, name, self.names, self.lang, list(self.examples.get(name, ())))
        return Answer({**found.keys, "first": dict(self.first)}) if self.first and name == self.names[0] else found

    def run(self, body: Mapping[str, Any]) -> Run:
        """Put a question; its run."""
        name, model = self.open_model(body.get("model"))
        question = Question.from_json({k: v for k, v in body.items() if k != "model"})
        return self.shelf.get_or_make(question.id(name), lambda: ask(model, question, name))

    def opening(self) -> str:
        """The answers with which the page opens, made before a browser asks; empty where it opens with no text."""
        texts = self.examples.get(self.names[0], ())
        question = self.first or ({"text": texts[0]} if texts else {})
        try:
            return record.preload(self.run(question), self.describe_page(Query({})), question) if question else ""
        except QkvError:
            return ""  # the page asks, and says what is wrong

    def answer_run(self, run: str, what: str, values: Mapping[str, str]) -> Answer:
        """One answer about a run."""
        found: Run = self.shelf.get(run)
        return answers.answer(found, what, values)

    def table(self, what: str, query: Query) -> Answer:
        """One answer about a model without a text."""
        return answers.TABLES[what](self.open_model(query.get_text("model") or None)[1], query)

    def wish(self, run: str, body: Mapping[str, Any]) -> Answer:
        """Ask a training run to record a text from now on; returns the texts asked for so far."""
        found = probe_answers.open_run(self.watched, run)
        found.request_text(str(body.get("text") or ""))
        return Answer({"texts": list(found.requests)})

    def watch(self, parts: list[str]) -> Answer:
        """What training runs recorded: all of them, one of them, one step of one."""
        if not parts:
            return probe_answers.list_runs(self.watched)
        found = probe_answers.open_run(self.watched, parts[0])
        if parts[1:] == ["steps"]:
            return probe_answers.answer_run(found)
        if len(parts) == 3 and parts[1] == "step":
            return probe_answers.answer_step(found, parts[2])
        raise Refused("under /api/watch/RUN there are steps and step/N", status=404)


class Gate:
    """Which requests are answered: the right Host, the token or its cookie, and for questions the page's own Origin."""

    def __init__(self, token: str, port: int) -> None:
        self.token, self.cookie = token, f"qkv-{port}"
        self.hosts = {f"{HOST}:{port}", f"localhost:{port}"}

    def find_refusal(self, request: Request) -> Refused | None:
        """Why a request is not answered."""
        host = request.headers.get("host", "")
        if host not in self.hosts:
            return Refused("Host is {host!r}: expected {hosts}", status=403, host=host,
                           hosts=join(" or ", sorted(self.hosts)))
        if not secrets.compare_digest(request.cookies.get(self.cookie, "").encode(), self.token.encode()):
            return Refused("no token: open the whole address that the terminal printed", status=403)
        origin = request.headers.get("origin")
        if request.method != "GET" and (origin or "").removeprefix("http://") not in self.hosts:
            return Refused("Origin is {origin!r}: only this page may ask", status=403, origin=origin)
        return None

    def is_first_visit(self, request: Request) -> bool:
        """Whether this is the first visit, with the right Host and the token in the address."""
        token = request.query_params.get("token", "")
        right = secrets.compare_digest(token.encode(), self.token.encode())
        return right and request.url.path == "/" and request.headers.get("host", "") in self.hosts


@dataclass(eq=False)
class Site:
    """The addresses of the page; torch works in one thread, so that two tabs never meet in it."""

    desk: Desk
    gate: Gate
    worker: ThreadPoolExecutor
    begun: tuple[str, Future[str]] | None = None

    def prepare(self) -> None:
        """Begin to make the answers with which the page opens."""
        self.begun = self.desk.names[0], self.worker.submit(self.desk.opening)

    def preload(self) -> str:
        """Those answers, where they are made: a browser that comes before asks for them."""
        if self.begun is None:
            return ""
        name, made = self.begun
        if name != self.desk.names[0]:  # a model was trained meanwhile, and the page now opens with it
            self.prepare()
            return ""
        return made.result() if made.done() and not made.exception() else ""

    async def work(self, make: Callable[[], Answer]) -> Response:
        """An answer made in the one thread where torch works."""

        def make_body() -> tuple[str, bytes]:
            found = make()
            return found.type, found.body()

        try:
            kind, body = await asyncio.get_running_loop().run_in_executor(self.worker, make_body)
        except QkvError as error:
            return error_response(error)
        except Exception as error:
            traceback.print_exc()  # the panel shows the fault, the terminal shows where
            return crash_response(error)
        return add_guards(Response(body, media_type=kind, headers={"cache-control": "no-store"}))

    async def open_page(self, request: Request) -> Response:
        """The page; a request that brings the token first gets its cookie."""
        if self.gate.is_first_visit(request):
            welcome = RedirectResponse("/", 303)
            welcome.set_cookie(self.gate.cookie, self.gate.token, httponly=True, samesite="strict", path="/")
            return add_guards(welcome)
        if refusal := self.gate.find_refusal(request):
            return error_response(refusal, html=True)
        return static_response(request, "index.html", "text/html", self.preload())

    async def file(self, request: Request) -> Response:
        """The script and the style."""
        if refusal := self.gate.find_refusal(request):
            return error_response(refusal)
        name = request.path_params["name"]
        if name not in FILES:
            return error_response(Refused("no such page", status=404))
        return static_response(request, name, FILES[name])

    async def api(self, request: Request) -> Response:
        """A question about a model, a run or a training."""
        if refusal := self.gate.find_refusal(request):
            return error_response(refusal)
        parts, desk, values = request.path_params["rest"].split("/"), self.desk, dict(request.query_params)
        if request.method == "POST":
            return await self.post_question(request, parts)
        if parts == ["events"]:
            return add_guards(stream_events(desk.events, request))
        if len(parts) == 3 and parts[0] == "r":
            return await self.work(lambda: desk.answer_run(parts[1], parts[2], values))
        if parts == ["about"]:
            return await self.work(lambda: desk.describe_page(Query(values)))
        if parts[0] == "watch":
            return await self.work(lambda: desk.watch(parts[1:]))
        if len(parts) == 1 and parts[0] in answers.TABLES:
            return await self.work(lambda: desk.table(parts[0], Query(values)))
        return error_response(Refused("there is no /api/{rest}", status=404, rest=request.path_params["rest"]))

    async def post_question(self, request: Request, parts: list[str]) -> Response:
        """A new question."""
        wishes = len(parts) == 3 and (parts[0], parts[2]) == ("watch", "texts")
        if parts != ["run"] and not wishes:
            return error_response(Refused("only /api/run and /api/watch/RUN/texts take a POST", status=404))
        try:
            body = await read_json(request)
        except Refused as error:
            return error_response(error)
        if wishes:
            return await self.work(lambda: self.desk.wish(parts[1], body))
        return await self.work(lambda: Answer({"run": self.desk.run(body).id}))


def make_app(desk: Desk, *, token: str, port: int) -> Starlette:
    """The ASGI application."""
    return build_app(Site(desk, Gate(token, port), ThreadPoolExecutor(1, "qkv-torch")))


def build_app(site: Site) -> Starlette:
    """The ASGI application of a site."""
    api = Route("/api/{rest:path}", site.api, methods=["GET", "POST"])
    routes = [Route("/", site.open_page), api, Route("/{name}", site.file)]
    return Starlette(routes=routes, exception_handlers={404: not_found_response, 405: not_found_response})


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
        half = Refused("there is half a character in it: a lone surrogate", status=400)
        raise half from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused("expected a JSON object", status=400)
    return found


def add_guards(response: Response) -> Response:
    """The headers that every answer carries."""
    response.headers.update(GUARDS)
    return response


def error_response(error: QkvError, *, html: bool = False) -> Response:
    """An error as the page shows it."""
    message, status = error.message, 422
    if isinstance(error, Refused):
        status = error.status
    words = translate_both(message)
    if html:
        text = "".join(f"<p lang={lang}>{text}</p>" for lang, text in words.items())
        text = f"<!doctype html><meta charset=utf-8><title>qkv</title>{text}"
        return add_guards(Response(text.replace("'", ""), status, media_type="text/html"))
    body = dump_json({"error": words})
    return add_guards(Response(body, status, media_type="application/json", headers={"cache-control": "no-store"}))


def crash_response(error: Exception) -> Response:
    """The response for an unexpected exception."""
    fault = f"{type(error).__name__}: {error}".splitlines()[0]
    return error_response(Refused("this was not expected: {said}", status=500, said=fault))


async def not_found_response(request: Request, error: Exception) -> Response:
    """The response for an unknown address."""
    return error_response(
        Refused("there is no {method} {path}", status=getattr(error, "status_code", 404), method=request.method,
                path=request.url.path)
    )


def unbuilt_page() -> str:
    """A page that says that the page is not built."""
    return f"<!doctype html><meta charset=utf-8><title>qkv</title><p>qkv: {EMPTY} · {EMPTY.to('zh')}"


def static_response(request: Request, name: str, kind: str, ready: str = "") -> Response:
    """A file of the page, `ready` before its script, with a tag by which a browser need not fetch it again."""
    path = STATIC / name
    data = path.read_bytes() if path.is_file() else unbuilt_page().encode() if name == "index.html" else None
    if data is None:
        return error_response(Refused("there is no {name}: the page is not built", status=404, name=name))
    if ready:
        data = data.replace(b"<script", ready.encode() + b"\n<script", 1)
    tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return add_guards(Response(status_code=304, headers=headers))
    return add_guards(Response(data, media_type=kind, headers=headers))


def stream_events(events: Events, request: Request) -> Response:
    """Server-sent events from the number that the browser saw last."""
    last_id = request.headers.get("last-event-id", "")

    async def lines() -> AsyncIterator[str]:
        last, idle = int(last_id) if last_id.isdigit() else 0, 0
        yield "retry: 1000\n\n"
        while not (events.closed or await request.is_disconnected()):
            found = events.events_after(last)
            for last, event in found:
                kind = str(event.get("kind", "note"))
                yield f"id: {last}\ndata: {dump_json({**event, 'kind': kind}).decode()}\n\n"
            idle = 0 if found else idle + 1
            if idle % 100 == 99:
                yield ": still here\n\n"
            await asyncio.sleep(0.1)

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"cache-control": "no-store"})


# Running it


def bind_socket(port: int | None) -> socket.socket:
    """A socket on 127.0.0.1: at `port`, or at the first free one from 8123 on.

    Raises:
        QkvError: the port is taken; the next free one is named.
    """
    for number in [port] if port is not None else range(PORT, PORT + 64):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number))
        except OSError as error:
            listening.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                raise
            continue
        listening.listen(128)  # at once, so that no other process can
        return listening
    if port is None:
        raise QkvError("ports {port} to {port2} are all taken; choose one with --port", port=PORT,
                       port2=PORT + 63)
    raise QkvError("--port {port}: the port is taken (or not allowed); {free} is free", port=port,
                   free=next_free_port(port))


def next_free_port(port: int) -> int:
    """The next free port after one."""
    for number in [*range(port + 1, min(port + 200, 65536)), 0]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((HOST, number))
            except OSError:
                continue
            return probe.getsockname()[1]
    return 0


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
        self.site = Site(desk, Gate(self.token, self.port), ThreadPoolExecutor(1, "qkv-torch"))
        self.site.prepare()
        settings = uvicorn.Config(
            build_app(self.site), log_level="error", lifespan="off", timeout_graceful_shutdown=5, server_header=False
        )
        self.server = Server(settings, desk.events)
        self.thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address that lets a browser in."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until Ctrl-C, which is raised again as KeyboardInterrupt."""
        self.server.run(sockets=[self.socket])

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
