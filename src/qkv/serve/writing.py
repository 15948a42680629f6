"""A request for text, from its fields to what each step wrote: options, prompts, limits, time, cancellation."""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from qkv.errors import QkvError
from qkv.generation.sequence import DecodeOptions, Event, Timing
from qkv.messages import Message
from qkv.serve import bodies
from qkv.serve.fields import RequestError, read_fields, require
from qkv.serve.metrics import Metrics, label
from qkv.serve.models import Loaded, refuse_use
from qkv.serve.service import Bounds, Caller, Service, Written
from qkv.serve.worker import Request, Writing, read_events
from qkv.tasks.generate import decode_options, parse_options
from qkv.tasks.generate_options import GenerateOptions
from qkv.tasks.special_tokens import blank_ids, with_blank
from qkv.tasks.types import start_ids

MANY = 64  # texts that one request may have written at a time: prompts times n
FINISH = {"stop": "stop", "stop_string": "stop", "length": "length"}  # ours, and OpenAI's
KNOWN = {f.name for f in fields(GenerateOptions)}
# Of a request: the option of `generate` that it is, and the values that change nothing.
OPTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "temperature": ("temperature", ()), "top_p": ("top_p", ()), "top_k": ("top_k", (0, -1)), "min_p": ("min_p", (0,)),
    "seed": ("seed", ()), "stop": ("stop", ([],)), "repetition_penalty": ("repetition_penalty", (1,)),
    "presence_penalty": ("presence_penalty", (0,)), "frequency_penalty": ("frequency_penalty", (0,)),
    "logit_bias": ("logit_bias", ({},)), "min_tokens": ("min_new_tokens", (0,)),
    "top_logprobs": ("top_logprobs", (0,)), "json_schema": ("json_schema", ()), "regex": ("regex", ()),
    "grammar": ("grammar", ()),
}


@dataclass(frozen=True)
class Asked:
    """What is to be written: the ids of each prompt, how often and how, and what is told of it."""

    prompts: list[list[int]]
    n: int
    options: GenerateOptions
    decode: DecodeOptions
    logprobs: bool
    whole: bool

    @property
    def choices(self) -> int:
        """How many answers there are to be."""
        return len(self.prompts) * self.n

    def list_choices(self) -> list[Request]:
        """The answers in the order of their numbers: each prompt n times, with seeds that follow one another."""
        draws = [self.options, *(replace(self.options, seed=self.options.seed + i) for i in range(1, self.n))]
        return [Request(ids, self.decode, draw, whole=self.whole) for ids in self.prompts for draw in draws]


def read_asked(one: Loaded, found: Mapping[str, Any], prompts: list[list[int]], bounds: Bounds) -> Asked:
    """What a request with these fields asks for.

    Raises:
        RequestError: the model writes nothing, a prompt does not fit, or an option is not there.
    """
    model, n = one.model, found.get("n", 1)
    if one.engine is None:
        raise refuse_use(one, Message("it writes no text"))
    if len(prompts) * n > MANY:
        raise RequestError("n: {texts} prompts with n={n} are more than {most} answers in one request", param="n",
                           texts=len(prompts), n=n, most=MANY)
    if model.spec.fills_blanks:
        prompts = [with_blank(ids, blank_ids(model)) for ids in prompts]
    limits = [limit_tokens(one, ids, found.get("max_tokens"), bounds) for ids in prompts]
    given = read_options(found, model.generation_config) | {"max_new_tokens": min(limits)}
    options = parse_options(model, given)
    return Asked(prompts, n, options, decode_options(model, options), bool(found.get("logprobs", False)),
                 not found.get("stream", False))


