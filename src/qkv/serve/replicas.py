"""Several processes that serve the same models behind one address, and the router that shares connections among them.

A replica is `qkv serve` itself on a socket of its own; one that ends is started again. Each connection goes to the
replica that has the fewest; a request of which no byte was answered when its replica ended goes to another one.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from qkv.errors import QkvError

PIECE = 1 << 16  # bytes at a time
HELD = 1 << 23  # bytes of a request that are kept until its answer begins
DEATHS = 3  # of replicas that never took a request, after which nothing is started any more


@dataclass(eq=False)
class Replica:
    """A process that answers on a socket file."""

    path: Path
    process: asyncio.subprocess.Process | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    up: bool = False
    connections: int = 0


@dataclass(eq=False)
class Router:
    """Replicas, each started by a command that ends in the path of its socket."""

    command: Sequence[str]
    replicas: list[Replica]
    begun: Callable[[], None] = lambda: None  # called when the first replica answers
    draining: bool = False
    deaths: int = 0

    async def run(self, listening: socket.socket) -> None:
        """Serve until a signal; then the replicas write their answers to the end.

        Raises:
            QkvError: replicas end before they take a request.
        """
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, over.set)
        keepers = [asyncio.create_task(self.keep_alive(replica)) for replica in self.replicas]
        server = await asyncio.start_server(self.route, sock=listening)
        ending = asyncio.create_task(over.wait())
        try:
            done, _ = await asyncio.wait([*keepers, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {ending}:
                task.result()
        finally:
            self.draining = True
            server.close()
            for replica in self.replicas:
                if replica.process is not None and replica.process.returncode is None:
                    replica.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*keepers, return_exceptions=True)
            ending.cancel()

    async def keep_alive(self, replica: Replica) -> None:
        """Start a replica, and again whenever it ends, until the router drains."""
        while not self.draining:
            replica.path.unlink(missing_ok=True)
            replica.process = await asyncio.create_subprocess_exec(
                *self.command, str(replica.path), stdin=asyncio.subprocess.PIPE)  # which ends with this process
            replica.ended = asyncio.Event()
            ended = asyncio.create_task(replica.process.wait())
            while not (ended.done() or replica.up):
                if replica.path.exists() and await answers(replica.path):
                    replica.up, self.deaths = True, 0
                    self.begun()
                    self.begun = lambda: None
                await asyncio.sleep(0 if replica.up else 0.1)
            code = await ended
            self.deaths += not replica.up
            replica.up = False
            replica.ended.set()
            if self.deaths >= DEATHS and not self.draining:
                raise QkvError("--replicas: a replica ended with code {exit} before it took a request; its own message "
                               "says why", exit=code)

    async def connect(self) -> tuple[Replica, asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the replica that has the fewest; None where no replica is left."""
        while not self.draining:
            for replica in sorted((r for r in self.replicas if r.up), key=lambda r: r.connections):
                with suppress(OSError):
                    return replica, *await asyncio.open_unix_connection(replica.path)
            await asyncio.sleep(0.05)
        return None

    async def has_ended(self, replica: Replica) -> bool:
        """Whether a replica that closed a connection did so because its process is gone."""
        ended = replica.ended  # one that is started again has another
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended.wait()), 0.5)
        if not ended.is_set():  # a busy machine says so late, but nobody listens any more
            try:
                _, writer = await asyncio.open_unix_connection(replica.path)
            except OSError:
                return True
            writer.close()
        return ended.is_set()

    async def route(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a client's bytes to a replica and its answers back, until one of them closes."""
        asked, answered = bytearray(), False
        client = asyncio.create_task(reader.read(PIECE))
        try:
            while (found := await self.connect()) is not None:
                replica, theirs, to_replica = found
                replica.connections += 1
                try:
                    to_replica.write(bytes(asked))  # of one that is gone the read below finds the end
                    answer = asyncio.create_task(theirs.read(PIECE))
                    while True:
                        await asyncio.wait([answer, client], return_when=asyncio.FIRST_COMPLETED)
                        if answer.done():
                            if not (data := read_result(answer)):
                                break
                            writer.write(data)
                            await writer.drain()
                            answered = not data.startswith(b"HTTP/1.1 100 ")  # which asks for the rest of a request
                            answer = asyncio.create_task(theirs.read(PIECE))
                        if client.done():
                            if not (data := read_result(client)):
                                return
                            if answered:  # a new request, on the same connection
                                asked, answered = bytearray(), False
                            asked += data
                            client = asyncio.create_task(reader.read(PIECE))
                            to_replica.write(data)
                            with suppress(OSError):
                                await to_replica.drain()
                finally:
                    replica.connections -= 1
                    to_replica.close()
                if answered or len(asked) > HELD or not await self.has_ended(replica):
                    return
        except OSError:  # the client is gone
            pass
        finally:
            client.cancel()
            writer.close()


async def answers(path: Path) -> bool:
    """Whether a server answers on a socket file; while it loads its models, this waits."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        found = await reader.read(1)
        writer.close()
    except OSError:
        return False
    return bool(found)


def read_result(task: "asyncio.Task[bytes]") -> bytes:
    """What a read gave; nothing where the connection was broken."""
    return b"" if task.exception() else task.result()
