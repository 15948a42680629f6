"""Who is let in, what is logged, and that no request, however odd, is answered with a fault of ours."""

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.serving import (
    Client,
    asking,
    frees_all_pages,
    listening,
    make_service,
    post_over,
    slow_steps,
    speak,
)

from qkv.cli import main
from qkv.cli import serve as verb
from qkv.errors import QkvError
from qkv.explore import server as explore
from qkv.serve import bodies, gate, listen
from qkv.serve.models import Holding

KEY, OTHER = "a-key-that-is-long-enough", "another-key-that-is-long"
COLD = {"model": "demo-lm", "prompt": "One, two,", "max_tokens": 4, "temperature": 0}
PATHS = {
    "/v1/completions": bodies.TEXT, "/v1/chat/completions": bodies.CHAT, "/v1/embeddings": bodies.EMBEDDING,
    "/tokenize": bodies.TOKENIZE, "/detokenize": bodies.DETOKENIZE, "/v1/translate": bodies.TRANSLATE,
    "/translate": bodies.LIBRE,
}  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with asking("demo-lm", "demo", "demo-bert") as found:
        yield found


@pytest.fixture(scope="module")
def guarded() -> Iterator[Client]:
    keys = gate.Keys({"ann": gate.hash_key(KEY), "bob": gate.hash_key(OTHER)})
    with asking("demo-lm", "demo", access=gate.Access(("testserver",), ("https://app.example",), keys)) as found:
        yield found


