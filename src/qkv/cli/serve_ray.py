"""`qkv serve --ray`: replicas as a deployment of Ray Serve, which routes, watches and scales them over machines.

A router without a model stands before the replicas: when one dies, the requests of whose answers no byte was sent go to
another one, which Ray Serve itself does not do.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncGenerator, Callable, MutableMapping
from dataclasses import replace
from importlib import import_module
from types import FrameType
from typing import Any

from qkv.cli.common import Common
from qkv.cli.workers import connect_ray
from qkv.errors import QkvError

NAME, REPLICA = "qkv", "replica"  # of the application and its deployment, in Ray's dashboard
EXTRA = 64  # requests, such as /health, that a replica takes in addition to those it writes and those in its queue
TRIES = 4  # replicas that a request goes to at most
FORWARDED = ("type", "http_version", "method", "scheme", "path", "raw_path", "root_path", "query_string", "headers",
             "client", "server")  # keys of the ASGI scope that can be pickled
ASGI = MutableMapping[str, Any]
BuildParts = Callable[[Common], tuple[Any, Any]]


def serve_by_ray(
    common: Common, build_parts: BuildParts, how: dict[str, Any], begun: Callable[[], None],
) -> None:
    """Serve until a signal what `build_parts` gives, a service and its application, in each replica's own process.

    Raises:
        QkvError: Ray Serve is not installed, no cluster answers, or the replicas do not start.
    """
    ray = connect_ray(how["ray"])
    try:
        serve: Any = import_module("ray.serve")
    except ImportError:
        raise QkvError("--ray needs Ray Serve: pip install 'qkv[scale]'") from None
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # Ray's own messages are in its dashboard
    over = threading.Event()
    end: Callable[[int, FrameType | None], None] = lambda number, frame: over.set()  # noqa: E731
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        serve.start(http_options={"host": how["host"], "port": how["port"], "location": "EveryNode"})
        most = how["rows"] + how["queue"] + EXTRA
        router = serve.deployment(name="router", max_ongoing_requests=256 * most, ray_actor_options={"num_cpus": 0})(
            serve.ingress(make_router(how["max_body"]))())
        try:
            serve.run(router.bind(plan_replicas(common, build_parts, how, most)), name=NAME, route_prefix="/")
        except RuntimeError as e:
            raise QkvError("--ray: the replicas did not start ({error})", error=str(e).strip()[-400:]) from None
        begun()
        over.wait()
    finally:
        serve.delete(NAME)
        ray.shutdown()


def plan_replicas(common: Common, build_parts: BuildParts, how: dict[str, Any], ongoing: int) -> Any:
    """The deployment of the models: one number of replicas, or as many as the load asks between two."""
    ray, serve = import_module("ray"), import_module("ray.serve")
    least, most = how["replicas"]
    has = ray.cluster_resources()
    cores = common.threads or max(1, int(has.get("CPU", 1)) // most)
    scaling = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": how["rows"]}
    deployed = serve.deployment(
        name=REPLICA, ray_actor_options={"num_cpus": cores, "num_gpus": min(1, int(has.get("GPU", 0)))},
        max_ongoing_requests=ongoing, graceful_shutdown_timeout_s=how["drain"],
        **({"autoscaling_config": scaling} if least < most else {"num_replicas": least}),
    )(Replica)
    return deployed.bind(build_parts, replace(common, threads=cores))


class Replica:
    """The application in a process of its own, asked by messages."""

    async def __init__(self, build_parts: BuildParts, common: Common) -> None:
        from qkv.serve import listen

        self.service, self.app = build_parts(common)
        await listen.load_all(self.service)

    async def respond(self, scope: ASGI, body: bytes) -> AsyncGenerator[ASGI]:
        """What the application sends to a request."""
        sent, asked = asyncio.Queue[ASGI | None](), [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> ASGI:
            return asked.pop() if asked else await asyncio.Future()  # a client that disconnects cancels this generator

        async def run() -> None:
            try:
                await self.app(scope, receive, sent.put)
            finally:
                sent.put_nowait(None)

        task = asyncio.create_task(run())
        try:
            while (message := await sent.get()) is not None:
                yield message
            await task
        finally:
            task.cancel()


def make_router(megabytes: float) -> Callable[[], Any]:
    """What builds the router; a body that is too long is cut after the limit, so that the replica refuses it."""

    def build() -> Any:
        died = import_module("ray.exceptions").RayActorError

        async def forward(scope: ASGI, receive: Callable[[], Any], send: Callable[[ASGI], Any]) -> None:
            if scope["type"] == "lifespan":
                return await answer_lifespan(receive, send)
            replicas = import_module("ray.serve").get_deployment_handle(REPLICA, NAME).options(stream=True)
            body = await read_all(receive, int(megabytes * 1e6) + 1)
            sent = {key: scope[key] for key in FORWARDED if key in scope}
            return await relay(lambda: replicas.respond.remote(sent, body), died, receive, send)

        return forward

    return build


async def relay(
    respond: Callable[[], Any], died: type[Exception], receive: Callable[[], Any], send: Callable[[ASGI], Any],
) -> None:
    """Pass on one answer; status and headers wait for its first bytes, so that until then another replica can answer.

    Raises:
        Exception: `died` when the replica ended in the middle of its answer, or each of `TRIES` before theirs.
    """
    for left in reversed(range(TRIES)):
        answer, head, begun = respond(), list[ASGI](), False
        watcher = asyncio.create_task(cancel_on_disconnect(receive, answer))
        try:
            async for message in answer:
                head.append(message)
                begun = begun or is_body(message)
                while begun and head:
                    await send(head.pop(0))
            return
        except died:
            if begun or not left:
                raise
        finally:
            watcher.cancel()


def is_body(message: ASGI) -> bool:
    """Whether a message has bytes of an answer, or ends it."""
    return message["type"] == "http.response.body" and bool(message.get("body") or not message.get("more_body"))


async def answer_lifespan(receive: Callable[[], Any], send: Callable[[ASGI], Any]) -> None:
    """Acknowledge start-up and shutdown; the router has nothing to prepare."""
    for _ in range(2):
        await send({"type": (await receive())["type"] + ".complete"})


async def read_all(receive: Callable[[], Any], most: int) -> bytes:
    """A request's body, or so many bytes of it."""
    body, more = bytearray(), True
    while more and len(body) < most:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body[:most])


async def cancel_on_disconnect(receive: Callable[[], Any], answer: Any) -> None:
    """Cancel an answer when its client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    answer.cancel()
