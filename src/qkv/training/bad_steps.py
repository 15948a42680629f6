"""What is bad about a step, and what becomes of it. Next: loop.py, which skips it or goes back.

It is a function of what all processes know and a checkpoint holds, so all decide alike.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from torch import Tensor

from qkv.data.collate import Batch
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training import checkpoint
from qkv.training.control import Progress
from qkv.training.settings import Settings
from qkv.training.step import Gradients

WINDOW = 64  # good steps that a step is compared with
ENOUGH = 16  # of them, before which nothing is a spike
ROW = 3  # bad steps one after another, after which a run that skips them stops all the same
KEPT = 20  # files of bad batches at most


class NonFinite(QkvError):
    """A loss or a gradient that is NaN, infinite or a spike; the weights and checkpoints before it are kept."""

    exit_code = 3


def find_fault(loss: float, norm: float, recent: Sequence[Sequence[float]], *, spike: float) -> str:
    """What is wrong with a step, or nothing: a number that is not finite, or too far above `recent` (in deviations).

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


def handle_bad_step(
    wrong: str, made: Gradients, at: Progress, s: Settings, *, folder: Path | None, rank: int
) -> tuple[str, str]:
    """Count a bad step and keep its batches: the notes on both, if the run continues.

    Raises:
        NonFinite: bad steps end this run, or there were too many of them.
    """
    at.skipped, at.row = at.skipped + 1, at.row + 1
    where = Message("step {step} (epoch {epoch}, batch {batch}, rows {rows})", step=at.step + 1, epoch=at.epoch,
                    batch=at.done, rows=str(list(made.keys))[:80])
    aside = Message()
    if folder:
        again = f"-again-{at.back}" if at.back else ""  # it came to this step before
        path = folder / "bad_batches" / f"step-{at.step + 1}{again}.{rank}.safetensors"
        state = {"seed": s.seed, "epoch": at.epoch, "batch": at.done, "rows": [str(key) for key in made.keys],
                 "why": wrong, "gradient": made.norm}
        if keep_batches(path, made.batches, state):
            aside = Message("; its batches are in {path}", path=path)
    if s.on_bad_step == "stop" or at.row >= ROW or at.back >= ROW:
        kept = Message("nothing was saved before")
        if last := checkpoint.find_last(folder):
            kept = Message("the last good checkpoint is {last}", last=last)
        again = Message(", bad step {row} in a row", row=at.row) if at.row > 1 else Message()
        again = Message(", and the run went back {back} times", back=at.back) if at.back else again
        raise NonFinite("training: {wrong} at {where}{again}; {kept}{aside}. Try a smaller lr, clip=1, or "
                        "precision=fp32", wrong=wrong, where=where, again=again, kept=kept, aside=aside)
    return Message("{wrong} at {where}", wrong=wrong, where=where), aside


def keep_batches(path: Path, batches: Mapping[int, Batch], state: Mapping[str, Any]) -> bool:
    """Write the batches of a bad step, by the number of their micro-batch, unless there are many such files already."""
    if len(list(path.parent.glob("*.safetensors"))) >= KEPT:
        return False
    tensors = {f"{micro}.{f.name}": value.clone() for micro, batch in batches.items() for f in dataclasses.fields(batch)
               if isinstance(value := getattr(batch, f.name), Tensor)}
    checkpoint.write(path, tensors, state)
    return True