def test_a_connection_that_takes_no_answer_ends_in_silence(client: Client) -> None:
    async def refuse(_: Any) -> None:
        raise RuntimeError("state MUST_CLOSE")

    async def leave() -> dict[str, str]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"elsewhere")], "query_string": b"",
             "scheme": "http", "server": ("x", 1), "client": ("x", 1), "http_version": "1.1"}
    client.run(client.app(scope, leave, refuse))  # type: ignore[operator]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_with_keys_only_health_is_answered_without(guarded: Client) -> None:
    paths = [route.path for route in guarded.app.routes]  # type: ignore[attr-defined]
    assert len(paths) > 10
    for path in paths:
        for method in ("GET", "POST"):
            reply = guarded.run(guarded.ask(method, path.replace("{name:path}", "demo"), b"{}"))
            assert reply.status in ((401, 405) if path != "/health" else (200, 405)), path
    for wrong in ("", "Bearer", "Bearer x", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer \xff"):
        reply = guarded.post("/v1/completions", COLD, authorization=wrong)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    assert guarded.post("/v1/completions", COLD, **bearer(KEY)).status == 200
    assert guarded.post("/v1/completions", COLD, x_api_key=OTHER).status == 200
    assert guarded.post("/translate", {"q": "我", "api_key": KEY}).status == 200
    assert guarded.post("/translate", {"q": "我", "api_key": "x"}).status == 401


@pytest.mark.parametrize("spoil", [lambda file: file.write_bytes(b"\xff\xfe"), lambda file: file.mkdir()])
def test_a_file_of_keys_that_cannot_be_read_is_named(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    spoil(file := tmp_path / "keys.txt")
    for read in (lambda: gate.Keys.from_file(file), lambda: gate.add_key(file, "ann")):
        with pytest.raises(QkvError, match=r"keys\.txt"):
            read()


def test_keys_are_compared_whole_and_kept_as_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    compared: list[str] = []
    monkeypatch.setattr(gate.hmac, "compare_digest", lambda a, b: compared.append(b) or a == b)
    keys = gate.Keys({"ann": gate.hash_key(KEY), "bob": gate.hash_key(OTHER)})
    assert keys.find_name(KEY) == "ann"
    assert len(compared) == 2  # also after the right one
    file = tmp_path / "keys.txt"
    assert main(["serve", "--new-key", "ann", "--keys", str(file)]) == 0
    key = capsys.readouterr().out.strip()
    assert key not in file.read_text()
    assert gate.Keys.from_file(file).find_name(key) == "ann"
    assert main(["serve", "--new-key", "ann", "--keys", str(file)]) == 2
    assert main(["serve", "--new-key", "b b", "--keys", str(file)]) == 2
    file.write_text("ann key\n")
    with pytest.raises(QkvError, match=r"keys\.txt:1"):
        gate.Keys.from_file(file)
    file.write_text("# none\n")
    for wrong in (lambda: gate.Keys.from_file(file), lambda: gate.Keys.from_file(None, "short")):
        with pytest.raises(QkvError):
            wrong()


@pytest.mark.parametrize("host", ["evil.example", "testserver.evil.example", "", "127.0.0.1", "x" * 3000])
def test_a_foreign_name_is_refused(client: Client, host: str) -> None:
    reply = client.post("/v1/completions", COLD, host=host)
    assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")


def test_a_foreign_page_is_refused_and_a_named_one_may_ask(client: Client, guarded: Client) -> None:
    for origin in ("https://evil.example", "null", "http://testserver.evil.example"):
        reply = client.post("/v1/completions", COLD, origin=origin)
        assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in reply.headers
    assert client.post("/v1/completions", COLD, origin="http://testserver").status == 200
    asked = {"origin": "https://app.example", "access-control-request-method": "POST",
             "access-control-request-headers": "authorization"}
    reply = guarded.run(guarded.ask("OPTIONS", "/v1/completions", headers=asked))
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (204, "https://app.example")
    assert guarded.post("/v1/completions", COLD, origin="https://app.example").status == 401
    assert guarded.post("/v1/completions", COLD, origin="https://app.example", **bearer(KEY)).status == 200


def test_every_answer_has_an_id_and_the_log_has_no_prompt(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = client.post("/v1/completions", {**COLD, "prompt": "A secret"}, x_request_id="mine-1")
    assert reply.headers["x-request-id"] == "mine-1"
    assert reply.json["id"] == "cmpl-mine-1"
    assert client.post("/v1/completions", {**COLD, "n": "secret"}, x_request_id="no good\x7f").status == 400
    lines = [json.loads(line) for line in client.log.getvalue().splitlines()]
    assert [line["id"] for line in lines][-2] == "mine-1"
    assert (lines[-2]["model"], lines[-2]["wrote"]) == ("demo-lm", 4)
    assert (lines[-1]["path"], lines[-1]["status"]) == ("/v1/completions", 400)
    with monkeypatch.context() as patch:
        patch.setattr(client.service.models, "find_name", lambda name: {}["a secret"])
        reply = client.post("/v1/completions", {**COLD, "prompt": "A secret"})
    assert (reply.status, reply.error["type"]) == (500, "server_error")
    last = json.loads(client.log.getvalue().splitlines()[-1])
    assert (last["error"], last["id"]) == ("KeyError", reply.headers["x-request-id"])
    assert "secret" not in client.log.getvalue() + reply.body.decode()
    text = client.get("/metrics").body.decode()
    assert 'qkv:request_errors_total{status="400"}' in text
    assert "qkv:time_to_first_token_seconds_count" in text


BODIES = {
    "no JSON": b"{", "no UTF-8": b'{"prompt": "\xff"}', "a list": b"[]", "nothing": b"", "a number": b"1" * 5000,
    "deep": b"[" * 100_000, "deep but closed": b'{"a":' * 900 + b"1" + b"}" * 900, "twice": b'{"n": 1, "n": 2}',
    "not finite": b'{"n": NaN}', "infinite": b'{"n": -Infinity}', "half a character": b'{"prompt": "\\ud800"}',
    "a long number": b'{"n": ' + b"9" * 5000 + b"}", "zero bytes": b"\0\0\0", "a mark": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("path", ["/v1/completions", "/translate"])
def test_what_is_no_request_is_refused(client: Client, body: bytes, path: str) -> None:
    reply = client.post(path, body)
    assert (reply.status, reply.error["code"]) == (400, "invalid_json"), reply.body


def test_a_body_that_is_too_large_is_not_read(client: Client) -> None:
    reply = client.post("/v1/completions", b" " * (5 << 20))
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    for length in ("99999999999", "x", "-1"):
        assert client.post("/v1/completions", b"{}", content_length=length).status == 413


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/v1/completions"), ("DELETE", "/v1/models"), ("GET", "/nope"), ("GET", "/v1/../health"),
    ("GET", "/%2e%2e/etc/passwd"), ("TRACE", "/health"), ("GET", "//"), ("POST", "/v1/chat/completions/"),
])  # fmt: skip
def test_an_address_that_is_not_there_says_so(client: Client, method: str, path: str) -> None:
    reply = client.run(client.ask(method, path))
    assert reply.status in (404, 405), reply.body
    assert reply.error["code"] == "not_found"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["demo", "demo-lm", "demo-bert", "user", "zh", "en", "text", "json_schema"]),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "function", "schema"]) | st.text(max_size=5), inside,
        max_size=4), max_leaves=8,
)


