"""Steps that would harm the weights: numbers that are none, and a loss or gradient far above those before it.

What is bad is a function of what all ranks know and a checkpoint holds, so all decide alike, and a resumed run again.
Next: loop.py.
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

WINDOW = 64  # good steps that a step is compared with
ENOUGH = 16  # of them, before which nothing is a spike
ROW = 3  # bad steps one after another, after which a run that skips them stops all the same
KEPT = 20  # files of bad batches at most


class NonFinite(QkvError):
    """A loss or a gradient that is NaN, infinite or a spike; the weights and checkpoints before it are kept."""

    exit_code = 3


def fault(loss: float, norm: float, recent: Sequence[Sequence[float]], *, spike: float) -> str:
    """What is wrong with a step, or nothing: a number that is none, or one too many standard deviations above `recent`.

    `recent` holds (loss, gradient norm) of good steps; gradients are compared by their logarithm. 0 `spike`: never.
    """
    for name, value in ((Message("loss"), loss), (Message("gradient norm"), norm)):
        if not math.isfinite(value):
            return Message("{name} {value}", name=name, value=value)
    if not spike or len(recent) < ENOUGH:
        return ""
    sides = ((Message("loss"), loss, [a for a, _ in recent]),
             (Message("gradient norm"), math.log(norm + 1e-12), [math.log(b + 1e-12) for _, b in recent]))  # fmt: skip
    for (name, value, before), said in zip(sides, (loss, norm), strict=True):
        mean = fmean(before)
        far = (value - mean) / max(pstdev(before, mean), 0.01 * abs(mean), 1e-9)  # an even loss makes no spike of dust
        if far > spike:
            return Message("{name} {said:.4g}, {far:.1f} standard deviations above the last {count} steps", name=name,
                           said=said, far=far, count=len(before))
    return ""


def keep(path: Path, batches: Mapping[int, Batch], state: Mapping[str, Any]) -> bool:
    """Write the batches of a bad step, by the number of their micro-batch, unless there are many such files already."""
    if len(list(path.parent.glob("*.safetensors"))) >= KEPT:
        return False
    tensors = {f"{micro}.{f.name}": value.clone() for micro, batch in batches.items() for f in dataclasses.fields(batch)
               if isinstance(value := getattr(batch, f.name), Tensor)}  # fmt: skip
    checkpoint.write(path, tensors, state)
    return True
