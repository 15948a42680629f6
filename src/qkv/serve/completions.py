"""`/v1/chat/completions` and `/v1/completions`: what is written, as OpenAI's clients read it, whole or in pieces.

One generator makes the pieces; whoever wants them whole gets them joined, so both are the same.
"""

import json
import math
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from qkv.chat.template import check_messages
from qkv.generation.sequence import StopFilter
from qkv.serve import bodies
from qkv.serve.echo import check_echo, score_prompt
from qkv.serve.fields import RequestError, check_field, read_fields, require
from qkv.serve.models import Loaded
from qkv.serve.service import Bounds, Caller, Service
from qkv.serve.writing import FINISH, Asked, read_asked, write_choices
from qkv.tokenizers.tokenizer import Tokenizer

QUICK = 1000  # characters or ids
SLOW = {"response_format", "json_schema", "regex", "grammar"}
CALL = "<tool_call>"
CALLS = re.compile(rf"{CALL}\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


@dataclass
class Answer:
    """One answer as it grows: its text, its log-probabilities, the tools that it calls, and why it ended."""

    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish: str | None = None
    tokens: int = 0


@dataclass(frozen=True)
class Piece:
    """What is new of answer `n`."""

    n: int
    text: str
    logprobs: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    finish: str | None
    tokens: int


@dataclass(frozen=True)
class Form:
    """How an endpoint writes a body: the names of its objects, and what a choice holds of a Piece or an Answer."""

    prefix: str
    whole: str
    part: str
    chat: bool

    def choice(self, n: int, new: Piece | Answer, *, whole: bool, first: bool = False) -> dict[str, Any]:
        """A choice."""
        found: dict[str, Any] = {"index": n, "finish_reason": new.finish, "logprobs": None}
        if not self.chat:
            return found | {"text": new.text, "logprobs": join_logprobs(new.logprobs) if new.logprobs else None}
        if new.logprobs:
            found["logprobs"] = {"content": new.logprobs, "refusal": None}
        said: dict[str, Any] = {"role": "assistant"} if whole or first else {}
        if whole or new.text or first:
            said["content"] = new.text if new.text or not new.calls else None
        if new.calls:
            said["tool_calls"] = new.calls if whole else [{"index": i, **one} for i, one in enumerate(new.calls)]
        return found | {"message" if whole else "delta": said}


CHAT_FORM = Form("chatcmpl-", "chat.completion", "chat.completion.chunk", chat=True)
TEXT_FORM = Form("cmpl-", "text_completion", "text_completion", chat=False)


def read_chat(one: Loaded, found: Mapping[str, Any], bounds: Bounds) -> Asked:
    """What a conversation asks for.

    Raises:
        RequestError: the model has no chat template, or a message is not one.
        QkvError: what the template says.
    """
    if one.template is None or one.model.tokenizer is None:
        raise RequestError("the model {name} has no chat template, so it holds no conversations; use /v1/completions",
                           code="no_chat_template", param="model", name=one.name)
    tools = found.get("tools") if found.get("tool_choice", "auto") != "none" else None
    if found.get("tool_choice", "auto") not in ("auto", "none"):
        raise RequestError("tool_choice: expected auto or none; which tool is called is the model's to decide",
                           code="unsupported_parameter", param="tool_choice")
    rows = [read_message(n, row) for n, row in enumerate(require(found, "messages"))]
    extra = {**found.get("chat_template_kwargs", {}), **({"tools": tools} if tools else {})}
    for key in ("messages", "template", "add_generation_prompt"):
        if key in extra:
            raise RequestError("chat_template_kwargs: {key} is not yours to say", param="chat_template_kwargs", key=key)
    ids = one.template.ids(one.model.tokenizer, check_messages(rows), **extra)
    most = found.get("max_completion_tokens", found.get("max_tokens"))
    return read_asked(one, {**found, "max_tokens": most}, [ids], bounds)


def read_message(n: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates take it: its parts joined, the arguments of its tool calls as data."""
    where, role, content = f"messages[{n}]", row.get("role"), row.get("content")
    if not isinstance(role, str) or not 0 < len(role) <= 32:
        raise RequestError("{where}.role: expected a text such as user", param=f"{where}.role", where=where)
    if isinstance(content, list):
        kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
        if not all(kind == "text" and isinstance(part.get("text"), str)
                   for kind, part in zip(kinds, content, strict=True)):
            raise RequestError('{where}.content: expected texts, {{"type": "text", "text": …}}; this server reads '
                               "nothing else", param=f"{where}.content", where=where)
        content = "".join(part["text"] for part in content)
    if content is not None and not isinstance(content, str):
        raise RequestError("{where}.content: expected a text or a list of parts", param=f"{where}.content", where=where)
    found = {**row, "role": "system" if role == "developer" else role, "content": content}
    if row.get("tool_calls") is not None:
        where = f"{where}.tool_calls"
        calls = check_field(where, row["tool_calls"], bodies.CALLS["tool_calls"])
        found["tool_calls"] = [read_call(one, where) for one in calls]
    return found


def read_call(one: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A tool call that an assistant made before."""
    function = one.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("{where}: expected function.name and function.arguments", param=where, where=where)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise RequestError("{where}: the arguments are no JSON", param=where, where=where) from None
    return {**one, "function": {**function, "arguments": arguments}}


def read_prompts(one: Loaded, found: Mapping[str, Any], bounds: Bounds) -> Asked:
    """What prompts ask for."""
    ids = [one.model.ids(prompt) for prompt in require(found, "prompt")]
    if any(not row for row in ids):
        raise RequestError("prompt: it is empty, expected at least one token", param="prompt")
    logprobs = found.get("logprobs")
    asked = {**found, "logprobs": logprobs is not None, "top_logprobs": logprobs or 0}
    return read_asked(one, asked, ids, bounds)


def is_quick(found: Mapping[str, Any]) -> bool:
    """Whether a request is read sooner than another thread would take it up: short prompts, no template, no grammar."""
    prompts = found.get("prompt")
    return prompts is not None and sum(map(len, prompts)) < QUICK and not SLOW.intersection(found)


async def write_pieces(
    service: Service, caller: Caller, one: Loaded, asked: Asked, found: Mapping[str, Any]
) -> AsyncGenerator[Piece]:
    """What is new of each answer, step by step."""
    tools = found.get("tools") and one.template is not None and any(CALL in s for s in one.template.sources.values())
    answers = [CallReader() if tools else Answer() for _ in range(asked.choices)]
    echo = found.get("echo", False)
    before = [one.model.text(ids) if echo else "" for ids in asked.prompts for _ in range(asked.n)]
    if echo and asked.logprobs:
        check_echo(one)
    async with aclosing(write_choices(service, caller, one, asked, keep=found.get("keep", False))) as steps:
        async for n, events in steps:
            text = before[n] + "".join(event.text for event in events)
            before[n] = ""
            rows: list[Any] = [(e.token, e.logprob, e.top) for e in events] if asked.logprobs else []
            if echo and asked.logprobs and not events:  # the first piece of an answer is its prompt
                rows = await one.worker.call(score_prompt, one.model, asked.prompts[n // asked.n], found["logprobs"])
            logprobs = [describe_token(one.model.tokenizer, *row) for row in rows]
            reason = events[-1].finish_reason if events else None
            finish = FINISH.get(reason, "stop") if reason else None
            calls: list[dict[str, Any]] = []
            if isinstance(reader := answers[n], CallReader):
                text, calls = reader.take_piece(text, ended=finish is not None)
                finish = "tool_calls" if calls and finish == "stop" else finish
            yield Piece(n, text, logprobs, calls, finish, len(events))


class CallReader:
    """Text in which tools may be called, as `<tool_call>{…}</tool_call>`: the calls are taken out of it."""

    def __init__(self) -> None:
        self.filter, self.whole, self.said = StopFilter((CALL,)), "", 0

    def take_piece(self, piece: str, *, ended: bool) -> tuple[str, list[dict[str, Any]]]:
        """The text that may be shown now, and at the end the calls."""
        self.whole += piece
        shown = self.filter.push(piece)
        self.said += len(shown)
        if not ended:
            return shown, []
        calls = [call for n, found in enumerate(CALLS.findall(self.whole)) if (call := parse_call(found, n))]
        if calls:
            return shown, calls
        return shown + self.whole[self.said :], []  # what looked like a call was none


def parse_call(body: str, n: int) -> dict[str, Any] | None:
    """A tool call as OpenAI says it; None where it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = json.dumps(found.get("arguments", {}), ensure_ascii=False)
    return {"id": f"call_{n}", "type": "function", "function": {"name": found["name"], "arguments": arguments}}


def describe_token(
    tokenizer: Tokenizer | None, token: int, logprob: float | None, top: Sequence[tuple[int, float]]
) -> dict[str, Any]:
    """A token with its log-probability, and the likeliest beside it where these were asked for."""
    return {**name_token(tokenizer, token, logprob), "top_logprobs": [name_token(tokenizer, *one) for one in top]}


def name_token(tokenizer: Tokenizer | None, token: int, logprob: float | None) -> dict[str, Any]:
    """A token as text and bytes; OpenAI's clients want a finite number."""
    raw = b""
    if tokenizer is not None and 0 <= token < tokenizer.size:
        said = tokenizer.token(token)
        plain = token in tokenizer.special_ids
        raw = said.encode() if plain or tokenizer.spelling is None else tokenizer.spelling.spell(said)
    return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw),
            "logprob": logprob if logprob is None or math.isfinite(logprob) else -9999.0}


def join_logprobs(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same as `/v1/completions` says it."""
    tokens = [row["token"] for row in rows]
    ends = [0, *accumulate(map(len, tokens))][:-1]
    top = [{one["token"]: one["logprob"] for one in row["top_logprobs"]} or None for row in rows]
    return {"tokens": tokens, "token_logprobs": [row["logprob"] for row in rows], "text_offset": ends,
            "top_logprobs": top if any(top) else None}


def count_usage(asked: Asked, answers: Sequence[Answer]) -> dict[str, int]:
    """How many tokens were read and written."""
    read, wrote = sum(map(len, asked.prompts)), sum(one.tokens for one in answers)
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


async def complete(
    service: Service, caller: Caller, body: Mapping[str, Any], form: Form
) -> AsyncGenerator[dict[str, Any]]:
    """The bodies of an answer: one whole one, or with `stream` one for each piece.

    Raises:
        RequestError: before anything is written, what is wrong with the request.
    """
    found = read_fields(body, bodies.CHAT if form.chat else bodies.TEXT)
    stream, more = found.get("stream", False), read_fields(found.get("stream_options", {}), bodies.STREAM_OPTIONS)
    async with service.admit(caller, found.get("model")) as one:
        read = read_chat if form.chat else read_prompts
        asked = (read(one, found, service.bounds) if is_quick(found)
                 else await service.think(read, one, found, service.bounds))
        frame = {"id": form.prefix + caller.id, "object": form.part if stream else form.whole,
                 "created": int(time.time()), "model": one.name}
        answers = [Answer() for _ in range(asked.choices)]
        async with aclosing(write_pieces(service, caller, one, asked, found)) as pieces:
            async for piece in pieces:
                answer, first = answers[piece.n], piece.tokens == 0
                answer.tokens += piece.tokens
                if not stream:
                    answer.text += piece.text
                    answer.logprobs += piece.logprobs
                    answer.calls += piece.calls
                    answer.finish = piece.finish
                elif first or piece.text or piece.logprobs or piece.calls or piece.finish:
                    usage = {"usage": None} if more.get("include_usage") else {}
                    yield {**frame, "choices": [form.choice(piece.n, piece, whole=False, first=first)], **usage}
        if not stream:
            choices = [form.choice(n, answer, whole=True) for n, answer in enumerate(answers)]
            yield {**frame, "choices": choices, "usage": count_usage(asked, answers)}
        elif more.get("include_usage"):
            yield {**frame, "choices": [], "usage": count_usage(asked, answers)}
