"""What a lab is: a claim, what is measured, what is expected before running, and the rule from numbers to a verdict.

A lab file ends in `LAB = Lab(…)`. Texts come in pairs, Chinese then English. Next: any lab; page.py for what it shows.
"""

import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.messages import Given, Message

Number = float | list[float]
Numbers = Mapping[str, Number]
Tell = Callable[[str], None]
Word = Literal["shown", "not shown", "refuted", "true only when", "inconclusive"]
VERDICTS: dict[str, Message] = {
    "shown": Message("shown"), "not shown": Message("not shown"), "refuted": Message("refuted"),
    "true only when": Message("true only when"), "inconclusive": Message("inconclusive"),
}
KINDS: dict[str, Message] = {
    "exact": Message("exact"),
    "speed": Message("speed"),
    "trained": Message("trained"),
}


@dataclass(frozen=True)
class Verdict:
    """What came out, in a sentence with its numbers; `effect` is the deciding number, `spread` its range over seeds."""

    word: Word
    says: Message
    effect: float
    spread: tuple[float, float]


@dataclass(frozen=True)
class Plot:
    """One picture as data: `bars` and `lines` have a value per `x` in each series, `grid` a row per series.

    Bars and series are called by the lab's table, else by `names`, else by themselves. `beside` is a published figure,
    redrawn from typed numbers; its `source` says where they were read off.
    """

    kind: Literal["bars", "lines", "grid"]
    title: Message
    x: Sequence[str | float]
    series: Mapping[str, Sequence[float]]
    x_label: Message = Message()
    y_label: Message = Message()
    scale: Literal["linear", "log"] = "linear"
    names: Mapping[str, Message] = field(default_factory=dict[str, Message])
    beside: "Plot | None" = None
    source: Message = Message()


@dataclass(frozen=True)
class Runs:
    """The numbers of several seeds."""

    rows: tuple[Numbers, ...]

    def values(self, name: str) -> list[float]:
        """One number, by seed."""
        return [value for row in self.rows if isinstance(value := row[name], int | float)]

    def mean(self, name: str) -> float:
        """Its mean over the seeds."""
        values = self.values(name)
        return sum(values) / len(values)

    def min(self, name: str) -> float:
        """Its least value."""
        return min(self.values(name))

    def max(self, name: str) -> float:
        """Its greatest value."""
        return max(self.values(name))

    def curve(self, name: str) -> list[float]:
        """A list of numbers, each the mean over the seeds."""
        rows = [value for row in self.rows if isinstance(value := row[name], list)]
        return [sum(column) / len(column) for column in zip(*rows, strict=True)]

    def verdict(self, word: Word, effect: str, says: Message) -> Verdict:
        """A verdict whose deciding number is called `effect`."""
        return Verdict(word, says, self.mean(effect), (self.min(effect), self.max(effect)))


@dataclass(frozen=True)
class Lab:
    """One question. `expected` is written before running; `rows` names the numbers of the table.

    `run(seed, steps=…, tell=…)` gives numbers, the same ones for the same seed; it stops on steps, never on seconds.
    Fewer than `enough` steps or `seeds` seeds say nothing: the verdict is then "inconclusive", whatever `judge` says.
    """

    kind: Literal["exact", "speed", "trained"]
    claim: Message
    who: Message
    measured: Message
    chance: Message
    expected: Message
    rows: Mapping[str, Message]
    run: Callable[..., Numbers]
    judge: Callable[[Runs], Verdict]
    plot: Callable[[Runs], Plot]
    steps: int = 0
    enough: int = 0
    seeds: int = 1


@dataclass(frozen=True)
class Result:
    """A lab that was run: its numbers by seed, the verdict, and whether somebody stopped it early."""

    name: str
    seeds: tuple[int, ...]
    steps: int
    numbers: tuple[Numbers, ...]
    verdict: Verdict
    seconds: float
    stopped: bool = False
    torch: str = ""
    cpu: float = 0.0  # processor seconds, of all processes together


def ignore(_: str) -> None:
    """Nobody listens."""


def perform(
    name: str, lab: Lab, *, seeds: Sequence[int] = (0, 1, 2), steps: int = 0, jobs: int = 1, tell: Tell = ignore
) -> Result:
    """Run a lab for some seeds and judge it; Ctrl-C keeps the seeds that are done and marks the result.

    With `jobs` above 1 seeds run side by side in processes of their own. The numbers stay the same: a lab that is not
    about speed computes on one thread, so that neither the machine nor its neighbours change a sum's order.

    Raises:
        KeyboardInterrupt: stopped before the first seed was done.
    """
    from importlib.metadata import version

    steps, began, stopped = steps or lab.steps, time.monotonic(), False
    rows, spent = list[Numbers](), 0.0
    one = partial(run_seed, lab.run, steps=steps, threads=0 if lab.kind == "speed" else 1)
    try:
        together = jobs > 1 and len(seeds) > 1
        with run_in_processes(one, seeds, jobs) if together else run_in_turn(one, seeds, tell) as found:
            for seed, (row, cpu) in zip(seeds, found, strict=True):
                rows.append(round_numbers(row))
                spent += cpu
                tell(f"seed {seed} done")
    except KeyboardInterrupt:
        if not rows:
            raise
        stopped = True
    verdict = judge_runs(lab, Runs(tuple(rows)), steps, stopped)
    took, done = round(time.monotonic() - began, 1), tuple(seeds[: len(rows)])
    return Result(name, done, steps, tuple(rows), verdict, took, stopped, version("torch"), round(spent, 1))


