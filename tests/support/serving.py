"""A server's application asked without a socket, on a loop of its own; and one with a socket, in a thread."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import pytest
from starlette.routing import BaseRoute

import qkv
from qkv.generation.engine import Engine
from qkv.serve import gate, listen
from qkv.serve.app import make_app
from qkv.serve.models import Holding, Models
from qkv.serve.service import Bounds, Service


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    pieces: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        lines = [line for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@dataclass
class Client:
    """Asks an application; `log` is what it wrote of that."""

    service: Service
    access: gate.Access = field(default_factory=lambda: gate.Access(("testserver",)))
    more: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.log = StringIO()
        self.app = make_app(self.service, self.access, log=gate.Log(self.log), more=self.more)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.run(self.service.models.unload_all())
        self.service.threads.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None,
        left: asyncio.Event | None = None, sent: list[Any] | None = None,
    ) -> Reply:
        """One request; whoever sets `left` leaves, and `sent` grows as the answer comes."""
        path, _, query = path.partition("?")
        said = {"host": "testserver", **(headers or {})}
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
            "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in said.items()], "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80), "state": {},
        }
        messages, given, stays = [] if sent is None else sent, [body], left or asyncio.Event()

        async def receive() -> dict[str, Any]:
            if given:
                return {"type": "http.request", "body": given.pop(), "more_body": False}
            await stays.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        if not messages:
            return Reply(0, {}, [])
        got = {k.decode(): v.decode() for k, v in messages[0]["headers"]}
        return Reply(messages[0]["status"], got, [m.get("body", b"") for m in messages[1:]])

    def get(self, path: str, **headers: str) -> Reply:
        return self.run(self.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()}))

    def post(self, path: str, body: object = None, **headers: str) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.run(self.ask("POST", path, raw, {k.replace("_", "-"): v for k, v in headers.items()}))


def make_service(*names: str, holding: Holding = Holding(rows=8), **bounds: Any) -> Service:  # noqa: B008
    """A service of bundled models."""
    return Service(Models({name: name for name in names}, qkv.load, holding), Bounds(**bounds),
                   languages={name: ("zh", "en") for name in names if name == "demo"})


@contextlib.contextmanager
def asking(*names: str, access: gate.Access | None = None, **more: Any) -> Iterator[Client]:
    """A client of a service, for a while."""
    client = Client(make_service(*names, **more), *([access] if access else []))
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def listening(
    service: Service, *, drain: float = 10.0, keys: gate.Keys | None = None, more: Sequence[BaseRoute] = ()
) -> Iterator[tuple[int, listen.Server]]:
    """A real server in a thread of this process: its port, and the server, whose end is waited for."""
    bound = listen.bind_socket("127.0.0.1", 0)
    port = bound.getsockname()[1]
    access = gate.Access(gate.list_hosts(["127.0.0.1"], port), (), keys or gate.Keys())
    app = make_app(service, access, log=gate.Log(StringIO()), more=more)
    server = listen.Server(app, service, drain=drain)
    ready = threading.Event()
    server.begun = ready.set
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield port, server
    finally:
        server.should_exit = True
        service_loop = server.loop
        assert service_loop is not None
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):
                service_loop.call_soon_threadsafe(service.cancel_all)
        thread.join(30)
        bound.close()
        assert not thread.is_alive()


def post_over(port: int, path: str, body: object) -> tuple[int, dict[str, str], bytes]:
    """One request over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, data


def speak(port: int, data: bytes, *, wait: float = 5.0) -> bytes:
    """What a server says to bytes, until it closes or a while has passed."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as one:
        with contextlib.suppress(OSError):
            one.sendall(data)
        found, until = b"", time.monotonic() + wait
        with contextlib.suppress(OSError):
            while time.monotonic() < until and (piece := one.recv(1 << 16)):
                found += piece
        return found


def frees_all_pages(engine: Engine) -> bool:
    """Whether every page of an engine is free within ten seconds, as after a request was taken back."""
    until = time.monotonic() + 10
    while engine.pages.free < engine.pages.count - 1 and time.monotonic() < until:
        time.sleep(0.01)
    return engine.pages.free == engine.pages.count - 1


def slow_steps(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Let each step of an engine take so much longer, as on a slow machine; the times of the steps."""
    step, steps = Engine.step, list[float]()

    def step_slowly(engine: Engine) -> bool:
        time.sleep(seconds)
        steps.append(time.monotonic())
        return step(engine)

    monkeypatch.setattr(Engine, "step", step_slowly)
    return steps
