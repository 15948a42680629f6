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
from qkv.training import checkpoint, log
from qkv.training.settings import Settings

WINDOW = 64  # good steps that a step is compared with
ENOUGH = 16  # of them, before which nothing is a spike
ROW = 3  # bad steps one after another, after which a run that skips them stops all the same
KEPT = 20  # files of bad batches at most


class NonFinite(QkvError):
    """A loss or a gradient that is NaN, infinite or a spike; the weights and checkpoints before it are kept."""

    code = 3


def find_fault(loss: float, norm: float, recent: Sequence[Sequence[float]], *, spike: float) -> str:
    """What is wrong with a step, or nothing: a number that is none, or one too many standard deviations above `recent`.

    `recent` holds (loss, gradient norm) of good steps; gradients are compared by their logarithm. 0 `spike`: never.
    """
    for name, value in (("loss", loss), ("gradient norm", norm)):
        if not math.isfinite(value):
            return f"{name} {value}"
    if not spike or len(recent) < ENOUGH:
        return ""
    sides = (("loss", loss, [a for a, _ in recent]),
             ("gradient norm", math.log(norm + 1e-12), [math.log(b + 1e-12) for _, b in recent]))  # fmt: skip
    for (name, value, before), said in zip(sides, (loss, norm), strict=True):
        mean = fmean(before)
        far = (value - mean) / max(pstdev(before, mean), 0.01 * abs(mean), 1e-9)  # an even loss makes no spike of dust
        if far > spike:
            return f"{name} {said:.4g}, {far:.1f} standard deviations above the last {len(before)} steps"
    return ""


def handle_bad_step(
    wrong: str, norm: float, keys: Sequence[Any], batches: Mapping[int, Batch], at: checkpoint.Progress, s: Settings,
    store: checkpoint.Store, rank: int,
) -> tuple[str, str]:  # fmt: skip
    """Count a bad step and keep its batches: what is said of it, and of them, where the run goes on.

    Raises:
        NonFinite: bad steps end this run, or there were too many of them.
    """
    at.skipped, at.row = at.skipped + 1, at.row + 1
    where = f"step {at.step + 1} (epoch {at.epoch}, batch {at.done}, rows {str(list(keys))[:80]})"
    aside = ""
    if store.folder:
        again = f"-again-{at.back}" if at.back else ""  # it came to this step before
        path = store.folder / "bad_batches" / f"step-{at.step + 1}{again}.{rank}.safetensors"
        state = {"seed": s.seed, "epoch": at.epoch, "batch": at.done, "rows": [str(key) for key in keys],
                 "why": wrong, "gradient": norm}  # fmt: skip
        aside = f"; its batches are in {path}" if keep_batches(path, batches, state) else ""
    if s.on_bad_step == "stop" or at.row >= ROW or at.back >= ROW:
        kept = f"the last good checkpoint is {store.last}" if store.last else "nothing was saved before"
        again = f", bad step {at.row} in a row" if at.row > 1 else ""
        again = f", and the run went back {at.back} times" if at.back else again
        raise NonFinite(f"training: {wrong} at {where}{again}; {kept}{aside}. Try a smaller lr, clip=1, "
                        "or precision=fp32")  # fmt: skip
    return f"{wrong} at {where}", aside


def keep_batches(path: Path, batches: Mapping[int, Batch], state: Mapping[str, Any]) -> bool:
    """Write the batches of a bad step, by the number of their micro-batch, unless there are many such files already."""
    if len(list(path.parent.glob("*.safetensors"))) >= KEPT:
        return False
    tensors = {f"{micro}.{f.name}": value.clone() for micro, batch in batches.items() for f in dataclasses.fields(batch)
               if isinstance(value := getattr(batch, f.name), Tensor)}  # fmt: skip
    checkpoint.write(path, tensors, log.replace_nonfinite(state))
    return True
