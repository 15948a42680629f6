"""qkv serve under the Azure conversation trace: times at 80 % of its capacity, overload, overhead, idle streams.

Each part has a server in a process of its own; requests are of random token ids, shrunk with the trace's lengths until
they fit. A sample of answers is asked again alone and must be the same, bit for bit. --quick takes about a minute.
"""

import asyncio
import csv
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

from harness import middle, options, write

SPINS = {"GOMP_SPINCOUNT": "5000"}  # as `qkv` sets it; the engine's own call is to have the same
TRACE = Path("traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv")
OWN = """
import sys, time, qkv
from qkv.generation.engine import Engine, Settings
from qkv.generation.sequence import DecodeOptions
model = qkv.load(sys.argv[1], dtype=sys.argv[2])
engine = Engine(model.core, Settings(batch_invariant=True))
for line in sys.stdin:
    ids, tokens = eval(line)
    began = time.perf_counter()
    engine.submit(ids, DecodeOptions(tokens, eos=model.special.eos)).result()
    print(time.perf_counter() - began, flush=True)
"""


@dataclass
class Reply:
    """What a client saw: status, seconds to the first token and between two, and the tokens' logprobs."""

    status: int = 0
    head: float = 0.0
    first: float = 0.0
    gaps: list[float] = field(default_factory=list)
    total: float = 0.0
    tokens: int = 0
    written: list[Any] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True)
class Ask:
    """A request of the trace: when it comes, and its lengths."""

    at: float
    prompt: int
    tokens: int
    seed: int

    def body(self, vocabulary: int, *, stream: bool = True) -> dict[str, Any]:
        """Its body: ids that only its seed decides."""
        draw = random.Random(self.seed)
        ids = [draw.randrange(10, vocabulary) for _ in range(self.prompt)]
        return {"prompt": ids, "max_tokens": self.tokens, "temperature": 0, "stream": stream, "logprobs": 0}


