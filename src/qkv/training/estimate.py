"""What a run will cost, measured: a copy of the model makes some true steps in this very process. Next: loop.py.

The loop itself runs, so precision, accumulation, experts, adapters and averages cost here what they cost there.
"""

import copy
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.core.model import Transformer
from qkv.devices import keep_freed
from qkv.training.loop import ENDLESS, Loop
from qkv.training.plan import Plan
from qkv.training.settings import Settings
from qkv.training.tensor_parallel import refuse_uneven

LOOKED = 600  # batches of an epoch whose shapes are looked at
SHAPES = 40  # of them, the largest and the commonest, are tried
SPEND = 6.0  # seconds of timing; each shape is timed once at least
ROUNDS = 8  # and so often at most


@dataclass(frozen=True)
class Estimate:
    """What a run will take: weights, bytes at its peak, seconds a step and in all, and at what precision.

    `seconds` is training alone; `evaluation_seconds` is what all evaluations take besides, 0 where it is not known.
    """

    parameters: int
    trained_parameters: int
    steps: int
    steps_per_epoch: int
    peak_bytes: int
    seconds_per_step: float
    seconds: float
    evaluations: int
    evaluation_seconds: float
    tokens_per_second: float
    precision: str


def estimate(
    core: Transformer, plan: Plan, settings: Settings, *, rehearse: Callable[[Transformer], float] | None = None
) -> Estimate:
    """The cost of a run, from true steps on a copy of `core`, the largest batch first; nothing is written or changed.

    `rehearse` does with a core what an evaluation and the test do, and gives the seconds that one evaluation takes.
    Memory is the highest that this process had once batches of each shape were met: each new shape adds to it, as the
    CPU's matrix kernels keep what they made for it. Time is the mean over shapes, each as often as an epoch has it.
    """
    keep_freed()
    refuse_uneven(core, settings.tensor_parallel)
    before, own = peak_memory(core), sum(t.nbytes for t in (*core.parameters(), *core.buffers()))
    keys, n = plan.order(0), settings.accumulate
    shapes = find_shapes(keys, plan)
    chosen = [key for key, _ in shapes]
    order = [key for key in chosen * (1 + ROUNDS) + chosen[:1] for _ in range(n)]
    short = dataclasses.replace(plan, order=lambda _: order)
    # nothing to go back to is kept, and odd batches follow one another here
    quiet = dataclasses.replace(settings, log_every=ENDLESS, on_bad_step="stop", spike=0.0)
    run = Loop(copy.deepcopy(core), short, quiet, None, None, lambda _: None)
    run.open(False)
    each, speed = time_steps(run, [count for _, count in shapes])
    evaluation = rehearse(run.core) if rehearse else 0.0
    run.step()  # the largest once more, as what an evaluation freed need not fit
    per_epoch = -(-len(keys) // n)
    total = min((x for x in (settings.steps, settings.epochs * per_epoch) if x), default=ENDLESS)
    if settings.seconds:
        total = min(total, max(1, math.ceil(settings.seconds / each)))
    count = total // (settings.evaluate_every or per_epoch)
    return Estimate(
        parameters=sum(p.numel() for p in core.parameters()),
        trained_parameters=sum(p.numel() for p in run.stepper.weights),
        steps=total, steps_per_epoch=per_epoch, peak_bytes=max(before, peak_memory(core) - own), seconds_per_step=each,
        seconds=(1 + settings.refit) * total * each, evaluations=count, evaluation_seconds=count * evaluation,
        tokens_per_second=speed, precision=run.at.precision,
    )


def find_shapes(keys: Sequence[Any], plan: Plan) -> list[tuple[Any, int]]:
    """A batch of each shape that an epoch has and how many have it: the one with most tokens first, then by count."""
    found: dict[tuple[int, ...], list[Any]] = {}
    for key in keys[:: -(-len(keys) // LOOKED)]:
        batch = plan.make(key)
        sides = (*batch.target.shape, *(() if batch.source is None else batch.source.shape))
        found.setdefault(tuple(sides), []).append(key)
    largest = max(found, key=lambda sides: sum(math.prod(sides[i : i + 2]) for i in range(0, len(sides), 2)))
    often = sorted(found, key=lambda sides: (sides != largest, -len(found[sides])))
    return [(found[sides][0], len(found[sides])) for sides in often[:SHAPES]]


def time_steps(run: Loop, counts: Sequence[int]) -> tuple[float, float]:
    """Mean seconds of a step, and tokens a second, over the shapes of `run`, which an epoch has so often each."""
    for _ in counts:
        run.step()
    spent = [list[float]() for _ in counts]
    start, tokens = time.perf_counter(), [0] * len(counts)
    for number in range(ROUNDS):
        if number and time.perf_counter() - start > SPEND:
            break
        for place in range(len(counts)):
            seconds, before = run.at.seconds, run.at.tokens
            run.step()
            spent[place].append(run.at.seconds - seconds)
            tokens[place] = run.at.tokens - before
    run.at.done = 0
    each = sum(n * statistics.median(s) for n, s in zip(counts, spent, strict=True)) / sum(counts)
    return each, sum(n * t for n, t in zip(counts, tokens, strict=True)) / sum(counts) / each


def peak_memory(core: Transformer) -> int:
    """Bytes of the highest memory so far: of the GPU where the core is on one, else of the process; 0 if unknown."""
    if core.embed.weight.device.type == "cuda":
        return torch.cuda.max_memory_reserved(core.embed.weight.device)
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 0
