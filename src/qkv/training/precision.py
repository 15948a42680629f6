"""Whether bf16 pays on this machine, and all its threads: both are tried on a piece of a real batch, never assumed.

Matrix products alone mislead: they may be four times as fast while the casts around them eat the gain.
"""

import dataclasses
import time

import torch
from torch import nn

from qkv.core.dropout import make_dropout
from qkv.core.model import Transformer
from qkv.data.collate import Batch
from qkv.training.losses import token_loss

CROWDED = 1.2  # how much longer all threads take than one where it is told
WORTH = 1.1  # how much faster bf16 must be to be chosen: its rounding is not free


def choose(wanted: str, core: Transformer, batch: Batch, *, rounds: int = 2) -> tuple[str, float | None]:
    """`wanted`, or for `auto` the faster of fp32 and bf16 autocast, and by how much bf16 is faster (about a second).

    The core's weights stay as they are and its gradients are dropped.
    """
    if wanted != "auto":
        return wanted, None
    piece = part(batch, max(1, len(batch.target) // 4))
    times = {True: float("inf"), False: float("inf")}
    for _ in range(1 + rounds):  # in turn, so that a neighbour's work slows both; the first round warms up
        for low in times:
            times[low] = min(times[low], passed(core, piece, low))
    gain = times[False] / times[True]
    return ("bf16" if gain >= WORTH else "fp32"), gain


def slower(core: Transformer, batch: Batch, *, low: bool) -> float:
    """How many times as long as one CPU thread all of them take: above 1 where others use the cores, or there is little
    to share.
    """
    count, piece = torch.get_num_threads(), part(batch, max(1, len(batch.target) // 8))
    if count == 1 or core.embed.weight.device.type != "cpu":
        return 1.0
    times = {1: float("inf"), count: float("inf")}
    try:
        for _ in range(2):
            for threads in times:
                torch.set_num_threads(threads)
                times[threads] = min(times[threads], passed(core, piece, low))
    finally:
        torch.set_num_threads(count)
    return times[count] / times[1]


def passed(core: Transformer, batch: Batch, low: bool) -> float:
    """The seconds of one forward and backward pass, in bf16 autocast where `low`."""
    device, start = core.embed.weight.device, time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        loss = token_loss(core, batch, drop=make_dropout(0, device=device))
    loss.backward()
    float(loss.detach())  # waits for the device
    spent = time.perf_counter() - start
    nn.Module.zero_grad(core, set_to_none=True)
    return spent


def part(batch: Batch, rows: int) -> Batch:
    """About the first rows of a batch: all those of a text, or none."""
    each = batch.orders * batch.choices
    texts = max(1, rows // each)
    cut = {k: t[: texts if k == "classes" else texts * each] for k, t in batch.rows.items()}
    return dataclasses.replace(batch, **cut)
