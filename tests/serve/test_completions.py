"""What is written: as `Model.generate` writes it, the same in pieces, in company, by name; and what is refused."""

import asyncio
import base64
import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import Client, asking, frees_all_pages, slow_steps

import qkv
from qkv.errors import QkvError
from qkv.model import Model
from qkv.serve import app, completions, worker
from qkv.serve.models import Holding, Models

TEXT = "One, two, buckle my"
COLD: dict[str, Any] = {"model": "demo-lm", "prompt": TEXT, "max_tokens": 12, "temperature": 0}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}One,{% endif %}"
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with asking("demo-lm", "demo", "demo-bert", "demo-moe") as found:
        yield found


@pytest.fixture(scope="module")
def lm() -> Model:
    return qkv.load("demo-lm")


@pytest.fixture
def chatting(client: Client) -> Iterator[Client]:
    """The same with a chat template."""
    assert client.post("/v1/completions", COLD).status == 200
    from qkv.chat.template import Template

    one = client.service.models.loaded["demo-lm"]
    one.template = Template({"default": TEMPLATE})
    yield client
    one.template = None


def texts(events: list[Any], n: int = 0) -> str:
    return "".join(c["text"] for e in events for c in e["choices"] if c["index"] == n)


def test_a_completion_is_what_the_model_writes(client: Client, lm: Model) -> None:
    wanted = lm.generate(TEXT, max_new_tokens=12)
    found = client.post("/v1/completions", {**COLD, "logprobs": 0}).json
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == (wanted.text, "length")
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted.logprobs, abs=1e-5)
    assert "".join(choice["logprobs"]["tokens"]) == wanted.text
    read = len(lm.ids(TEXT))
    assert found["usage"] == {"prompt_tokens": read, "completion_tokens": 12, "total_tokens": read + 12}
    assert (found["object"], found["model"]) == ("text_completion", "demo-lm")


@pytest.mark.parametrize("more", [{}, {"temperature": 1.3, "seed": 5, "n": 3}, {"stop": ["four", "shoe"]},
                                  {"echo": True, "logprobs": 0}, {"logprobs": 0}])
