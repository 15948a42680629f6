"""Several processes behind one address: who is killed is replaced, and no request is lost or answered twice."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qkv.serve.replicas import Replica, Router

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the replicas in /proc")
TEXT = {"model": "demo-lm", "prompt": "One, two,", "max_tokens": 180, "temperature": 0, "logit_bias": {"1": -100}}


class Behind:
    """A server of two replicas."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def replicas(self) -> list[int]:
        """The numbers of its replicas' processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        return [int(pid) for pid in children.split()]

    def ask(self, **more: Any) -> tuple[int, str]:
        """Status and text of a request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", json.dumps({**TEXT, **more}))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())["choices"][0]["text"]
        finally:
            connection.close()

    def stream(self, **more: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A request whose answer comes token by token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({**TEXT, "stream": True, **more}))
        return connection, connection.getresponse()


def read_stream(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, first: bytes = b"") -> str:
    """The text of a stream, of which the first line may have been read."""
    lines = (first + answer.read()).decode().split("\n\n")
    connection.close()
    assert lines[-2:] == ["data: [DONE]", ""]
    return "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-2])


def begin(*words: str) -> tuple[subprocess.Popen[str], int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "qkv", "serve", *words, "--port", str(port), "--threads", "1", "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), port


@pytest.fixture
def served() -> Iterator[Behind]:
    process, port = begin("demo-lm", "--replicas", "2")
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said, process.communicate()[1]
    assert json.loads(said) == {"url": f"http://127.0.0.1:{port}", "models": ["demo-lm"], "replicas": 2}
    found = Behind(process, port)
    yield found
    children = found.replicas() if process.poll() is None else []
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert "Traceback" not in log
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_a_killed_replica_loses_no_request_and_is_replaced(served: Behind) -> None:
    alone = served.ask()
    assert alone[0] == 200
    before = served.replicas()
    assert len(before) == 2
    with ThreadPoolExecutor(8) as crew:
        asked = [crew.submit(served.ask) for _ in range(24)]
        time.sleep(0.3)
        os.kill(before[0], signal.SIGKILL)
        assert [one.result() for one in asked] == [alone] * 24
    until = time.monotonic() + 60
    while len(now := set(served.replicas())) < 2 or before[0] in now:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert before[1] in now


def test_a_connection_that_has_asked_nothing_outlives_its_replica(served: Behind) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.connect()
    time.sleep(0.5)  # it is passed on to a replica
    for pid in served.replicas():
        os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    connection.request("POST", "/v1/completions", json.dumps(TEXT))
    assert connection.getresponse().status == 200
    connection.close()


def test_a_stream_that_has_begun_is_cut_and_never_begun_again(served: Behind) -> None:
    _, alone = served.ask()
    connection, answer = served.stream(prompt=[TEXT["prompt"]] * 32)  # far from its end when the first line is there
    first = answer.readline()
    assert first.startswith(b"data: ")
    for pid in served.replicas():
        os.kill(pid, signal.SIGKILL)
    rest = b""
    with pytest.raises((http.client.IncompleteRead, OSError)):  # noqa: PT012
        while part := answer.read1(1 << 16):
            rest += part
        if b"[DONE]" not in rest:
            raise http.client.IncompleteRead(rest)
    connection.close()
    lines = [line for line in (first + rest).split(b"\n\n")[:-1] if line.startswith(b"data: {")]
    pieces = [json.loads(line[6:])["choices"][0] for line in lines]
    assert alone.startswith("".join(piece["text"] for piece in pieces if piece["index"] == 0))
    assert served.ask()[0] == 200  # by one that was started again


def test_requests_in_hand_are_answered_at_the_end(served: Behind) -> None:
    alone, (connection, answer) = read_stream(*served.stream()), served.stream()
    first = answer.readline()
    served.process.send_signal(signal.SIGTERM)
    assert read_stream(connection, answer, first) == alone
    assert served.process.wait(60) in (0, 143, -signal.SIGTERM)
    with pytest.raises(OSError, match="refused"):
        served.ask()


def test_replicas_that_cannot_start_end_the_router_with_their_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    process, _ = begin(str(tmp_path), "--replicas", "2")
    _, log = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "config.json" in log
    assert "--replicas" in log


def test_who_no_longer_listens_has_ended_though_nobody_said_so(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "0.sock")
    router = Router((), [replica])

    async def look() -> tuple[bool, bool]:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(replica.path))
            listening.listen()
            first = await router.has_ended(replica)
        return first, await router.has_ended(replica)

    assert asyncio.run(look()) == (False, True)