def read_options(found: Mapping[str, Any], generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `generate` that the fields of a request say.

    What draws where nothing is said is the model's own generation_config.json, else temperature 1, as OpenAI has it;
    each draw has a fresh seed where none is given.
    """
    schema = read_format(found.get("response_format") or {})
    given: dict[str, Any] = {} if schema is None else {"json_schema": schema}
    for key, (name, off) in OPTIONS.items():
        value = given.get(key) if key == "json_schema" else found.get(key)
        if value is None or value in off:
            continue
        if name not in KNOWN:
            raise RequestError("{key} is not supported here", code="unsupported_parameter", key=key,
                               param="response_format" if key == "json_schema" else key)
        given[name] = read_bias(value) if key == "logit_bias" else value
    if generation_config.get("do_sample"):
        given["sampling"] = "model"
    else:
        given.setdefault("temperature", 1.0)
    return {"seed": secrets.randbelow(1 << 31), **given}


def read_bias(found: Mapping[str, Any]) -> dict[int, float]:
    """A number for each of some token ids, which JSON writes as texts."""
    try:
        bias = {int(token): float(value) for token, value in found.items()}
    except (TypeError, ValueError):
        bias = {0: math.inf}
    if not all(abs(value) <= 100 for value in bias.values()):
        raise RequestError("logit_bias: expected a number from -100 to 100 for each token id", param="logit_bias")
    return bias


def read_format(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON schema of a response_format; None where any text will do."""
    if not found:
        return None
    said = read_fields(found, bodies.FORMAT)
    if require(said, "type") == "json_schema":
        return read_fields(require(said, "json_schema"), bodies.SCHEMA).get("schema", {})
    return {"type": "object"} if said["type"] == "json_object" else None


def limit_tokens(one: Loaded, ids: Sequence[int], asked: int | None, bounds: Bounds) -> int:
    """How many tokens may follow a prompt.

    Raises:
        RequestError: the prompt leaves no room, with both numbers; or more are asked for than the server allows.
    """
    if asked is not None and asked > bounds.tokens:
        raise RequestError("max_tokens: found {asked}, and this server writes at most {most} tokens",
                           param="max_tokens", asked=asked, most=bounds.tokens)
    both, start = one.model.encoder_decoder, len(start_ids(one.model))
    room = one.room - start - 1 if not both else one.model.spec.stack.longest or one.room
    most = min(b for b in (bounds.prompt, room) if b is not None)
    if len(ids) > most:
        raise RequestError("the prompt has {tokens} tokens, and at most {most} fit", code="context_length_exceeded",
                           param="messages", tokens=len(ids), most=most)
    usual = 2 * len(ids) + 50 if both else bounds.tokens
    return max(1, min(asked or usual, one.room - start - (0 if both else len(ids)), bounds.tokens))


class Clock:
    """The times of one request: when it came, its first token, its last."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics, self.came, self.first, self.last = metrics, time.perf_counter(), 0.0, 0.0
        self.tokens = 0

    def count_tokens(self, count: int, timing: Timing | None = None) -> None:
        """So many tokens have come; of all those of an answer the engine's `timing` says when each did."""
        now = time.perf_counter()
        if timing is not None:
            self.first = self.first or self.came + timing.prefill
            self.metrics.observe("time_to_first_token_seconds", timing.prefill)
            gap = timing.decode / max(1, timing.decoded)
            self.metrics.observe("inter_token_latency_seconds", gap, timing.decoded)
        elif not self.first:
            self.first = now
            self.metrics.observe("time_to_first_token_seconds", now - self.came)
        else:
            self.metrics.observe("inter_token_latency_seconds", (now - self.last) / count, count)
        self.last, self.tokens = now, self.tokens + count

    def stop(self, read: int, reasons: Sequence[str]) -> None:
        """The answer has ended."""
        self.metrics.observe("e2e_request_latency_seconds", time.perf_counter() - self.came)
        self.metrics.increase("prompt_tokens_total", count=read)
        self.metrics.increase("generation_tokens_total", count=self.tokens)
        for reason in reasons:
            self.metrics.increase("request_success_total", label(finished_reason=reason))


async def write_choices(
    service: Service, caller: Caller, one: Loaded, asked: Asked, *, keep: bool = False
) -> AsyncGenerator[tuple[int, list[Event]]]:
    """The events of each answer, by its number, as they come; whoever closes this early ends the answers.

    Each comes without events first, when the engine has taken it.

    Raises:
        RequestError: it took longer than it may, or the server shuts down.
        QkvError: what the engine says of a request.
    """
    clock, writings = Clock(service.metrics), list[Writing]()
    choices = asked.list_choices()
    try:
        with bound_time(service, writings) as ended:
            await one.worker.submit(choices, writings)
            for n in range(len(writings)):
                yield n, []
            async with aclosing(read_events(writings)) as events:
                async for n, new in events:
                    clock.count_tokens(len(new), writings[n].handle.sequence.timing if asked.whole else None)
                    yield n, new
        if ended:
            raise ended[0]
    finally:
        for writing in writings:
            writing.cancel()
        rows = [writing.handle.sequence for writing in writings]
        clock.stop(sum(map(len, asked.prompts)), [row.finish_reason or "cancelled" for row in rows])
        caller.notes.update(model=one.name, read=sum(map(len, asked.prompts)), wrote=clock.tokens,
                            first=round(max(0.0, clock.first - clock.came), 4))
        if keep:
            for n, row in enumerate(rows):
                service.keep(f"{caller.id}-{n}", Written(caller.key, one.name, row.prompt, tuple(row.tokens),
                                                         tuple(row.logprobs)))


@contextmanager
def bound_time(service: Service, writings: Sequence[Writing]) -> Iterator[list[QkvError]]:
    """End requests that take longer than they may, or that the server has no more time for; why, in a list."""
    ended: list[QkvError] = []

    def expire(error: QkvError) -> None:
        if not all(writing.done for writing in writings):
            ended.append(error)
            for writing in writings:
                writing.cancel()

    late = RequestError("the answer took longer than {seconds} s, which this server allows", status=408,
                        code="timeout", seconds=service.bounds.seconds)
    leaving = RequestError("the server is shutting down", status=503, code="shutting_down")
    timer = asyncio.get_running_loop().call_later(service.bounds.seconds, expire, late)
    service.cancels.add(stop := lambda: expire(leaving))
    try:
        yield ended
    finally:
        timer.cancel()
        service.cancels.discard(stop)
