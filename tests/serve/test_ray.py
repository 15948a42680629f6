"""Ray Serve runs the replicas: one that is killed loses no request, and the door passes on all that a request is."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import serve_ray, workers
from qkv.errors import QkvError

TEXT = {"model": "demo-lm", "prompt": "One, two,", "max_tokens": 48, "temperature": 0, "logit_bias": {"1": -100}}


def find_replicas() -> list[int]:
    """Processes of the replicas, by the name that Ray gives them."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::ServeReplica:qkv:replica"):
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


def ask(port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps(TEXT))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["choices"][0]["text"]
    finally:
        connection.close()


@pytest.mark.skipif(find_spec("ray") is None or sys.platform != "linux", reason="the package ray is not installed")
def test_a_replica_that_is_killed_loses_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "qkv", "serve", "demo-lm", "--replicas", "2", "--ray", "--port", str(port),
               "--threads", "1", "--json"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["replicas"] == [2, 2]
        alone, before = ask(port), find_replicas()
        assert (alone[0], len(before)) == (200, 2)
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(ask, port) for _ in range(100)]
            time.sleep(0.5)
            os.kill(before[0], signal.SIGKILL)
            assert {one.result() for one in asked} == {alone}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        if process.stdout is not None:
            process.stdout.close()
    assert not find_replicas()


# The parts, without Ray


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "127.0.0.1:99999", "nowhere:1"])
def test_a_cluster_that_is_not_there_is_said_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = address.format(port=free.getsockname()[1])
    ray = types.SimpleNamespace(init=lambda *a, **k: pytest.fail("Ray would try for minutes"))
    monkeypatch.setattr(workers, "import_module", lambda name: ray)
    with pytest.raises(QkvError, match=re.escape(f"--ray {address}: no Ray cluster answers there")):
        workers.connect_ray(address)


def run_replica(app: Any) -> list[Any]:
    replica = object.__new__(serve_ray.Replica)
    replica.app = app

    async def ask() -> list[Any]:
        return [message async for message in replica.respond({"type": "http"}, b"body")]

    return asyncio.run(ask())


def test_a_replica_gives_what_its_application_sends() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"read": (await receive())["body"], "type": scope["type"]})
        await send({"last": True})

    assert run_replica(app) == [{"read": b"body", "type": "http"}, {"last": True}]


def test_an_error_of_the_application_is_not_lost() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        run_replica(app)


def test_an_application_ends_when_nobody_listens() -> None:
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"first": True})
            await receive()
            await receive()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    replica = object.__new__(serve_ray.Replica)
    replica.app = app

    async def leave() -> None:
        answer: AsyncGenerator[Any] = replica.respond({}, b"")
        assert await anext(answer) == {"first": True}
        await asyncio.sleep(0.01)
        await answer.aclose()
        await asyncio.sleep(0.01)

    asyncio.run(leave())
    assert ended == ["cancelled"]


@pytest.mark.parametrize(("pieces", "most", "read"), [
    ([b"ab", b"cd"], 10, b"abcd"), ([b"ab", b"cd", b"ef"], 3, b"abc"), ([b""], 10, b""),
])  # fmt: skip
def test_a_body_is_read_to_its_end_or_its_bound(pieces: list[bytes], most: int, read: bytes) -> None:
    coming = [{"type": "http.request", "body": one, "more_body": one is not pieces[-1]} for one in pieces]

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    assert asyncio.run(serve_ray.read_all(receive, most)) == read


# The router: an answer of which no byte was sent is asked for again

HEAD, LAST = {"type": "http.response.start", "status": 200}, {"type": "http.response.body", "body": b""}


def body(text: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


def relay(*answers: list[Any]) -> tuple[list[Any], int]:
    """What the client gets of these answers, of which None stands for a replica that dies, and how many are left."""
    waiting, got = list(answers), []

    async def respond() -> AsyncGenerator[Any]:
        for message in waiting.pop(0):
            if message is None:
                raise ConnectionError("the replica died")
            yield message

    async def receive() -> Any:
        await asyncio.Future()

    async def send(message: Any) -> None:
        got.append(message)

    try:
        asyncio.run(serve_ray.relay(respond, ConnectionError, receive, send))
    except ConnectionError:
        got.append(None)
    return got, len(waiting)


@pytest.mark.parametrize("first", [[None], [HEAD, None], [HEAD, body(b""), None]])
def test_a_replica_that_dies_before_its_first_bytes_is_replaced(first: list[Any]) -> None:
    whole = [HEAD, body(b"a"), body(b"b"), LAST]
    assert relay(first, whole, whole) == (whole, 1)


def test_nothing_is_sent_twice_when_a_replica_dies_later() -> None:
    whole = [HEAD, body(b"a"), LAST]
    assert relay([HEAD, body(b"a"), None], whole) == ([HEAD, body(b"a"), None], 1)


@pytest.mark.parametrize("end", [LAST, body(b"", more=False)])
def test_an_answer_without_a_body_is_passed_on(end: Any) -> None:
    assert relay([HEAD, end]) == ([HEAD, end], 0)


def test_replicas_that_all_die_are_not_asked_for_ever() -> None:
    assert relay(*[[HEAD, None]] * 9) == ([None], 9 - serve_ray.TRIES)
