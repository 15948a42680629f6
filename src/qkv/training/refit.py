"""The end of a run that held some of its rows out: a few more steps on all of them. Next: session.py."""

import dataclasses
from itertools import chain
from typing import Any

import numpy as np

from qkv.data.mapped_rows import collect_rows
from qkv.messages import Message
from qkv.training import loop, schedule
from qkv.training.assemble import Assembly
from qkv.training.run_dir import Report
from qkv.training.settings import Settings
from qkv.training.splits import Splits

WARM = 0.06  # of its steps the rate rises


def learn_all_rows(a: Assembly, made: int, report: Report | None) -> Message | None:
    """Train the chosen weights on the held-out rows too, after a run of `made` steps; in words what was done, if so.

    Which weights are best is known by then, so these steps are not judged, and nothing of them is kept: a run that is
    interrupted here makes them again when it is resumed.
    """
    steps = round(a.run.training.refit * made)
    if not steps:
        return None
    s, splits = plan_refit(a.run.training, steps, a.model.spec.stack.width), join_rows(a.splits)
    plan, _ = a.objective.plan(dataclasses.replace(a.run, training=s), splits, a.model)

    def report_step(event: dict[str, Any]) -> None:
        if report and event["kind"] == "step":  # counted on from the run's own
            report(event | {"step": made + event["step"], "of": made + steps})

    loop.train(a.model.core, plan, s, report=report_step)
    return Message("then {steps:,} steps on all {rows:,} rows, of which {held:,} were held out: the figures are those "
                   "of the weights before", steps=steps, rows=len(splits.train), held=len(a.splits.valid))


def plan_refit(s: Settings, steps: int, width: int) -> Settings:
    """The settings of those steps: the rate rises to its height once more, then falls in a line to nothing."""
    peak = schedule.learning_rate(s, max(1, s.warmup), total=max(s.steps, s.warmup + 1), width=width)
    bad = "skip" if s.on_bad_step == "rewind" else s.on_bad_step  # there is no checkpoint to go back to
    return dataclasses.replace(
        s, steps=steps, epochs=0, seconds=0.0, schedule="linear", floor=0.0, lr=peak, seed=s.seed + 1, patience=0,
        warmup=max(1, round(WARM * steps)), average=0, ema=0.0, on_bad_step=bad,
    )


def join_rows(splits: Splits) -> Splits:
    """The data with the rows for validation among those to learn from, each once an epoch."""
    rows: Any = collect_rows(chain(splits.train, splits.valid))  # type: ignore[arg-type]
    often = None if splits.often is None else np.append(splits.often, np.ones(len(splits.valid)))
    return dataclasses.replace(splits, train=rows, often=often)