def draw_body(path: str) -> st.SearchStrategy[Any]:
    """Bodies of an address: any values in its own fields, and sometimes in others."""
    right = {"model": st.sampled_from(["demo-lm", "demo", "demo-bert"]), "max_tokens": st.integers(1, 3),
             "prompt": st.text(min_size=1, max_size=9), "text": st.just("我"), "q": st.just("我"),
             "input": st.just("x"), "messages": st.just([{"role": "user", "content": "x"}]), "tokens": st.just([5])}
    mine = {key: check for key, check in right.items() if key in PATHS[path]}
    wild = st.dictionaries(st.sampled_from(sorted(PATHS[path])) | st.text(max_size=6), JUNK, max_size=3)
    return st.tuples(st.fixed_dictionaries(mine), wild).map(lambda both: {**both[0], **both[1]}) | JUNK


def fuzz(client: Client, path: str, body: Any) -> None:
    try:
        data = json.dumps(body).encode()
    except (UnicodeEncodeError, ValueError):
        return
    reply = client.post(path, data)
    assert reply.status in (200, 400, 404, 413), (path, body, reply.body)
    said = reply.body.decode()
    assert "Traceback" not in said
    assert " object at 0x" not in said
    if reply.status != 200:
        assert reply.error["message"]


SLOW = list(HealthCheck)


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(st.sampled_from(sorted(PATHS)).flatmap(lambda path: st.tuples(st.just(path), draw_body(path))))
def test_no_body_meets_a_fault_of_ours(client: Client, asked: tuple[str, Any]) -> None:
    fuzz(client, *asked)


@pytest.mark.nightly
@settings(max_examples=2000, deadline=None, suppress_health_check=SLOW)
@given(st.sampled_from(sorted(PATHS)).flatmap(lambda path: st.tuples(st.just(path), draw_body(path))))
def test_no_body_at_all_meets_a_fault_of_ours(client: Client, asked: tuple[str, Any]) -> None:
    fuzz(client, *asked)


# With a socket


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(make_service("demo-lm")) as (found, _):
        yield found


def test_streams_beside_each_other_are_each_their_own(port: int) -> None:
    bodies = [{**COLD, "prompt": "One, two, buckle"[: 4 + n], "max_tokens": 40, "stream": True} for n in range(8)]
    alone = [texts_of(post_over(port, "/v1/completions", body)[2]) for body in bodies]
    found: dict[int, str] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: texts_of(post_over(port, "/v1/completions",
                                                                                       bodies[n])[2])}))
               for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [found[n] for n in range(8)] == alone
    assert len(set(alone)) > 3