Seeded = Generator[tuple[Numbers, float]]


def run_seed(
    run: Callable[..., Numbers], seed: int, *, steps: int, threads: int, tell: Tell = ignore
) -> tuple[Numbers, float]:
    """The numbers of one seed on so many threads (0: as many as there are), and the processor seconds it took."""
    import torch

    before, began = torch.get_num_threads(), time.process_time()
    torch.set_num_threads(threads or before)
    try:
        return run(seed, steps=steps, tell=tell), time.process_time() - began
    finally:
        torch.set_num_threads(before)


@contextmanager
def run_in_turn(one: Callable[..., tuple[Numbers, float]], seeds: Sequence[int], tell: Tell) -> Generator[Seeded]:
    """One seed after another."""
    yield (one(seed, tell=lambda said, seed=seed: tell(f"seed {seed}: {said}")) for seed in seeds)


@contextmanager
def run_in_processes(one: Callable[..., tuple[Numbers, float]], seeds: Sequence[int], jobs: int) -> Generator[Seeded]:
    """Seeds side by side, in order, in fresh processes that end with the block whatever they are at."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        min(jobs, len(seeds)), multiprocessing.get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )
    try:
        waiting = [pool.submit(one, seed) for seed in seeds]
        yield (job.result() for job in waiting)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()


def judge_runs(lab: Lab, runs: Runs, steps: int, stopped: bool = False) -> Verdict:
    """The verdict of a lab over its runs, or why there can be none."""
    found, n = lab.judge(runs), len(runs.rows)
    if steps < lab.enough:
        says = Message("{steps} steps are too few; at least {enough} are needed", steps=steps,
                       enough=lab.enough)
    elif n < lab.seeds and stopped:
        says = Message("stopped early: {n} of the {seeds} seeds that are needed", n=n, seeds=lab.seeds)
    elif n < lab.seeds:
        says = Message("{n} seeds are too few; at least {seeds} are needed", n=n, seeds=lab.seeds)
    else:
        return found
    return Verdict("inconclusive", says, found.effect, found.spread)


def round_numbers(numbers: Numbers) -> Numbers:
    """Six significant digits, whole numbers as they are: what is committed should not change with the last bit."""
    short: Callable[[float], float] = lambda x: x if float(x).is_integer() else float(f"{x:.6g}")  # noqa: E731
    return {k: [short(x) for x in v] if isinstance(v, list) else short(v) for k, v in numbers.items()}


def as_json(lab: Lab, result: Result) -> dict[str, Any]:
    """A result as it is written to a file: with its claim, so that lists need not import the lab."""
    v = result.verdict
    return {
        "name": result.name, "kind": lab.kind, "claim": list_texts(lab.claim),
        "verdict": v.word, "says": list_texts(v.says),
        "effect": v.effect, "spread": list(v.spread), "seeds": list(result.seeds), "steps": result.steps,
        "seconds": result.seconds, "cpu": result.cpu, "stopped": result.stopped, "torch": result.torch,
        "numbers": [dict(row) for row in result.numbers],
    }


def list_texts(message: Message) -> list[str]:
    """A message as files keep it: in Chinese and in English."""
    return [message.to("zh"), str(message)]


def from_json(found: Mapping[str, Any], where: str) -> Result:
    """The result that `as_json` wrote; what is missing is a QkvError."""
    try:
        verdict = Verdict(found["verdict"], Given({"zh": found["says"][0], "en": found["says"][1]}), found["effect"],
                          (found["spread"][0], found["spread"][1]))
        return Result(found["name"], tuple(found["seeds"]), found["steps"], tuple(found["numbers"]), verdict,
                      found["seconds"], found["stopped"], found["torch"], found.get("cpu", 0.0))
    except (KeyError, IndexError, TypeError) as e:
        raise QkvError("{where}: not a lab's result ({kind}: {e}); run the lab again", where=where,
                       kind=type(e).__name__, e=e) from None


def write_result(lab: Lab, result: Result, directory: Path) -> Path:
    """Save a result as DIRECTORY/NAME.json, whole or not at all.

    Raises:
        QkvError: the directory cannot be written.
    """
    target = directory / f"{result.name}.json"
    text = json.dumps(as_json(lab, result), ensure_ascii=False, indent=1)
    write_text_file(target, text + "\n", hint=Message("give another directory by --out"))
    return target


def differences(lab: Lab, kept: Result, again: Result) -> list[Message]:
    """Where a result and an earlier one disagree: another verdict, or a mean outside the earlier spread.

    The earlier spread is widened by its own width, at least by 2 %: the mean of three seeds says no more. Speeds are a
    machine's own, so of a speed lab only the verdict counts.
    """
    found: list[Message] = []
    if kept.verdict.word != again.verdict.word:
        now, then = VERDICTS[again.verdict.word], VERDICTS[kept.verdict.word]
        found.append(Message("verdict: {now}, was {then}", now=now, then=then))
    old, new = Runs(kept.numbers), Runs(again.numbers)
    for name, text in lab.rows.items() if lab.kind != "speed" else ():
        if name not in old.rows[0]:
            found.append(Message("{text}: was not there", text=text))
            continue
        low, high, mean = old.min(name), old.max(name), new.mean(name)
        room = max(high - low, 0.02 * abs(old.mean(name)), 1e-9)
        if not low - room <= mean <= high + room:
            found.append(
                Message("{text}: {mean:.4g}, was {low:.4g} … {high:.4g}", text=text, mean=mean, low=low,
                        high=high)
            )
    return found
