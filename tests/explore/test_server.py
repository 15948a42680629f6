"""The page's server lets in whom it should, keeps tabs apart, says what went wrong, and ends when it is told."""

import asyncio
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import qkv
from qkv.errors import QkvError
from qkv.explore import probe_answers, server
from qkv.explore.server import Desk, Events, make_app
from qkv.model import Model
from qkv.training.probes.records import ProbeLog

PORT, TOKEN = 8123, "secret"
HERE = f"http://127.0.0.1:{PORT}"
ROW = "row?part=decoder&layer=1&head=2&query=3"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.json["error"]["zh"]
        return self.json["error"]["en"]


class Browser:
    """Asks the application without a socket, as a browser does that has the cookie."""

    def __init__(self, desk: Desk, *, known: bool = True) -> None:
        self.app = make_app(desk, token=TOKEN, port=PORT)
        self.cookie = f"qkv-{PORT}={TOKEN}" if known else ""

    async def ask(
        self, path: str, body: bytes | None = None, left: asyncio.Event | None = None, **headers: str
    ) -> Reply:
        said = {
            "host": f"127.0.0.1:{PORT}",
            "cookie": self.cookie,
            **({"origin": HERE} if body is not None else {}),
            **headers,
        }
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
            "method": "GET" if body is None else "POST", "path": path, "raw_path": path.encode(),
            "server": ("127.0.0.1", PORT),
            "query_string": query.encode(), "client": ("127.0.0.1", 1), "state": {},
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in said.items() if v],
        }
        sent: list[dict[str, Any]] = []
        given = iter([{"type": "http.request", "body": body or b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            if (one := next(given, None)) is None:
                await (left or asyncio.Event()).wait()  # somebody who stays
            return one or {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        got = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return Reply(sent[0]["status"], got, b"".join(m.get("body", b"") for m in sent[1:]))

    def get(self, path: str, **headers: str) -> Reply:
        return asyncio.run(self.ask(path, **headers))

    def post(self, path: str, body: object, **headers: str) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(self.ask(path, raw, **headers))

    def run(self, text: str = "One, two", **more: Any) -> str:
        reply = self.post("/api/run", {"text": text, "max_new_tokens": 3, **more})
        assert reply.status == 200, reply.body
        return reply.json["run"]


@pytest.fixture(scope="module")
def lm() -> Model:
    return qkv.load("demo-lm")


def desk_of(lm: Model, **more: Any) -> Desk:
    return Desk(["demo-lm", "demo-bert"], qkv.load, models={"demo-lm": lm}, **more)


@pytest.fixture
def browser(lm: Model) -> Browser:
    return Browser(desk_of(lm))


# Who is let in


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(lm: Model) -> None:
    stranger = Browser(desk_of(lm), known=False)
    met = stranger.get(f"/?token={TOKEN}")
    assert (met.status, met.headers["location"]) == (303, "/")
    said = met.headers["set-cookie"].lower()
    assert f"qkv-{PORT}={TOKEN}" in said
    assert "httponly" in said
    assert "samesite=strict" in said
    assert TOKEN not in met.headers["location"]
    assert Browser(desk_of(lm)).get("/").status == 200


@pytest.mark.parametrize(
    "path", ["/", "/app.js", "/api/about", "/api/events", "/api/watch", "/api/r/x/meta", "/?token=wrong", "/no/such"]
)
def test_without_the_token_nothing_is_answered(lm: Model, path: str) -> None:
    reply = Browser(desk_of(lm), known=False).get(path)
    assert reply.status == 403
    assert "the whole address" in reply.body.decode()
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"evil.example:{PORT}", "x"])
@pytest.mark.parametrize("path", ["/", f"/?token={TOKEN}", "/api/about"])
def test_a_foreign_host_is_refused(browser: Browser, host: str, path: str) -> None:
    reply = browser.get(path, host=host)
    assert reply.status == 403
    assert "Host" in reply.body.decode()
    assert "set-cookie" not in reply.headers


def test_localhost_is_the_same_machine(browser: Browser) -> None:
    assert browser.get("/api/about", host=f"localhost:{PORT}").status == 200


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", f"http://127.0.0.1:{PORT + 1}", f"https://127.0.0.1:{PORT}"]
)
def test_only_the_page_itself_may_ask(browser: Browser, origin: str) -> None:
    reply = browser.post("/api/run", {"text": "One"}, origin=origin)
    assert reply.status == 403
    assert "Origin" in reply.error


def test_every_answer_carries_its_guards(browser: Browser) -> None:
    for path in ("/", "/api/about", "/nothing", "/api/nothing", "/api/r/x/meta", f"/?token={TOKEN}"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-eval" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert browser.get("/api/about").headers["cache-control"] == "no-store"


def test_no_file_but_the_pages_own_is_given(browser: Browser) -> None:
    for path in ("/server.py", "/..%2fserver.py", "/page.js", "/static/app.js"):
        assert browser.get(path).status == 404


def test_static_files_have_a_tag(browser: Browser) -> None:
    first = browser.get("/")
    again = browser.get("/", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert browser.get("/", if_none_match='"other"').status == 200


# The answers with which the page opens


def opened(desk: Desk) -> Browser:
    """A browser, once those answers are made."""
    desk.prepare()
    assert desk.begun
    desk.begun[1].result(60)
    return Browser(desk)


def carried(browser: Browser) -> dict[str, Any]:
    """What the document brings along, by path."""
    found = re.search(r'<script type="application/json" id="ready">(.*?)</script>', browser.get("/").body.decode())
    return json.loads(found[1]) if found else {}


def test_the_page_brings_the_answers_with_which_it_opens(lm: Model) -> None:
    desk = desk_of(lm, examples={"demo-lm": ["One, two, <b>"]})
    browser = opened(desk)
    found = carried(browser)
    run = browser.post("/api/run", {"text": "One, two, <b>"}).json["run"]
    assert json.loads(found.pop('/api/run?{"text":"One, two, <b>"}')["body"]) == {"run": run}
    asked = {f"/api/r/{run}/{name}" for name in ("meta", "row", "thumbs", "mask", "attn")}  # what Heads asks
    assert {path.split("?")[0] for path in found} == {"/api/about", *asked}
    for path, one in found.items():
        reply = browser.get(path)
        body = reply.body if one["type"] == "application/json" else base64.b64encode(reply.body)
        assert (one["type"], one["body"]) == (reply.headers["content-type"], body.decode())
    first = browser.get("/")
    assert browser.get("/", if_none_match=first.headers["etag"]).status == 304


def test_a_question_that_was_typed_is_what_the_page_opens_with(lm: Model) -> None:
    desk = desk_of(lm, examples={"demo-lm": ["One"]}, first={"text": "Three, four", "max_new_tokens": 2})
    found = carried(opened(desk))
    assert '/api/run?{"max_new_tokens":2,"text":"Three, four"}' in found


def test_without_answers_the_page_is_served_all_the_same(lm: Model) -> None:
    assert carried(Browser(desk_of(lm))) == {}  # nobody began
    assert carried(opened(desk_of(lm))) == {}  # no text to open with
    fault = Desk(["demo-lm"], lambda name: qkv.load("no-such-model"), examples={"demo-lm": ["One"]})
    assert carried(opened(fault)) == {}
    assert Browser(fault).get("/").status == 200


def test_a_model_that_was_trained_meanwhile_makes_them_anew(lm: Model) -> None:
    desk = desk_of(lm, examples={"demo-lm": ["One"], "demo-bert": ["我爱[MASK]。"]})
    browser = opened(desk)
    assert carried(browser)
    desk.names.insert(0, "demo-bert")
    assert carried(browser) == {}
    assert desk.begun
    desk.begun[1].result(60)
    assert json.loads(carried(browser)["/api/about"]["body"])["model"] == "demo-bert"


# Questions and answers


def test_a_question_and_its_answers(browser: Browser) -> None:
    name = browser.run()
    assert browser.run() == name
    meta = browser.get(f"/api/r/{name}/meta").json
    assert meta["text"] == "One, two"
    assert len(meta["written"]) == 3
    row = browser.get(f"/api/r/{name}/{ROW}")
    assert row.headers["content-type"] == "application/x-qkv"
    assert int.from_bytes(row.body[:4], "little") % 8 == 4
    other = browser.run("我爱[MASK]。", model="demo-bert")
    assert browser.get(f"/api/r/{other}/meta").json["kind"] == "encoder"
    assert browser.get("/api/about?model=demo-bert").json["model"] == "demo-bert"
    assert browser.get("/api/neighbours?word=two&n=3").json["near"][2]["cosine"] <= 1
    assert browser.get("/api/cost?batch=2").json["batch"] == 2


@pytest.mark.parametrize(
    ("path", "status", "fault"),
    [
        ("/api/r/r0/meta", 404, "ask again"), ("/api/nothing", 404, "/api/nothing"), ("/nothing", 404, "no"),
        ("/api/about?model=gpt5", 422, "demo-lm, demo-bert"), ("/api/about?modle=x", 422, "did you mean 'model'"),
        ("/api/neighbours", 422, "give a word"), ("/api/cost?dtype=int3", 422, "known are"),
        ("/api/watch/w0/steps", 404, "no watched run"), ("/api/run", 404, "/api/run"),
    ],
)
def test_what_is_not_there_says_so_in_both_languages(browser: Browser, path: str, status: int, fault: str) -> None:
    reply = browser.get(path)
    assert reply.status == status
    assert fault in reply.error


@pytest.mark.parametrize(
    ("body", "status", "fault"),
    [
        (b"{", 400, "JSON object"), (b"[1]", 400, "JSON object"), (b"\xff", 400, "JSON object"), ({}, 422, "no text"),
        ({"text": "x" * (1 << 20)}, 413, "at most"), ({"text": "a", "model": "gpt5"}, 422, "no model gpt5"),
        ({"text": "a", "model": 5}, 422, "no model 5"),
        ({"text": "a", "cut": {"part": "cross", "layer": 0, "head": 0}}, 422, "decoder"),
    ],
)
def test_bad_questions_are_refused(browser: Browser, body: object, status: int, fault: str) -> None:
    reply = browser.post("/api/run", body)
    assert reply.status == status
    assert fault in reply.error


def test_a_fault_of_ours_is_told_and_the_server_goes_on(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    name = browser.run()
    monkeypatch.setitem(server.answers.ANSWERS, "meta", (lambda run, query: 1 / 0, ()))
    reply = browser.get(f"/api/r/{name}/meta")
    assert reply.status == 500
    assert "ZeroDivisionError" in reply.error
    assert browser.get(f"/api/r/{name}/lens").status == 200


def test_ten_thousand_words_are_cut_and_it_is_said(browser: Browser) -> None:
    meta = browser.get(f"/api/r/{browser.run('One, two, ' * 2000)}/meta").json
    assert "the page reads the first" in meta["said"][0]["en"]
    assert "只读前" in meta["said"][0]["zh"]


def test_two_tabs_get_their_own_answers(lm: Model) -> None:
    """Many questions at once: torch works in one thread, and each tab has the numbers of its own text."""
    browser = Browser(desk_of(lm))
    texts = ["One, two", "Three, four", "Knock at the door", "Twinkle"]
    alone = {t: Browser(desk_of(lm)).post("/api/run", {"text": t, "max_new_tokens": 4}).json["run"] for t in texts}

    async def tab(text: str) -> tuple[str, bytes]:
        name = (await browser.ask("/api/run", json.dumps({"text": text, "max_new_tokens": 4}).encode())).json["run"]
        assert name == alone[text]
        bodies = await asyncio.gather(*(browser.ask(f"/api/r/{name}/{what}") for what in ("meta", "lens", ROW)))
        return text, bodies[0].body + bodies[2].body

    async def all_tabs() -> list[tuple[str, bytes]]:
        return await asyncio.gather(*(tab(t) for t in texts * 3))

    found: dict[str, set[bytes]] = {}
    for text, body in asyncio.run(all_tabs()):
        found.setdefault(text, set()).add(body)
    assert all(len(bodies) == 1 for bodies in found.values())
    assert len(set.union(*found.values())) == len(texts)


def test_torch_works_in_one_thread(lm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    right = server.answers.answer

    def heard(*given: Any) -> Any:
        threads.add(threading.current_thread().name)
        return right(*given)

    monkeypatch.setattr(server.answers, "answer", heard)
    browser = Browser(desk_of(lm))
    name = browser.run()
    for _ in range(3):
        browser.get(f"/api/r/{name}/meta")
    assert len(threads) == 1
    assert threading.current_thread().name not in threads


def test_a_question_of_somebody_who_left_is_not_answered(lm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, asked = desk_of(lm), list[str]()
    browser, busy, right = Browser(desk), threading.Event(), server.answers.answer
    name = browser.run()

    def heard(*given: Any) -> Any:
        asked.append(given[-1] if isinstance(given[-1], str) else "?")
        return right(*given)

    monkeypatch.setattr(server.answers, "answer", heard)

    async def come_and_go() -> list[Reply]:
        left = asyncio.Event()
        desk.worker.submit(busy.wait, 20)  # what the one thread does meanwhile
        going = [asyncio.ensure_future(browser.ask(f"/api/r/{name}/meta", left=left)) for _ in range(30)]
        await asyncio.sleep(0.05)
        left.set()
        replies = await asyncio.gather(*going)
        busy.set()
        return [*replies, await browser.ask(f"/api/r/{name}/meta")]

    replies = asyncio.run(come_and_go())
    assert [reply.status for reply in replies] == [400] * 30 + [200]
    assert len(asked) == 1


def test_somebody_who_leaves_in_the_midst_of_a_body_makes_no_noise(
    browser: Browser, capfd: pytest.CaptureFixture[str]
) -> None:
    async def leave() -> int:
        left = asyncio.Event()
        left.set()
        return (await browser.ask("/api/run", b"", left=left, more="1")).status

    given = server.Request.stream

    async def stream(self: Any) -> Any:
        raise server.ClientDisconnect
        yield b""

    server.Request.stream = stream  # type: ignore[method-assign]
    try:
        assert asyncio.run(leave()) == 400
    finally:
        server.Request.stream = given  # type: ignore[method-assign]
    assert "Traceback" not in capfd.readouterr().err


def test_a_host_is_never_html(browser: Browser) -> None:
    reply = browser.get("/", host="<img/src=x>")
    assert (reply.status, b"<img" in reply.body, b"&lt;img" in reply.body) == (403, False, True)
    assert browser.post("/api/run", {"text": "a"}, origin=f"127.0.0.1:{PORT}").status == 403


# Events and watched runs


def test_events_are_numbered_and_go_on_where_a_browser_left_off(lm: Model) -> None:
    events = Events(kept=3)
    for step in range(5):
        events.send({"kind": "step", "step": step, "loss": float("nan")})
    assert [e[0] for e in events.events_after(0)] == [3, 4, 5]
    assert [e[1]["step"] for e in events.events_after(4)] == [4]
    assert [e[0] for e in events.events_after(99)] == [3, 4, 5]
    events.closed = True
    desk = desk_of(lm, events=events)
    assert Browser(desk).get("/api/events").headers["content-type"].startswith("text/event-stream")


def test_a_stream_brings_events_as_they_come_and_ends_with_the_server(lm: Model) -> None:
    page = server.Page(desk_of(lm), port=None, token=TOKEN)
    url = page.start()
    try:
        page.desk.events.send({"kind": "step", "step": 1})
        headers = {"Cookie": f"qkv-{page.port}={TOKEN}", "Last-Event-ID": "1"}
        with urllib.request.urlopen(
            urllib.request.Request(url.split("?")[0] + "api/events", headers=headers)
        ) as stream:
            assert stream.readline() == b"retry: 1000\n"
            page.desk.events.send({"kind": "watch", "step": 2})
            lines = [stream.readline() for _ in range(3)]
            assert lines[1:] == [b"id: 2\n", b'data: {"kind":"watch","step":2}\n']
            page.desk.events.closed = True
            assert stream.read() == b"\n"
    finally:
        page.stop()
    assert page.thread
    assert not page.thread.is_alive()


def watched_run(folder: Path) -> Path:
    """A run of two recorded steps, as training/probes/recorder.py lays it out."""
    run = folder / "toy"
    (run / "train" / "watch").mkdir(parents=True)
    rows = []
    for step in (0, 4):
        words = torch.randn(2, 8, generator=torch.Generator().manual_seed(step))
        arrays = {f"matrices.{n}": torch.ones(3) * (step + 1) for n in ("weight", "gradient", "update")}
        arrays |= {"matrices.moved": torch.ones(3, dtype=torch.int32), "words.vectors": words,
                   "teacher.mask": torch.ones(2, 2, dtype=torch.uint8),
                   "texts.0.alignment": torch.rand(2, 3)}
        state = json.dumps({"step": step, "loss": None, "texts": [], "words": [], "teacher": {"rows": []}})
        save_file(arrays, run / "train" / "watch" / f"{step:06}.safetensors", {"state": state})
        rows.append({"step": step, "outputs": [], "weights": False})
    index = {"format": 1, "kind": "decoder", "texts": ["a"], "words": ["b", "c"], "matrices": [], "steps": rows}
    (run / "train" / "watch" / "index.json").write_text(json.dumps(index), encoding="utf-8")
    log = [{"kind": "step", "step": s, "loss": 1 / s} for s in range(1, 5)] + [
        {"kind": "evaluation", "step": 4, "loss": 0.2}
    ]
    (run / "train" / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in log) + '{"ki', encoding="utf-8")
    return run


def test_a_watched_run_is_listed_and_replayed(lm: Model, tmp_path: Path) -> None:
    watched_run(tmp_path)
    browser = Browser(desk_of(lm, watched=tmp_path))
    listed = browser.get("/api/watch").json["runs"]
    assert [(r["name"], r["steps"], r["last"]) for r in listed] == [("toy", 2, 4)]
    name = listed[0]["run"]
    head, arrays = parts(browser.get(f"/api/watch/{name}/steps").body)
    assert head["recorded"] == [0, 4]
    assert [s for s, _ in head["loss"]] == [1, 2, 3, 4]
    assert [v for _, v in head["loss"]] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert arrays["weight"].tolist() == [[1.0] * 3, [5.0] * 3]
    assert arrays["paths"].shape == (2, 2, 2)
    head, arrays = parts(browser.get(f"/api/watch/{name}/step/4").body)
    assert head["step"] == 4
    assert arrays["texts.0.alignment"].shape == (2, 3)
    assert "nearest" in browser.get(f"/api/watch/{name}/step/3").error
    assert browser.get(f"/api/watch/{name}/step/x").status == 422
    assert browser.get(f"/api/watch/{name}/else").status == 404
    assert Browser(desk_of(lm)).get("/api/watch").json["runs"] == []


def test_the_run_that_recorded_last_stands_last(lm: Model, tmp_path: Path) -> None:
    for n, name in enumerate("bca"):
        index = watched_run(tmp_path / name) / "train" / "watch" / "index.json"
        os.utime(index, (1000 + n, 1000 + n))
    runs = Browser(desk_of(lm, watched=tmp_path)).get("/api/watch").json["runs"]
    assert [r["run"] for r in runs] == [probe_answers.run_key(tmp_path / name / "toy") for name in "bca"]


def test_a_text_is_asked_for_while_a_run_learns(lm: Model, tmp_path: Path) -> None:
    run = watched_run(tmp_path)
    browser = Browser(desk_of(lm, watched=tmp_path))
    name = browser.get("/api/watch").json["runs"][0]["run"]
    assert browser.post(f"/api/watch/{name}/texts", {"text": " 我爱  茶。"}).json["texts"] == ["我爱 茶。"]
    assert ProbeLog(run).requests == ("我爱 茶。",)
    assert "1 to 120 characters" in browser.post(f"/api/watch/{name}/texts", {"text": "x" * 121}).error
    assert browser.post("/api/watch/w0/texts", {"text": "x"}).status == 404
    assert browser.post(f"/api/watch/{name}/words", {"text": "x"}).status == 404
    stranger = Browser(desk_of(lm, watched=tmp_path), known=False)
    assert stranger.post(f"/api/watch/{name}/texts", {"text": "x"}).status == 403


def parts(raw: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """An array body, read as the page reads it."""
    size = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + size])
    kinds = {"u8": torch.uint8, "i32": torch.int32, "f32": torch.float32}
    found: dict[str, torch.Tensor] = {}
    for name, spec in head["arrays"].items():
        kind, count = kinds[spec["dtype"]], int(torch.tensor(spec["shape"]).prod())
        begins = 4 + size + spec["offset"]
        data = bytearray(raw[begins : begins + count * kind.itemsize])
        found[name] = torch.frombuffer(data, dtype=kind).view(spec["shape"])
    return head, found


# Ports, browsers, the end


def test_a_taken_port_names_the_next_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(QkvError, match=rf"--port {port}: the port is taken .* (\d+) is free") as found:
            server.bind_socket(port)
        named = int(str(found.value).rsplit(" ", 3)[1])
        server.bind_socket(named).close()


def test_without_a_port_the_first_free_one_is_taken() -> None:
    first, second = server.bind_socket(None), server.bind_socket(None)
    try:
        assert first.getsockname()[1] != second.getsockname()[1]
        assert first.getsockname()[0] == "127.0.0.1"
    finally:
        first.close()
        second.close()


def test_without_a_display_no_browser_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not server.open_browser("http://x")
    monkeypatch.setenv("DISPLAY", ":0")
    assert server.open_browser("http://x")
    assert opened == ["http://x"]


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_the_command_prints_its_address_answers_and_ends_with_ctrl_c() -> None:
    env = {**os.environ, "QKV_TOKEN": TOKEN, "PYTHONPATH": str(Path(qkv.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "qkv.cli", "look", "demo-lm", "--serve", "--no-browser", "--lang", "en"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as made:
        assert made.stdout
        assert made.stderr
        url = made.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith(f"/?token={TOKEN}")
        port = url.split(":")[2].split("/")[0]
        asked = urllib.request.Request(f"{url.split('?')[0]}api/about", headers={"Cookie": f"qkv-{port}={TOKEN}"})
        for _ in range(100):  # uvicorn begins to accept a moment after the address was printed
            try:
                with urllib.request.urlopen(asked) as reply:
                    assert json.load(reply)["model"] == "demo-lm"
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        for body in (b"zz\r\nabc\r\n0\r\n\r\n", b"5\r\nabc"):  # malformed, and cut
            with socket.create_connection(("127.0.0.1", int(port))) as spoilt:
                spoilt.sendall(b"POST /api/run HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
                spoilt.shutdown(socket.SHUT_WR)
                spoilt.recv(100)
        made.send_signal(signal.SIGINT)
        assert made.wait(60) == 0
        assert made.stderr.read() == "Ctrl-C ends it\n"
