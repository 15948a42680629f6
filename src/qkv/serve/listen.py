"""Running the application: a socket, uvicorn with bounds on what a connection sends, and an end that loses nothing."""

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.errors import QkvError
from qkv.serve.fields import RequestError
from qkv.serve.service import Service

HEADERS = 64 << 10  # bytes of a request's line and headers
PATIENCE = 20.0  # seconds in which they must come
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Protocol(H11Protocol):
    """uvicorn's protocol, which lets go of a connection that has not sent a request's head in time, or sent no HTTP."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.head = self.loop.call_later(PATIENCE, self.drop_silent)

    def drop_silent(self) -> None:
        """Close a connection on which no request has begun."""
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # after this nothing can be sent: the answer to what came before is dropped
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self.head.cancel()
        super().connection_lost(exc)


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        QkvError: the port is taken or not allowed, or the host is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=2048)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it only where a socket names TCP
        return found
    except OSError as e:
        if e.errno in (errno.EADDRINUSE, errno.EACCES):
            raise QkvError("--port {port}: the port is taken or not allowed on {host}; choose another one, such as "
                           "--port {other}", port=port, host=host, other=port % 65535 + 1) from None
        raise QkvError("--host {host}: this machine cannot listen there ({reason})", host=host,
                       reason=e.strerror or type(e).__name__) from None


def bind_file(path: Path) -> socket.socket:
    """A socket file that listens, for a replica; this process ends when its standard input does, as its router did."""

    def watch_router() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch_router, daemon=True).start()
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.listen(2048)
    return found


class Server(uvicorn.Server):
    """uvicorn, which loads the models first, and at its end lets answers be written for `drain` seconds."""

    def __init__(self, app: Starlette, service: Service, *, drain: float = 30.0) -> None:
        super().__init__(uvicorn.Config(
            app, log_level="error", lifespan="off", http=Protocol, ws="none", server_header=False, date_header=False,
            h11_max_incomplete_event_size=HEADERS, timeout_graceful_shutdown=int(drain) + 10, access_log=False,
        ))
        self.service, self.drain = service, drain
        self.loop: asyncio.AbstractEventLoop | None = None
        self.begun: Callable[[], None] = lambda: None  # called when requests are taken

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Load, serve, and unload."""
        self.loop = asyncio.get_running_loop()
        try:
            await load_all(self.service)
            await super().serve(sockets)
        finally:
            await self.service.models.unload_all()
            self.service.threads.shutdown(wait=False, cancel_futures=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.begun()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """The first signal ends what comes; answers are written on, the second Ctrl-C ends them too."""
        self.service.draining = True
        if self.loop is not None:
            at_once = self.should_exit and sig == signal.SIGINT
            self.loop.call_soon_threadsafe(self.loop.call_later, 0 if at_once else self.drain, self.service.cancel_all)
        super().handle_exit(sig, frame)


async def load_all(service: Service) -> None:
    """Load the models in their order, as far as memory goes; the error of one that cannot be loaded."""
    models = service.models
    for name, source in models.sources.items():
        if models.holding.memory is not None and models.loaded:
            held = sum(one.bytes for one in models.loaded.values())
            if held + await asyncio.to_thread(models.weigh, source) > models.holding.memory:
                continue  # loaded when it is asked for
        try:
            async with models.use(name):
                pass
        except RequestError as e:
            raise e.__cause__ or e from None
