"""What a lab is: a claim, what is measured, what is expected before running, and the rule from numbers to a verdict.

A lab file ends in `LAB = Lab(…)`. Texts come in pairs, Chinese then English. Next: any lab; draw.py for its picture.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qkv.errors import QkvError

Words = tuple[str, str]  # Chinese, English
Number = float | list[float]
Numbers = Mapping[str, Number]
Tell = Callable[[str], None]
Word = Literal["shown", "not shown", "refuted", "true only when", "inconclusive"]
IN_ZH: dict[str, str] = {
    "shown": "成立", "not shown": "未能显示", "refuted": "不成立", "true only when": "有条件成立",
    "inconclusive": "无法判断",
}  # fmt: skip
KINDS: dict[str, Words] = {
    "exact": ("精确", "exact"),
    "speed": ("速度", "speed"),
    "trained": ("训练", "trained"),
}


@dataclass(frozen=True)
class Verdict:
    """What came out, in a sentence with its numbers; `effect` is the deciding number, `spread` its range over seeds."""

    word: Word
    says: Words
    effect: float
    spread: tuple[float, float]


@dataclass(frozen=True)
class Plot:
    """One picture as data: `bars` and `lines` have a value per `x` in each series, `grid` a row per series."""

    kind: Literal["bars", "lines", "grid"]
    title: Words
    x: Sequence[str | float]
    series: Mapping[str, Sequence[float]]
    x_label: Words = ("", "")
    y_label: Words = ("", "")
    scale: Literal["linear", "log"] = "linear"


@dataclass(frozen=True)
class Runs:
    """The numbers of several seeds."""

    rows: tuple[Numbers, ...]

    def each(self, name: str) -> list[float]:
        """One number, by seed."""
        return [value for row in self.rows if isinstance(value := row[name], int | float)]

    def mean(self, name: str) -> float:
        """Its mean over the seeds."""
        values = self.each(name)
        return sum(values) / len(values)

    def low(self, name: str) -> float:
        """Its least value."""
        return min(self.each(name))

    def high(self, name: str) -> float:
        """Its greatest value."""
        return max(self.each(name))

    def curve(self, name: str) -> list[float]:
        """A list of numbers, each the mean over the seeds."""
        rows = [value for row in self.rows if isinstance(value := row[name], list)]
        return [sum(column) / len(column) for column in zip(*rows, strict=True)]

    def verdict(self, word: Word, effect: str, zh: str, en: str) -> Verdict:
        """A verdict whose deciding number is called `effect`."""
        return Verdict(word, (zh, en), self.mean(effect), (self.low(effect), self.high(effect)))


@dataclass(frozen=True)
class Lab:
    """One question. `expected` is written before running; `rows` names the numbers of the table.

    `run(seed, steps=…, tell=…)` gives numbers, the same ones for the same seed; it stops on steps, never on seconds.
    Fewer than `enough` steps or `seeds` seeds say nothing: the verdict is then "inconclusive", whatever `judge` says.
    """

    kind: Literal["exact", "speed", "trained"]
    claim: Words
    who: Words
    measured: Words
    chance: Words
    expected: Words
    rows: Mapping[str, Words]
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


def quiet(_: str) -> None:
    """Nobody listens."""


def perform(name: str, lab: Lab, *, seeds: Sequence[int] = (0, 1, 2), steps: int = 0, tell: Tell = quiet) -> Result:
    """Run a lab for some seeds and judge it; Ctrl-C keeps the seeds that are done and marks the result.

    Raises:
        KeyboardInterrupt: stopped before the first seed was done.
    """
    from importlib.metadata import version

    steps, began, rows, stopped = steps or lab.steps, time.monotonic(), list[Numbers](), False
    try:
        for seed in seeds:
            rows.append(rounded(lab.run(seed, steps=steps, tell=lambda said, seed=seed: tell(f"seed {seed}: {said}"))))
            tell(f"seed {seed} done")
    except KeyboardInterrupt:
        if not rows:
            raise
        stopped = True
    verdict = judged(lab, Runs(tuple(rows)), steps, stopped)
    seconds = round(time.monotonic() - began, 1)
    return Result(name, tuple(seeds[: len(rows)]), steps, tuple(rows), verdict, seconds, stopped, version("torch"))


def judged(lab: Lab, runs: Runs, steps: int, stopped: bool = False) -> Verdict:
    """The verdict of a lab over its runs, or why there can be none."""
    found, n = lab.judge(runs), len(runs.rows)
    if steps < lab.enough:
        says = (f"{steps} 步太少，至少要 {lab.enough} 步",
                f"{steps} steps are too few; at least {lab.enough} are needed")  # fmt: skip
    elif n < lab.seeds and stopped:
        says = (f"提前停止：只完成 {n} 个种子，需要 {lab.seeds} 个",
                f"stopped early: {n} of the {lab.seeds} seeds that are needed")  # fmt: skip
    elif n < lab.seeds:
        says = (f"{n} 个种子太少，至少要 {lab.seeds} 个", f"{n} seeds are too few; at least {lab.seeds} are needed")
    else:
        return found
    return Verdict("inconclusive", says, found.effect, found.spread)


def rounded(numbers: Numbers) -> Numbers:
    """Six significant digits, whole numbers as they are: what is committed should not change with the last bit."""
    short: Callable[[float], float] = lambda x: x if float(x).is_integer() else float(f"{x:.6g}")  # noqa: E731
    return {k: [short(x) for x in v] if isinstance(v, list) else short(v) for k, v in numbers.items()}


def as_json(lab: Lab, result: Result) -> dict[str, Any]:
    """A result as it is written to a file: with its claim, so that lists need not import the lab."""
    v = result.verdict
    return {
        "name": result.name, "kind": lab.kind, "claim": list(lab.claim), "verdict": v.word, "says": list(v.says),
        "effect": v.effect, "spread": list(v.spread), "seeds": list(result.seeds), "steps": result.steps,
        "seconds": result.seconds, "stopped": result.stopped, "torch": result.torch,
        "numbers": [dict(row) for row in result.numbers],
    }  # fmt: skip


def from_json(found: Mapping[str, Any], where: str) -> Result:
    """The result that `as_json` wrote; what is missing is a QkvError."""
    try:
        verdict = Verdict(found["verdict"], (found["says"][0], found["says"][1]), found["effect"],
                          (found["spread"][0], found["spread"][1]))  # fmt: skip
        return Result(found["name"], tuple(found["seeds"]), found["steps"], tuple(found["numbers"]), verdict,
                      found["seconds"], found["stopped"], found["torch"])  # fmt: skip
    except (KeyError, IndexError, TypeError) as e:
        raise QkvError(f"{where}: not a lab's result ({type(e).__name__}: {e}); run the lab again") from None
