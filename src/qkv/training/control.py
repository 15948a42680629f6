"""Where a run stands, and when and how it ends: its limits, a signal, another process, a bad step. Next: loop.py."""

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training.distributed import Ranks
from qkv.training.settings import Settings

DOUBLE_SIGNAL_SECONDS = 0.5
ENOUGH = 16  # good steps before which nothing is a spike
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
REASONS = ("", "steps", "epochs", "seconds", "patience", "stop")


@dataclass
class Progress:
    """Where a run stands: what a checkpoint must know besides the tensors."""

    step: int = 0  # optimiser steps made
    epoch: int = 0
    done: int = 0  # steps made in this epoch
    seconds: float = 0.0
    tokens: int = 0  # counted target tokens seen
    best: dict[str, Any] | None = None  # the metrics of the best evaluation, with its step
    stale: int = 0  # evaluations since then
    snapshots: list[int] = field(default_factory=list)
    precision: str = ""
    empty: int = 0  # micro-batches without labels
    skipped: int = 0  # bad steps, whose update was left out
    row: int = 0  # of them the last ones, without a good one between
    back: int = 0  # times that the run went back to its last checkpoint
    recent: list[list[float]] = field(default_factory=list)  # loss and gradient norm of the last good steps
    loss: float | None = None  # of the last step


class NonFinite(QkvError):
    """A loss or a gradient that is NaN, infinite or a spike; the weights and checkpoints before it are kept."""

    exit_code = 3


class Interrupted(KeyboardInterrupt):
    """A signal ended the run after a whole step; `code` is what the shell expects (128 + the signal)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@dataclass(frozen=True)
class Outcome:
    """How a run ended: why (steps, epochs, seconds, patience, stop), after how much, and which weights the core has."""

    why: str
    steps: int
    epochs: float
    tokens: int
    seconds: float
    loss: float
    weights: str  # last, best, average or ema
    metrics: dict[str, Any]  # of those weights
    precision: str
    empty: int = 0  # micro-batches without labels
    skipped: int = 0  # steps without an update, as their numbers were bad


def find_stop_reason(at: Progress, s: Settings) -> str:
    """Why the run is over, or the empty string."""
    reached = {"steps": at.step, "epochs": at.epoch, "seconds": at.seconds, "patience": at.stale}
    return next((why for why, value in reached.items() if 0 < getattr(s, why) <= value), "")


def sync_stop_reason(why: str, number: int, at: Progress, ranks: Ranks) -> tuple[str, int]:
    """What all processes do next: why the first one ends the run, and the signal that any of them caught (or 0)."""
    end, at.seconds = ranks.broadcast_numbers(REASONS.index(why), at.seconds)  # the rate may depend on the seconds
    return REASONS[int(end)], int(ranks.all_reduce_max([number])[0])


def find_fault(loss: float, norm: float, recent: Sequence[Sequence[float]], *, spike: float) -> str:
    """What is wrong with a step, or nothing: a number that is not finite, or too far above `recent` (in deviations).

    It is a function of what all processes know and a checkpoint holds, so all decide alike.
    `recent` holds (loss, gradient norm) of good steps; gradients are compared by their logarithm. 0 `spike`: never.
    """
    for name, value in ((Message("loss"), loss), (Message("gradient norm"), norm)):
        if not math.isfinite(value):
            return Message("{name} {value}", name=name, value=value)
    if not spike or len(recent) < ENOUGH:
        return ""
    sides = ((Message("loss"), loss, [a for a, _ in recent]),
             (Message("gradient norm"), math.log(norm + 1e-12), [math.log(b + 1e-12) for _, b in recent]))
    for (name, value, before), said in zip(sides, (loss, norm), strict=True):
        mean = fmean(before)
        far = (value - mean) / max(pstdev(before, mean), 0.01 * abs(mean), 1e-9)  # an even loss makes no spike of dust
        if far > spike:
            return Message("{name} {said:.4g}, {far:.1f} standard deviations above the last {count} steps", name=name,
                           said=said, far=far, count=len(before))
    return ""


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """That many CPU threads, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """A list that the first of SIGNALS is written into; a second one ends the process as usual.

    What comes within DOUBLE_SIGNAL_SECONDS is the first once more: terminals and those who start processes both send
    it. So nobody else hears it until they are over, however soon all was saved. A SIGHUP that is ignored, as `nohup`
    has it, stays so.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {n: signal.getsignal(n) for n in SIGNALS}
    before = {n: h for n, h in before.items() if h is not signal.SIG_IGN or n in (signal.SIGINT, signal.SIGTERM)}
    when = 0.0

    def handle(number: int, frame: object) -> None:
        nonlocal when
        if not caught:
            caught.append(number)
            when = time.perf_counter()
        elif time.perf_counter() - when > DOUBLE_SIGNAL_SECONDS:
            for n, handler in before.items():
                signal.signal(n, handler)
            signal.raise_signal(number)

    for n in before:
        signal.signal(n, handle)
    try:
        yield caught
    finally:
        if caught:
            time.sleep(max(0.0, when + DOUBLE_SIGNAL_SECONDS - time.perf_counter()))
        for n, handler in before.items():
            signal.signal(n, handler)