def texts_of(body: bytes) -> str:
    lines = [line for line in body.decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return "".join(c["text"] for line in lines[:-1] for c in json.loads(line[6:])["choices"])


def test_heads_that_are_no_heads_are_refused(port: int) -> None:
    host = f"host: 127.0.0.1:{port}\r\n".encode()
    lengths = b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}"
    for data in (b"\x16\x03\x01\0\xa5\x01\0\0\xa1\x03\x03", b"GET / HTTP/1.1\r\nno head\r\n\r\n",
                 b"\r\n" * 40 + b"x y z\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\n" + host + lengths):
        assert speak(port, data, wait=3).startswith(b"HTTP/1.1 400"), data
    flood = b"GET /health HTTP/1.1\r\n" + host + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 90) for n in range(10_000))
    assert b" 400 " in speak(port, flood, wait=3).split(b"\r\n")[0] or not speak(port, flood, wait=1)
    assert speak(port, b"GET /health HTTP/1.1\r\n" + host + b"connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_a_connection_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "PATIENCE", 0.3)
    with listening(make_service("demo-lm", patience=0.3)) as (port, _):
        began = time.monotonic()
        assert speak(port, b"") == b""
        assert speak(port, b"GET /health HT") == b""
        late = speak(port, f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: 9\r\n\r\n{{"
                     .encode(), wait=3)
        assert late.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 9


def test_whoever_hangs_up_frees_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service("demo-lm")
    slow_steps(monkeypatch, 0.01)
    with listening(service) as (port, _):
        body = json.dumps({**COLD, "max_tokens": 180, "stream": True, "n": 4}).encode()
        with socket.create_connection(("127.0.0.1", port)) as one:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {len(body)}\r\n\r\n"
            one.sendall(head.encode() + body)
            assert one.recv(1000)
        engine = service.models.loaded["demo-lm"].engine
        assert engine is not None
        assert frees_all_pages(engine)
        while service.running["demo-lm"]:  # the loop hears of it after the engine
            time.sleep(0.01)
        assert service.metrics.counts["request_success_total"]['finished_reason="cancelled"'] == 4


@pytest.mark.parametrize(("drain", "ends"), [(20.0, "length"), (0.0, None)])
def test_the_end_lets_answers_be_written(drain: float, ends: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    service, steps = make_service("demo-lm", holding=Holding(rows=2)), slow_steps(monkeypatch, 0.01)
    with listening(service, drain=drain) as (port, server):
        found: list[tuple[int, dict[str, str], bytes]] = []
        body = {**COLD, "max_tokens": 150, "stream": True}
        asked = threading.Thread(target=lambda: found.append(post_over(port, "/v1/completions", body)))
        asked.start()
        while len(steps) < 20:
            time.sleep(0.005)
        server.handle_exit(signal.SIGTERM, None)
        asked.join(30)
        (status, _, data), = found
        assert status == 200
        last = json.loads(data.decode().split("\n\n")[-3 if ends else -2].removeprefix("data: "))
        assert (last["choices"][0]["finish_reason"] == ends) if ends else (last["error"]["code"] == "shutting_down")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


# The verb


@pytest.mark.parametrize("args", [
    [], ["demo", "demo"], ["demo", "--host", "0.0.0.0"], ["no-such-model=./nowhere"], ["./nowhere"],
    ["demo", "--keys", "./nowhere"], ["demo", "--languages", "x"], ["demo", "--languages", "x=zh:en"],
    ["demo", "--new-key", "x"], ["demo", "--host", "300.1.1.1", "--keys", "K"],
])  # fmt: skip
def test_a_wrong_command_line_ends_at_once(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    gate.add_key(tmp_path / "K", "ann")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QKV_API_KEY", raising=False)
    monkeypatch.setattr(listen.Server, "run", lambda *a, **k: pytest.fail("it began"))
    assert main(["serve", *args]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) <= 2
    assert "Traceback" not in said


def test_models_are_named_by_the_end_of_their_path(tmp_path: Path) -> None:
    (tmp_path / "smollm2.gguf").touch()
    (tmp_path / "mine").mkdir()
    given = ("demo", str(tmp_path / "smollm2.gguf"), str(tmp_path / "mine"), "chat=Qwen/Qwen2.5-0.5B-Instruct", "org/m")
    assert list(verb.name_models(given)) == ["demo", "smollm2", "mine", "chat", "org/m"]
    assert verb.read_languages({"opus-mt-zh-en": "x", "demo": "demo"}, ("demo=zh:de",)) == {
        "opus-mt-zh-en": ("zh", "en"), "demo": ("zh", "de")}


def test_an_engine_whose_thread_ended_is_said(client: Client) -> None:
    with asking("demo-lm") as other:
        assert other.get("/ready").status == 503
        other.post("/v1/completions", COLD)
        assert other.get("/ready").status == 200
        one = other.service.models.loaded["demo-lm"]
        other.run(asyncio.to_thread(one.worker.close))
        assert other.get("/health").status == 503
        assert other.post("/v1/completions", COLD).status == 503


@pytest.mark.parametrize("bind", [lambda: listen.bind_socket("127.0.0.1", 0), lambda: explore.bind_socket(None)])
def test_a_connection_sends_small_pieces_at_once(bind: Callable[[], socket.socket]) -> None:
    """Else each answer after the first on a connection waits 40 ms for the client's acknowledgement."""
    with bind() as bound, socket.create_connection(bound.getsockname()), bound.accept()[0] as taken:
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