def read_trace(context: int, shrink: float) -> list[Ask]:
    """The conversation requests, their lengths divided by `shrink` and cut to what the context holds."""
    place = Path(os.environ.get("QKV_DATA", "data")) / TRACE
    with place.open(encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    found: list[Ask] = []
    for n, (row, at) in enumerate(zip(rows, times, strict=True)):
        prompt, tokens = (max(2, round(int(row[key]) / shrink)) for key in ("ContextTokens", "GeneratedTokens"))
        tokens = min(tokens, context // 2)
        found.append(Ask(at - times[0], min(prompt, context - tokens), tokens, n))
    return found


@contextmanager
def serving(given: Any, **how: int) -> Any:
    """A server in a process of its own: its port and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    more = [word for key, value in how.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "qkv", "serve", f"m={given.model}", "--port", str(port), "-q", "--dtype",
               given.dtype, *more]  # fmt: skip
    env = {**os.environ, **SPINS, "OMP_NUM_THREADS": str(given.threads)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http"), "the server did not begin"
        yield port, process
    finally:
        process.terminate()
        process.wait(60)


def resident(process: Any) -> float:
    """Megabytes of memory of a process."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def ask(port: int, body: dict[str, Any]) -> Reply:
    """One request on a connection of its own, read as it comes; without logprobs a chunk with text is one token."""
    data, reply, began = json.dumps(body).encode(), Reply(), time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    head += "content-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode()
        reply.status, reply.head = int(lines.split()[1]), time.perf_counter() - began
        last, chunked = 0.0, "transfer-encoding: chunked" in lines.lower()
        rest = b"" if chunked else await reader.read()
        while chunked and (line := await reader.readline()):
            if not line.startswith(b"data: "):
                continue
            now = time.perf_counter()
            if line.startswith(b"data: [DONE]"):
                reply.ended = True
                break
            choice = (json.loads(line[6:]).get("choices") or [{}])[0]
            reply.ended |= bool(choice.get("finish_reason"))
            said = choice.get("logprobs")
            count = len(said["tokens"]) if said else int(bool(choice.get("text"))) if "logprobs" not in body else 0
            if not count:
                continue
            reply.written += [*zip(said["tokens"], said["token_logprobs"], strict=True)] if said else [choice["text"]]
            if reply.tokens:
                reply.gaps += [(now - last) / count] * count
            else:
                reply.first = now - began
            reply.tokens, last = reply.tokens + count, now
        if rest and reply.status == 200:
            said = json.loads(rest)["choices"][0]["logprobs"]
            reply.written, reply.ended = [*zip(said["tokens"], said["token_logprobs"], strict=True)], True
            reply.tokens = len(reply.written)
    finally:
        reply.total = time.perf_counter() - began
        writer.close()
    return reply


def percentile(values: list[float], share: float) -> float:
    """The value below which a share of them lies, in seconds with four digits."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) if ordered else float("nan")


def describe(replies: list[Reply], seconds: float) -> dict[str, Any]:
    """What a reader asks of a replay."""
    fine = [r for r in replies if r.status == 200]
    gaps = [gap for r in fine for gap in r.gaps]
    first, kinds = [r.first for r in fine], sorted({r.status for r in replies})
    return {
        "requests": len(replies), "statuses": {str(s): sum(r.status == s for r in replies) for s in kinds},
        "lost": sum(not r.ended for r in fine), "tokens_per_second": round(sum(r.tokens for r in fine) / seconds, 1),
        "first_token": {"p50": percentile(first, 0.5), "p95": percentile(first, 0.95)},
        "inter_token": {"p50": percentile(gaps, 0.5), "p95": percentile(gaps, 0.95)},
    }  # fmt: skip


def draw_other_texts(asked: list[Ask]) -> list[Ask]:
    """Requests of the same lengths in another order, with other ids: what was read before would be found again."""
    return [replace(one, seed=-one.seed) for one in random.Random(1).sample(asked, len(asked))]


async def measure_capacity(given: Any, port: int, trace: list[Ask], seconds: float) -> float:
    """Requests a second when as many run as there are rows."""
    done, until, turn = 0, time.perf_counter() + seconds, cycle(trace)
    began = time.perf_counter()

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await ask(port, next(turn).body(given.vocabulary))
            done += 1

    await asyncio.gather(*(work() for _ in range(given.rows)))
    return done / (time.perf_counter() - began)


async def replay(given: Any, port: int, trace: list[Ask], rate: float, seconds: float) -> tuple[list[Reply], list[Ask]]:
    """The trace's requests at its own rhythm, scaled to `rate` requests a second."""
    count = max(4, round(rate * seconds))
    chosen = trace[-count:]
    stretch = seconds / max(1e-9, chosen[-1].at - chosen[0].at)
    began = time.perf_counter()

    async def later(one: Ask) -> Reply:
        await asyncio.sleep(max(0.0, (one.at - chosen[0].at) * stretch - (time.perf_counter() - began)))
        return await ask(port, one.body(given.vocabulary))

    return list(await asyncio.gather(*(later(one) for one in chosen))), chosen


async def compare_alone(given: Any, port: int, asked: list[Ask], replies: list[Reply], most: int) -> dict[str, int]:
    """How many of a sample of answers are the same alone, token by token and bit by bit."""
    pairs = [(a, r) for a, r in zip(asked, replies, strict=True) if r.status == 200]
    sample = random.Random(0).sample(pairs, min(most, len(pairs)))
    same = 0
    for one, reply in sample:
        again = await ask(port, one.body(given.vocabulary, stream=False))
        same += again.written == reply.written
    return {"compared": len(sample), "same": same}


def measure_overhead(given: Any, port: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a request on an open connection beside the engine's own call; each is first half the time."""
    env = {**os.environ, **SPINS, "OMP_NUM_THREADS": str(given.threads)}
    own = subprocess.Popen([sys.executable, "-c", OWN, given.model, given.dtype], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True, env=env)  # fmt: skip
    assert own.stdin is not None
    assert own.stdout is not None
    client = http.client.HTTPConnection("127.0.0.1", port)
    seconds: dict[str, list[float]] = {"server": [], "engine": []}

    def call(body: dict[str, Any]) -> float:
        began = time.perf_counter()
        client.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        client.getresponse().read()
        return time.perf_counter() - began

    def call_engine(body: dict[str, Any]) -> float:
        assert own.stdout is not None
        print([body["prompt"], tokens], file=own.stdin, flush=True)
        return float(own.stdout.readline())

    for n in range(-2, rounds):
        body = Ask(0.0, 16, tokens, 1000 + n).body(given.vocabulary, stream=False)
        for name, each in sorted({"server": call, "engine": call_engine}.items(), reverse=bool(n % 2)):
            took = each(body)
            seconds[name] += [took] if n >= 0 else []
    client.close()
    own.stdin.close()
    own.wait(30)
    ours, theirs = seconds["server"], seconds["engine"]
    extra = [a - b for a, b in zip(ours, theirs, strict=True)]
    spread = statistics.stdev(extra) / len(extra) ** 0.5
    return {"tokens": tokens, "pairs": rounds, "server_ms": round(1e3 * middle(ours), 2),
            "engine_ms": round(1e3 * middle(theirs), 2), "extra_ms": round(1e3 * middle(extra), 2),
            "extra_ms_standard_error": round(1e3 * spread, 2),
            "extra_share": round(middle(extra) / middle(theirs), 4)}  # fmt: skip


async def hold_idle(given: Any, port: int, process: Any, count: int) -> dict[str, Any]:
    """Memory that streams cost which wait behind others."""
    before, bodies = resident(process), [Ask(0, 4, given.context // 2, n).body(given.vocabulary)
                                         for n in range(given.rows)]  # fmt: skip
    long = [asyncio.create_task(ask(port, body)) for body in bodies]
    await asyncio.sleep(0.5)
    opened: list[tuple[Any, Any]] = []
    body = json.dumps(bodies[0]).encode()
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {len(body)}\r\n\r\n"
                     .encode() + body)  # fmt: skip
        opened.append((reader, writer))
    begun = sum(b" 200 " in head for head in [await reader.readline() for reader, _ in opened])
    after = resident(process)
    for _, writer in opened:
        writer.close()
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    return {"streams": count, "begun": begun, "megabytes": round(after - before, 1)}


def main() -> None:
    """All parts, and what is not measured."""
    given = options(
        __doc__ or "", model=("demo-lm", "a MODEL that writes"), rows=(8, "texts at the same time"),
        seconds=(600.0, "of the replay"), context=(192, "tokens of prompt and answer"),
        vocabulary=(900, "ids to draw from"), shrink=(16.0, "by which the trace's lengths are divided"),
        tokens=(64, "of the overhead's requests"), idle=(1000, "streams"), dtype=("auto", "of the weights"),
    )  # fmt: skip
    seconds = 3.0 if given.smoke else 20.0 if given.quick else given.seconds
    trace = read_trace(given.context, given.shrink)
    part = min(10.0, seconds / 2)
    found: dict[str, Any] = {"load_before": [round(x, 1) for x in os.getloadavg()]}
    with serving(given, rows=given.rows, queue=4 * given.rows) as (port, process):
        rounds = 3 if given.smoke else 20 * given.rounds
        found["overhead"] = {f"{n}_tokens": measure_overhead(given, port, n, rounds) for n in (1, given.tokens)}
        capacity = 0.0
        for each in (part, max(part, seconds / 10)):  # of lengths as in the replay, which depend on it
            drawn = draw_other_texts(trace[-round(0.8 * (capacity or 2.0) * seconds):])
            capacity = asyncio.run(measure_capacity(given, port, drawn, each))
        found["capacity_requests_per_second"] = round(capacity, 2)
        before = resident(process)
        replies, asked = asyncio.run(replay(given, port, trace, 0.8 * capacity, seconds))
        found["at_80_percent"] = describe(replies, seconds)
        found["at_80_percent"] |= asyncio.run(compare_alone(given, port, asked, replies, 5 if given.smoke else 50))
        found["memory_megabytes"] = {"before": round(before, 1), "after": round(resident(process), 1)}
    with serving(given, rows=given.rows, queue=given.rows // 2) as (port, process):
        asyncio.run(measure_capacity(given, port, trace, 1.0))
        before = resident(process)
        replies, _ = asyncio.run(replay(given, port, trace, 5 * capacity, part))
        refused = [r.total for r in replies if r.status == 429]
        found["overload_5x"] = describe(replies, part) | {
            "refused_seconds": {"p50": percentile(refused, 0.5), "p95": percentile(refused, 0.95)},
            "memory_megabytes": {"before": round(before, 1), "after": round(resident(process), 1)}}  # fmt: skip
    idle = 50 if given.smoke else given.idle
    with serving(given, rows=given.rows, queue=idle + 10, streams=idle + 100) as (port, process):
        asyncio.run(measure_capacity(given, port, trace, 1.0))
        found["idle"] = asyncio.run(hold_idle(given, port, process, idle))
    given.model = Path(given.model).name
    slower = found["overload_5x"]["first_token"]["p95"] / max(1e-9, found["at_80_percent"]["first_token"]["p95"])
    write("serve", __doc__ or "", given, **found, overload_p95_ratio=round(slower, 2),
          mean_prompt=round(statistics.mean(a.prompt for a in trace), 1),
          mean_tokens=round(statistics.mean(a.tokens for a in trace), 1),
          peers="bench/serve_peers.py")  # fmt: skip


if __name__ == "__main__":
    main()
