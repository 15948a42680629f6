"""How many machines the Azure conversation trace needs at a load, by a simulation that a real server checks.

Rates are measured on the engine: tokens of prompts read in a second, seconds of a step for one row and for all rows. A
simulated machine reads one prompt or makes one step for all its rows; a request goes to the machine with the fewest.
"""

import asyncio
import os
import random
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import options, write
from serve import Ask, describe, percentile, read_trace, replay, serving


@dataclass(frozen=True)
class Rates:
    """What a machine does: prompt tokens a second, and seconds of a step that writes a token in each of n rows."""

    prompt: float
    first: float
    each: float
    rows: int

    def step(self, rows: int) -> float:
        """Seconds of a step."""
        return self.first + self.each * rows


@dataclass
class Machine:
    """What one machine has to do: requests that wait, and those it writes as [tokens left, when each came]."""

    free: float = 0.0
    waiting: deque[Ask] = field(default_factory=deque[Ask])
    rows: list[list[float]] = field(default_factory=list[list[float]])

    def advance(self, rates: Rates, until: float, first: list[float]) -> None:
        """Work up to a moment; the seconds to each first token are added to `first`."""
        while self.free < until and (self.waiting or self.rows):
            if self.waiting and len(self.rows) < rates.rows:
                one = self.waiting.popleft()
                self.free = max(self.free, one.at) + one.prompt / rates.prompt + rates.step(1)
                first.append(self.free - one.at)
                self.rows += [[one.tokens - 1, one.at]] if one.tokens > 1 else []
            else:
                self.free += rates.step(len(self.rows))
                self.rows = [[left - 1, at] for left, at in self.rows if left > 1]


def simulate(asked: list[Ask], rates: Rates, count: int) -> dict[str, float]:
    """Seconds to the first token, and tokens a second, of requests on so many machines."""
    machines, first = [Machine() for _ in range(count)], list[float]()
    for one in asked:
        for machine in machines:
            machine.advance(rates, one.at, first)
        least = min(machines, key=lambda m: (len(m.waiting) + len(m.rows), m.free))
        least.free = max(least.free, one.at)
        least.waiting.append(one)
    for machine in machines:
        machine.advance(rates, float("inf"), first)
    end = max(machine.free for machine in machines)
    return {"first_p50": percentile(first, 0.5), "first_p95": percentile(first, 0.95),
            "tokens_per_second": round(sum(a.tokens for a in asked) / max(1e-9, end - asked[0].at), 1)}  # fmt: skip


def spread(trace: list[Ask], rate: float, seconds: float) -> list[Ask]:
    """The trace's last requests at its own rhythm, scaled to `rate` a second, as serve.py replays them."""
    chosen = trace[-max(4, round(rate * seconds)) :]
    stretch = seconds / max(1e-9, chosen[-1].at - chosen[0].at)
    return [Ask((one.at - chosen[0].at) * stretch, one.prompt, one.tokens, one.seed) for one in chosen]


def count_machines(trace: list[Ask], rates: Rates, load: float, target: float, seconds: float) -> dict[str, Any]:
    """The fewest machines on which 95 % of the requests have their first token in time."""
    asked = spread(trace, load, seconds)
    for count in range(1, 10_000):
        found = simulate(asked, rates, count)
        if found["first_p95"] <= target:
            return {"requests_per_second": load, "target_seconds": target, "machines": count, **found}
    raise SystemExit(f"no number of machines answers within {target} seconds: one request alone takes longer")


def measure_rates(given: Any) -> Rates:
    """The engine's own rates in this process, each the best of some rounds."""
    import qkv
    from qkv.generation.engine import Engine, Settings
    from qkv.generation.sequence import DecodeOptions

    engine, draw = Engine(qkv.load(given.model).core, Settings(batch_invariant=True)), random.Random(0)

    def run(rows: int, prompt: int, tokens: int) -> float:
        ids = [[draw.randrange(10, given.vocabulary) for _ in range(prompt)] for _ in range(rows)]
        began = time.perf_counter()
        for handle in [engine.submit(row, DecodeOptions(tokens)) for row in ids]:
            handle.result()
        return time.perf_counter() - began

    def best(*how: int) -> float:
        return min(run(*how) for _ in range(1 + given.rounds))

    long, steps = given.context - 8, 32
    prompt = max(1e-9, best(1, long, 1) - best(1, 2, 1)) / (long - 2)
    one, many = ((best(n, 2, steps + 1) - best(n, 2, 1)) / steps for n in (1, given.rows))
    each = max(0.0, (many - one) / max(1, given.rows - 1))
    return Rates(1 / prompt, max(1e-9, one - each), each, given.rows)


def main() -> None:
    """Rates, the check against one server, and the machines for a load."""
    given = options(
        __doc__ or "", model=("demo-lm", "a MODEL that writes"), rows=(8, "texts that a machine writes together"),
        load=(10.0, "requests a second"), target=(0.5, "seconds to the first token for 95 % of them"),
        seconds=(60.0, "of the check"), context=(192, "tokens of prompt and answer"), vocabulary=(900, "ids to draw"),
        shrink=(16.0, "by which the trace's lengths are divided"), share=(0.6, "of one machine for the check"),
    )  # fmt: skip
    place = Path(os.environ.get("QKV_DATA", "data"), "traces")
    if not place.is_dir() and given.smoke:
        trace = [Ask(0.3 * n, 8 + n % 5, 4 + n % 7, n) for n in range(200)]
    else:
        trace = read_trace(given.context, given.shrink)
    rates, seconds = measure_rates(given), 3.0 if given.smoke else given.seconds
    tokens, prompt = (sum(getattr(a, key) for a in trace) / len(trace) for key in ("tokens", "prompt"))
    alone = 1 / (prompt / rates.prompt + rates.step(1) + (tokens - 1) * rates.step(rates.rows) / rates.rows)
    rate = given.share * alone
    said = simulate(spread(trace, rate, seconds), rates, 1)
    with serving(given, rows=given.rows, queue=1000) as (port, _):
        asyncio.run(replay(given, port, trace, rate, 1.0))
        began = time.perf_counter()
        replies, _ = asyncio.run(replay(given, port, trace, rate, seconds))
        took = time.perf_counter() - began
    seen = describe(replies, took)
    measured = {"first_p50": seen["first_token"]["p50"], "first_p95": seen["first_token"]["p95"],
                "tokens_per_second": round(sum(r.tokens for r in replies) / took, 1)}  # fmt: skip
    loads = [count_machines(trace, rates, load, given.target, min(600.0, max(60.0, 3000 / load)))
             for load in (given.load, 4 * given.load)]  # fmt: skip
    write("capacity", __doc__ or "", given, rates=vars(rates), one_machine_requests_per_second=round(alone, 2),
          check={"requests_per_second": round(rate, 2), "simulated": said, "measured": measured}, machines=loads,
          load_before=[round(x, 1) for x in os.getloadavg()])  # fmt: skip


if __name__ == "__main__":
    main()