def test_pieces_join_to_the_whole(client: Client, more: dict[str, Any]) -> None:
    whole = client.post("/v1/completions", {**COLD, **more}).json
    streamed = client.post("/v1/completions", {**COLD, **more, "stream": True,
                                               "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = streamed.events
    assert len(events) >= 3, "some text, the end and the usage; pieces that wait are joined"
    assert events[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        assert texts(events, choice["index"]) == choice["text"]
        ends = [c["finish_reason"] for e in events for c in e["choices"] if c["index"] == choice["index"]]
        assert ends[-1] == choice["finish_reason"]
        assert set(ends[:-1]) == {None}
    if "n" in more:
        assert len({choice["text"] for choice in whole["choices"]}) > 1


def test_the_likeliest_tokens_come_with_each(chatting: Client, lm: Model) -> None:
    wanted = lm.generate(TEXT, max_new_tokens=5, top_logprobs=3).top_logprobs
    rows = chatting.post("/v1/completions", {**COLD, "max_tokens": 5, "logprobs": 3, "echo": True}).json["choices"][0]
    found = rows["logprobs"]["top_logprobs"]
    assert found[0] is None
    best = [pytest.approx([p for _, p in row], abs=1e-4) for row in wanted]  # another order of adding up
    assert [list(one.values()) for one in found[-5:]] == best
    assert all(len(one) == 3 for one in found[1:])
    body = {"model": "demo-lm", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
    (choice,) = chatting.post("/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 2}).json["choices"]
    for row in choice["logprobs"]["content"]:
        assert row["top_logprobs"][0]["token"] == row["token"]
        assert row["top_logprobs"][0]["logprob"] >= row["top_logprobs"][1]["logprob"]


def test_a_prompt_s_own_tokens_are_scored(client: Client, lm: Model) -> None:
    lines = [TEXT, "Twinkle, twinkle, little star, " * 2, "A"]
    found = client.post("/v1/completions", {**COLD, "prompt": lines, "echo": True, "logprobs": 0, "n": 2}).json
    for n, choice in enumerate(found["choices"]):
        line, ids = lines[n // 2], lm.ids(lines[n // 2])
        rows = choice["logprobs"]
        assert choice["text"].startswith(line)
        assert "".join(rows["tokens"]) == choice["text"]
        assert rows["token_logprobs"][0] is None
        own = rows["token_logprobs"][1 : len(ids)]
        assert sum(own) == pytest.approx(lm.score(line) if len(ids) > 1 else 0.0, abs=1e-3)
        places = zip(rows["text_offset"], rows["tokens"], strict=True)
        assert [choice["text"][at : at + len(token)] for at, token in places] == rows["tokens"]
    reply = client.post("/v1/completions", {**COLD, "model": "demo", "prompt": "我", "echo": True, "logprobs": 0})
    assert (reply.status, reply.error["param"]) == (400, "echo")


def test_several_prompts_are_answered_in_their_order(client: Client, lm: Model) -> None:
    prompts = [TEXT, "Twinkle, twinkle,"]
    wanted = [r.text for r in lm.generate(prompts, max_new_tokens=12)]
    for given in (prompts, [lm.ids(p) for p in prompts]):
        found = client.post("/v1/completions", {**COLD, "prompt": given}).json
        assert [c["text"] for c in found["choices"]] == wanted
    assert client.post("/v1/completions", {**COLD, "prompt": lm.ids(TEXT)}).json["choices"][0]["text"] == wanted[0]


@pytest.mark.parametrize("name", ["demo", "demo-moe"])
def test_other_kinds_of_models_write_too(client: Client, name: str) -> None:
    wanted = qkv.load(name).generate("我爱喝茶。", max_new_tokens=9).text
    found = client.post("/v1/completions", {**COLD, "model": name, "prompt": "我爱喝茶。", "max_tokens": 9}).json
    assert found["choices"][0]["text"] == wanted


def test_what_nobody_said_is_drawn_and_a_seed_repeats_it(client: Client) -> None:
    warm = {"model": "demo-lm", "prompt": "A", "max_tokens": 40}
    drawn = {client.post("/v1/completions", warm).json["choices"][0]["text"] for _ in range(4)}
    assert len(drawn) > 1
    same = {client.post("/v1/completions", {**warm, "seed": 3}).json["choices"][0]["text"] for _ in range(3)}
    assert len(same) == 1


def test_company_changes_no_bit_of_an_answer(client: Client) -> None:
    bodies = [{**COLD, "prompt": TEXT[: 3 + n], "temperature": n % 3, "seed": n, "logprobs": 0, "max_tokens": 30}
              for n in range(10)]
    alone = [client.post("/v1/completions", body).json["choices"] for body in bodies]

    async def together() -> list[Any]:
        asked = (client.ask("POST", "/v1/completions", json.dumps(body).encode()) for body in bodies)
        return [reply.json["choices"] for reply in await asyncio.gather(*asked)]

    assert client.run(together()) == alone


def test_a_conversation_is_what_its_template_writes(chatting: Client, lm: Model) -> None:
    messages = [{"role": "developer", "content": "Rhyme."},
                {"role": "user", "content": [{"type": "text", "text": "Go "}, {"type": "text", "text": "on."}]}]
    tool = {"type": "function", "function": {"name": "count", "parameters": {}}}
    body = {"model": "demo-lm", "messages": messages, "max_completion_tokens": 9, "temperature": 0, "tools": [tool]}
    written = "count system: Rhyme.\nuser: Go on.\nOne,"
    wanted = lm.generate(lm.tokenizer.encode(written, special=False), max_new_tokens=9)  # type: ignore[union-attr]
    found = chatting.post("/v1/chat/completions", {**body, "logprobs": True}).json
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": wanted.text}
    assert [t["logprob"] for t in choice["logprobs"]["content"]] == pytest.approx(wanted.logprobs, abs=1e-5)
    assert b"".join(bytes(t["bytes"]) for t in choice["logprobs"]["content"]).decode() == wanted.text
    events = chatting.post("/v1/chat/completions", {**body, "stream": True}).events
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == wanted.text
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    plain = chatting.post("/v1/chat/completions", {**body, "tool_choice": "none"}).json
    assert plain["usage"]["prompt_tokens"] < found["usage"]["prompt_tokens"]


def test_a_tool_call_is_taken_out_of_the_text() -> None:
    said = 'I look.\n<tool_call>\n{"name": "count", "arguments": {"to": 3}}\n</tool_call>'
    for cut in range(1, 9):
        reader, shown, calls = completions.CallReader(), "", []
        for at in range(0, len(said), cut):
            text, calls = reader.take_piece(said[at : at + cut], ended=at + cut >= len(said))
            shown += text
        assert shown == "I look.\n"
        assert calls[0]["function"] == {"name": "count", "arguments": '{"to": 3}'}
    assert completions.CallReader().take_piece("<tool_call>no", ended=True) == ("<tool_call>no", [])


def test_embeddings_are_the_model_s_in_both_codings(client: Client) -> None:
    lines = [f"书放在桌上{n}。" for n in range(11)]
    wanted = qkv.load("demo-bert").embed(lines)
    found = client.post("/v1/embeddings", {"model": "demo-bert", "input": lines}).json
    assert [row["index"] for row in found["data"]] == list(range(11))
    for row, vector in zip(found["data"], wanted.tolist(), strict=True):
        assert row["embedding"] == pytest.approx(vector, abs=1e-5)
    coded = client.post("/v1/embeddings", {"model": "demo-bert", "input": lines, "encoding_format": "base64"}).json
    raw = base64.b64decode(coded["data"][3]["embedding"])
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(wanted[3].tolist(), abs=1e-5)


def test_tokens_go_both_ways(chatting: Client, lm: Model) -> None:
    found = chatting.post("/tokenize", {"model": "demo-lm", "prompt": TEXT, "return_token_strs": True}).json
    assert found["tokens"] == lm.ids(TEXT)
    assert found["count"] == len(found["token_strs"])
    assert chatting.post("/detokenize", {"model": "demo-lm", "tokens": found["tokens"]}).json["prompt"] == TEXT
    said = chatting.post("/tokenize", {"model": "demo-lm", "messages": [{"role": "user", "content": "Hi"}]}).json
    assert lm.text(said["tokens"]) == "user: Hi\nOne,"


def test_models_are_listed_and_named(client: Client) -> None:
    listed = client.get("/v1/models").json["data"]
    assert [row["id"] for row in listed] == ["demo-lm", "demo", "demo-bert", "demo-moe"]
    assert client.get("/v1/models/demo").json["id"] == "demo"
    missing = client.get("/v1/models/demo-ml")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    assert "'demo-lm'" in missing.error["message"]
    for name in ("../secret", "/etc/passwd", "gpt2", "./demo", ""):
        assert client.post("/v1/completions", {**COLD, "model": name}).status == 404


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": 3}, "prompt"), ({"prompt": None}, "prompt"),
    ({"prompt": [1.5]}, "prompt"), ({"prompt": [True]}, "prompt"), ({"prompt": [[]]}, "prompt"),
    ({"prompt": [-1]}, "prompt"), ({"prompt": ["a"] * 65}, "prompt"), ({"n": 0}, "n"), ({"n": 10**9}, "n"),
    ({"n": "2"}, "n"), ({"n": True}, "n"), ({"best_of": 3}, "best_of"), ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 10**12}, "max_tokens"), ({"max_tokens": 1e300}, "max_tokens"),
    ({"temperature": -1}, "temperature"), ({"temperature": 1e308}, "temperature"), ({"temperature": "hot"},
    "temperature"), ({"top_p": 1.5}, "top_p"), ({"top_k": 1.5}, "top_k"), ({"min_p": -0.1}, "min_p"),
    ({"seed": 1 << 70}, "seed"), ({"seed": 0.5}, "seed"), ({"stop": [""] * 17}, "stop"), ({"stop": 5}, "stop"),
    ({"stop": "x" * 300}, "stop"), ({"logprobs": 10**6}, "logprobs"), ({"logprobs": True}, "logprobs"),
    ({"stream": "yes"}, "stream"), ({"stream_options": []}, "stream_options"), ({"echo": 1}, "echo"),
    ({"model": 5}, "model"), ({"model": "x" * 300}, "model"), ({"suffix": "x"}, "suffix"),
    ({"tempertaure": 0}, "tempertaure"), ({"presence_penalty": 3}, "presence_penalty"),
    ({"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias"), ({"response_format": {"type": "xml"}}, "type"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "param"), WRONG, ids=lambda v: str(v)[:30])
def test_a_wrong_field_is_named(client: Client, more: dict[str, Any], param: str) -> None:
    reply = client.post("/v1/completions", {**COLD, **more})
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error"
    assert len(reply.error["message"]) < 300


CHAT_WRONG: list[dict[str, Any]] = [
    {"messages": []}, {"messages": "Hi"}, {"messages": [5]}, {"messages": [{"content": "x"}]},
    {"messages": [{"role": 5, "content": "x"}]}, {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": {"a": 1}}]}, {"messages": [{"role": "user", "content": [5]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
    {"messages": [{"role": "user", "content": "x"}] * 2049}, {}, {"tools": [5]}, {"tools": {}},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
    {"messages": [{"role": "assistant", "tool_calls": 5}]}, {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
    {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"},
    {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": []}},
    {"messages": [{"role": "user", "content": "x"}], "functions": []},
]  # fmt: skip


@pytest.mark.parametrize("body", CHAT_WRONG, ids=lambda v: str(v)[:40])
def test_a_wrong_conversation_is_refused(chatting: Client, body: dict[str, Any]) -> None:
    reply = chatting.post("/v1/chat/completions", {"model": "demo-lm", **body})
    assert reply.status == 400, reply.body
    assert reply.error["message"]


def test_what_does_not_fit_is_said_with_both_numbers(client: Client, lm: Model) -> None:
    long = "One, two, " * 100
    reply = client.post("/v1/completions", {**COLD, "prompt": long})
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert str(len(lm.ids(long))) in reply.error["message"]
    assert client.post("/v1/completions", {**COLD, "max_tokens": 4096}).json["usage"]["total_tokens"] <= 192
    for path, body in (("/v1/completions", COLD), ("/v1/translate", {"text": "x"})):
        reply = client.post(path, {**body, "model": "demo-bert"})
        assert (reply.status, reply.error["code"]) == (400, "model_not_fit")
    reply = client.post("/v1/chat/completions", {"model": "demo-lm", "messages": [{"role": "user", "content": "Hi"}]})
    assert (reply.status, reply.error["code"]) == (400, "no_chat_template")


@pytest.mark.parametrize("name", ["demo-lm", "demo-moe", "demo"])
def test_the_longest_prompt_is_answered_and_one_longer_is_not(client: Client, name: str) -> None:
    model, room = qkv.load(name), 4096
    for _ in range(2):  # the second time it knows how much fits
        reply = client.post("/v1/completions", {**COLD, "model": name, "prompt": [9] * room})
        if reply.status == 400:
            assert reply.error["code"] == "context_length_exceeded"
            room = int(reply.error["message"].split("at most ")[1].split()[0])
    assert reply.status == 200, reply.body
    assert reply.json["choices"][0]["finish_reason"] in ("length", "stop")
    assert reply.json["usage"]["completion_tokens"] >= 1
    assert room <= (model.spec.stack.longest or model.spec.context or room)
    assert client.post("/v1/completions", {**COLD, "model": name, "prompt": [9] * (room + 1)}).status == 400


def test_a_template_that_loops_stops_and_harms_nobody(chatting: Client) -> None:
    from qkv.chat.template import Template

    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    chatting.service.models.loaded["demo-lm"].template = Template({"default": endless})
    body = json.dumps({"model": "demo-lm", "messages": [{"role": "user", "content": "Hi"}]}).encode()

    async def both() -> tuple[Any, Any]:
        slow = asyncio.ensure_future(chatting.ask("POST", "/v1/chat/completions", body))
        await asyncio.sleep(0)
        quick = await chatting.ask("GET", "/health")
        assert not slow.done()
        return await slow, quick

    slow, quick = chatting.run(both())
    assert (slow.status, quick.status) == (400, 200)


def test_options_that_are_not_there_are_refused_by_name(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.serve import writing

    monkeypatch.setattr(writing, "KNOWN", {"temperature", "seed", "max_new_tokens", "stop"})
    for key, value in (("presence_penalty", 1), ("logit_bias", {"5": 1}), ("min_tokens", 3), ("regex", "a+"),
                       ("repetition_penalty", 1.5), ("logprobs", 2), ("response_format", {"type": "json_object"})):
        reply = client.post("/v1/completions", {**COLD, key: value})
        assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter"), key
    off = {"presence_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}, "top_k": -1, "user": "me"}
    assert client.post("/v1/completions", {**COLD, **off}).status == 200


def test_options_of_generate_come_through(client: Client, lm: Model) -> None:
    ids = lm.ids(" three")
    how = {"logit_bias": {str(ids[0]): -100}, "presence_penalty": 1.5, "repetition_penalty": 1.3, "min_tokens": 4}
    wanted = lm.generate("One, two,", max_new_tokens=12, logit_bias={ids[0]: -100.0}, presence_penalty=1.5,
                         repetition_penalty=1.3, min_new_tokens=4)  # fmt: skip
    found = client.post("/v1/completions", {**COLD, "prompt": "One, two,", **how}).json["choices"][0]["text"]
    assert found == wanted.text
    assert found != lm.generate("One, two,", max_new_tokens=12).text
    for wrong in ({"x": 1}, {"5": "y"}, {"5": 101}, {"5": True, "-1": 3}, {str(10**6): 1}):
        assert client.post("/v1/completions", {**COLD, "logit_bias": wrong}).status == 400, wrong


def test_an_answer_follows_a_schema_or_is_refused(client: Client) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    asked = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    found = client.post("/v1/completions", {**COLD, "max_tokens": 30, "response_format": asked}).json["choices"][0]
    assert json.loads(found["text"])["a"] in ("x", "y")
    assert client.post("/v1/completions", {**COLD, "regex": "[0-9]{3}"}).json["choices"][0]["text"].isdigit()
    never = {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "minimum": 5, "maximum": 3}}}
    bare = {"type": "json_schema"}
    for wrong in ({"response_format": never}, {"response_format": bare}, {"regex": "(((("}, {"grammar": "zzz"}):
        reply = client.post("/v1/completions", {**COLD, **wrong})
        assert reply.status == 400, (wrong, reply.body)


def test_whoever_leaves_frees_their_pages(client: Client) -> None:
    engine = client.service.models.loaded["demo-lm"].engine
    assert engine is not None
    for stream in (False, True):
        body = json.dumps({**COLD, "max_tokens": 180, "stream": stream, "n": 4}).encode()

        async def leave(body: bytes = body, stream: bool = stream) -> None:
            left, sent = asyncio.Event(), list[Any]()
            asked = asyncio.ensure_future(client.ask("POST", "/v1/completions", body, left=left, sent=sent))
            while len(sent) < 6 if stream else len(engine.requests) < 4:
                await asyncio.sleep(0.001)
            left.set()
            await asked
            for _ in range(200):
                if not engine.busy:
                    return
                await asyncio.sleep(0.01)

        before = client.service.metrics.counts["request_success_total"]['finished_reason="cancelled"']
        client.run(leave())
        assert not engine.busy
        assert engine.pages.free == engine.pages.count - 1
        assert client.service.metrics.counts["request_success_total"]['finished_reason="cancelled"'] == before + 4
    assert client.service.running["demo-lm"] == 0


def test_whoever_reads_nothing_is_given_up() -> None:
    with asking("demo-lm", seconds=0.2, patience=0.2) as client:
        client.post("/v1/completions", {**COLD, "max_tokens": 1})
        body = json.dumps({**COLD, "max_tokens": 150, "stream": True}).encode()

        async def send_slowly() -> None:
            given = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                return given.pop() if given else await asyncio.Event().wait()

            async def send(message: Any) -> None:
                if message["type"] == "http.response.body":
                    await asyncio.Event().wait()

            scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "POST", "path": "/v1/completions",
                     "query_string": b"", "headers": [(b"host", b"testserver")], "root_path": ""}
            await client.app(scope, receive, send)

        client.run(asyncio.wait_for(send_slowly(), 10))
        assert client.service.running["demo-lm"] == 0
        engine = client.service.models.loaded["demo-lm"].engine
        assert engine is not None
        assert frees_all_pages(engine)


def test_an_engine_that_breaks_ends_its_requests_and_goes_on(client: Client, monkeypatch, capsys) -> None:
    engine = client.service.models.loaded["demo-lm"].engine
    assert engine is not None
    with monkeypatch.context() as patch:
        patch.setattr(engine.passes, "forward", lambda *a, **k: 1 / 0)
        reply = client.post("/v1/completions", {**COLD, "prompt": "Quite another text"})
        assert (reply.status, reply.error["type"]) == (500, "server_error")
        assert "division" not in reply.error["message"]
        late = client.post("/v1/completions", {**COLD, "prompt": "Still another text", "stream": True})
        assert late.status == 200
        assert b'"error"' in late.pieces[-2]
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert client.post("/v1/completions", COLD).status == 200


def test_a_worker_s_errors_reach_who_asked() -> None:
    async def use() -> None:
        one = worker.Worker(None, asyncio.get_running_loop())
        with pytest.raises(ZeroDivisionError):
            await one.call(lambda: 1 / 0)
        assert await one.call(lambda x: x + 1, 2) == 3
        await asyncio.to_thread(one.close)
        assert not one.alive
        with pytest.raises(QkvError):
            one.call(print)

    asyncio.run(use())


def test_models_make_room_for_one_another(lm: Model) -> None:
    with asking("demo-lm", "demo-bert", holding=Holding(memory=8_000_000, tokens=64, rows=2)) as client:
        assert client.post("/v1/completions", COLD).status == 200
        assert list(client.service.models.loaded) == ["demo-lm"]
        assert client.post("/v1/embeddings", {"model": "demo-bert", "input": "x"}).status == 200
        assert list(client.service.models.loaded) == ["demo-bert"]
        client.service.models.loaded["demo-bert"].users += 1
        reply = client.post("/v1/completions", COLD)
        assert (reply.status, reply.error["code"]) == (503, "no_memory")
        assert reply.headers["retry-after"]
        client.service.models.loaded["demo-bert"].users -= 1
        assert client.post("/v1/completions", COLD).status == 200


def test_a_model_that_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    with asking("demo-lm") as client:
        client.service.models.sources["broken"] = str(tmp_path / "secret-place")
        reply = client.post("/v1/completions", {**COLD, "model": "broken"})
        assert (reply.status, reply.error["code"]) == (503, "model_not_loaded")
        assert "secret-place" not in reply.error["message"]
        assert "secret-place" in client.log.getvalue()
        assert client.post("/v1/completions", COLD).status == 200


def test_more_than_may_wait_is_refused_at_once() -> None:
    with asking("demo-lm", holding=Holding(rows=2), queue=1) as client:
        body = json.dumps({**COLD, "max_tokens": 60}).encode()

        async def crowd() -> list[Any]:
            return await asyncio.gather(*(client.ask("POST", "/v1/completions", body) for _ in range(8)))

        replies = client.run(crowd())
        assert sorted(r.status for r in replies) == [200] * 3 + [429] * 5
        refused = next(r for r in replies if r.status == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.error["type"] == "rate_limit_error"
        assert len({r.json["choices"][0]["text"] for r in replies if r.status == 200}) == 1


def test_an_answer_may_not_take_longer_than_it_may() -> None:
    with asking("demo-lm", seconds=0.05) as client:
        client.post("/v1/completions", {**COLD, "max_tokens": 1})
        reply = client.post("/v1/completions", {**COLD, "max_tokens": 180, "n": 8})
        assert (reply.status, reply.error["code"]) == (408, "timeout")
        engine = client.service.models.loaded["demo-lm"].engine
        assert engine is not None
        assert frees_all_pages(engine)


class Slow:
    """An engine whose step takes until it may end."""

    busy = True

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def step(self) -> None:
        self.began.set()
        self.may_end.wait(10)

    def fail_all(self, error: QkvError | None) -> None: ...


def test_what_was_asked_while_a_model_is_unloaded_is_answered() -> None:
    async def ask() -> int:
        engine: Any = Slow()
        one = worker.Worker(engine, asyncio.get_running_loop())
        await asyncio.to_thread(engine.began.wait, 10)
        answer = one.call(lambda: 7)
        closing = asyncio.create_task(asyncio.to_thread(one.close))
        while one.open:
            await asyncio.sleep(0.001)
        engine.may_end.set()
        await closing
        return await asyncio.wait_for(answer, 5)

    assert asyncio.run(ask()) == 7


def test_a_stream_that_waits_says_that_it_is_there(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch, 0.02)
    monkeypatch.setattr(app, "KEEP_ALIVE", 0.001)
    reply = client.post("/v1/completions", {**COLD, "prompt": "A text that nobody read before", "stream": True})
    assert b": still here" in reply.body
    assert texts(reply.events)


def test_a_model_is_loaded_in_a_thread_that_ends() -> None:
    """A thread that has computed and lives on makes libgomp slow the engine's."""
    loaders: list[threading.Thread] = []

    def load(source: str) -> Model:
        loaders.append(threading.current_thread())
        return qkv.load(source)

    async def use() -> None:
        models = Models({"demo-lm": "demo-lm"}, load, Holding(rows=2))
        async with models.use("demo-lm") as one:
            loaders[0].join(10)
            assert not loaders[0].is_alive()
            assert one.engine is not None
            assert "passes" in vars(one.engine)  # tried before anybody asks
        await models.unload_all()

    asyncio.run(use())
    assert loaders[0] is not threading.main_thread()
