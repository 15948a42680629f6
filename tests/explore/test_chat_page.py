"""The page of `qkv serve`: who gets in, and that a word leads to the pass that wrote it."""

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from support import browsing
from support.serving import Client, listening, make_service

from qkv.explore import chat_page, question
from qkv.generation.passes import Passes
from qkv.serve import gate

KEY, OTHER = "a-key-that-is-long-enough", "another-key-that-is-long"
WRITE: dict[str, Any] = {"prompt": "One, two,", "max_tokens": 9, "temperature": 0, "keep": True}
ASKED = {
    "demo-lm": ("/v1/completions", WRITE), "demo-moe": ("/v1/completions", {**WRITE, "prompt": "我爱喝茶。"}),
    "demo": ("/v1/translate", {"text": "书和茶都在桌上。", "keep": True}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    service = make_service("demo-lm", "demo", "demo-moe")
    keys = gate.Keys({"ann": gate.hash_key(KEY), "bob": gate.hash_key(OTHER)})
    pages = chat_page.make_routes(service, keys, cookie="qkv", lang="en")
    found = Client(service, gate.Access(("testserver",), (), keys), tuple(pages))
    yield found
    found.close()


def enter(client: Client, key: str) -> dict[str, str]:
    reply = client.post("/login", {"key": key}, origin="http://testserver")
    assert reply.status == 200
    said = reply.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=strict" in said
    assert key not in said
    return {"cookie": said.split(";")[0]}


def test_a_browser_shows_its_key_once(client: Client) -> None:
    assert b"<q-chat locked>" in client.get("/").body
    assert client.get("/chat.js").headers["content-type"].startswith("text/javascript")
    for wrong in ({"key": "x"}, {"key": 5}, {}):
        assert client.post("/login", wrong).status in (400, 401)
    ann = enter(client, KEY)
    page = client.get("/", **ann)
    assert b"<q-chat>" in page.body
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert client.get("/v1/models", **ann).status == 200
    assert client.get("/v1/models", cookie="qkv=guess").status == 401
    for path in ("/look/", "/look/app.js", "/api/about", "/inside?answer=x"):
        assert client.get(path).status == 401, path
    assert client.get("/look/app.js", **ann).status == 200
    assert client.get("/look/", **ann).status == 200


@pytest.mark.parametrize("name", ASKED)
def test_a_word_leads_to_the_position_that_wrote_it(client: Client, name: str) -> None:
    ann, (path, body) = enter(client, KEY), ASKED[name]
    reply = client.post(path, {"model": name, **body}, **ann)
    answer = client.service.kept[f"{reply.headers['x-request-id']}-0"]
    assert len(answer.tokens) > 3
    for n, token in enumerate(answer.tokens):
        reply_n = client.get(f"/inside?answer={reply.headers['x-request-id']}-0&token={n}&lang=zh", **ann)
        assert reply_n.status == 303
        place = {k: v[0] for k, v in parse_qs(urlsplit(reply_n.headers["location"]).fragment).items()}
        assert place["lang"] == "zh"
        found = client.get(f"/api/r/{place['run']}/choices?pos={place['query']}&top=1", **ann).json
        assert found["stages"][0]["top"][0]["id"] == token


def test_the_pass_is_the_one_that_was_written(client: Client) -> None:
    client.post("/v1/completions", {"model": "demo-lm", **WRITE, "temperature": 1.5, "seed": 3}, **enter(client, KEY))
    answer = list(client.service.kept.values())[-1]
    model = client.service.models.loaded["demo-lm"].model
    run = question.read_again(model, "demo-lm", "r", answer.prompt, (list(answer.tokens), list(answer.logprobs)))
    assert run.first.written == list(answer.tokens)
    begin = len(answer.prompt) - 1
    logits = run.t["logits"][0][begin:].float().log_softmax(-1)
    mine = logits.gather(-1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert mine.tolist() == pytest.approx(list(answer.logprobs), abs=1e-4)


def test_two_models_and_the_page_compute_in_one_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """See runner.ComputeThread: each thread that has computed keeps a pool of libgomp."""
    ann, threads = enter(client, KEY), list[threading.Thread]()
    forward, read = Passes.forward, question.read_again

    def note(function: Any, *args: Any, **how: Any) -> Any:
        threads.append(threading.current_thread())
        return function(*args, **how)

    monkeypatch.setattr(Passes, "forward", lambda *a, **k: note(forward, *a, **k))
    monkeypatch.setattr(chat_page, "read_again", lambda *a: note(read, *a))
    for name in ("demo-moe", "demo-lm"):
        reply = client.post(ASKED[name][0], {"model": name, **ASKED[name][1], "seed": 11}, **ann)
    written = len(threads)
    found = client.get(f"/inside?answer={reply.headers['x-request-id']}-0", **ann)
    run = parse_qs(urlsplit(found.headers["location"]).fragment)["run"][0]
    assert client.get(f"/api/r/{run}/meta", **ann).status == 200
    assert len(threads) > written > 2
    assert {one for one in threads if one.is_alive()} == {client.service.models.thread.thread}  # the others loaded


def test_nothing_is_computed_before_somebody_looks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = enter(client, KEY)
    with monkeypatch.context() as patch:
        patch.setattr(chat_page, "read_again", lambda *a: pytest.fail("computed"))
        reply = client.post("/v1/completions", {"model": "demo-lm", **WRITE}, **ann)
        number = f"{reply.headers['x-request-id']}-0"
        found = client.get(f"/inside?answer={number}", **ann)
        assert found.status == 303
    run = parse_qs(urlsplit(found.headers["location"]).fragment)["run"][0]
    assert client.get(f"/api/r/{run}/meta", **ann).json["model"] == "demo-lm"
    assert client.get(f"/inside?answer={number}", **enter(client, OTHER)).status == 404  # not theirs
    assert client.get("/inside?answer=nope", **ann).status == 404
    assert client.post("/v1/completions", {"model": "demo-lm", **WRITE, "keep": False}, **ann).status == 200
    assert list(client.service.kept)[-1] == number


@pytest.mark.nightly
@pytest.mark.parametrize("key", ["", KEY])
def test_a_reader_uses_the_page_in_a_real_browser(key: str) -> None:
    browsing.chromium()
    service, keys = make_service("demo", "demo-lm"), gate.Keys({"ann": gate.hash_key(key)} if key else {})
    pages = chat_page.make_routes(service, keys, cookie="qkv", lang="en")
    with listening(service, keys=keys, more=pages) as (port, _):
        found = browsing.browsed("chat.mjs", f"http://127.0.0.1:{port}/", *[key] * bool(key), timeout=300)
    assert "shoe" in found["first"]


def test_nothing_written_and_models_gone_are_said(client: Client) -> None:
    ann = enter(client, KEY)
    assert client.get("/api/r/r000000000000/meta", **ann).json["error"]["zh"]
    model = client.service.models.loaded["demo-lm"].model
    with pytest.raises(question.Refused):
        question.read_again(model, "demo-lm", "r", (5, 6), ([], []))
    with pytest.raises(question.Refused):
        question.read_again(model, "demo-lm", "r", (5,) * 1_000_000, ([5], [0.0]))
    assert client.post("/api/run", {"text": "x", "model": "gone"}, **ann).status in (403, 422)
