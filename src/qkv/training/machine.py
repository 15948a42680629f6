"""What this machine can do: bf16 or fp32, all threads or one, its fastest product, what a step takes, what fits in.

The precision is asked of the device and never measured: equal runs are equal, whatever else the machine does.
"""

import dataclasses
import math
import os
import statistics
import time
from typing import Any

import torch
from torch import nn

from qkv import cost
from qkv.adapt.onednn_linear import multiply
from qkv.core.dropout import make_dropout
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.data.collate import Batch
from qkv.devices import parse_device, read_free_memory
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.spec import Spec
from qkv.training.control import Progress
from qkv.training.losses import token_loss
from qkv.training.optim import make_optimizer
from qkv.training.settings import Settings

BF16_UNITS = ("amx_bf16", "avx512_bf16")  # the units, as PyTorch calls them, that multiply bf16
WIDE = 128  # the width from which bf16 pays: in narrower models the casts around the products cost what these gain
CROWDED = 1.2  # how much longer all threads must take than one to be reported
GRAIN = 32  # lengths are rounded up to so many: few of them are counted
SIDES = {"cpu": 1024, "cuda": 8192}  # of the matrices that are multiplied
ROUNDS, STEPS = 5, 4  # products and steps that are timed
CERTAIN = 20_000_000  # weights, about, that are trained in any memory


def choose_precision(core: Transformer) -> str:
    """bf16 where the device has units for its products and the core is wide enough to gain by them, else fp32."""
    device = core.embed.weight.device
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
        known = torch.cpu.get_capabilities() if device.type == "cpu" and allowed in ("ALL", "DEFAULT") else {}
        fast = any(known.get(unit) for unit in BF16_UNITS)
    return "bf16" if fast and core.spec.stack.width >= WIDE else "fp32"


def warn_oversubscribed(core: Transformer, batch: Batch, precision: str) -> list[Message]:
    """The note if the threads of this process hinder each other: others use the cores, or there is little to share."""
    count = torch.get_num_threads()
    if count == 1 or core.embed.weight.device.type != "cpu":
        return []
    part, times = take_rows(batch, max(1, len(batch.target) // 8)), {1: float("inf"), count: float("inf")}
    try:
        for _ in range(2):
            for threads in times:
                torch.set_num_threads(threads)
                times[threads] = min(times[threads], time_pass(core, part, precision == "bf16"))
    finally:
        torch.set_num_threads(count)
    ratio = times[count] / times[1]
    if ratio < CROWDED:
        return []
    return [Message("{count} threads take {times:.1f} times as long as one here: is something else using the cores, "
                    "or the model too small to share? --threads 1 is faster now", count=count, times=ratio)]


def time_pass(core: Transformer, batch: Batch, low: bool) -> float:
    """The seconds of one forward and backward pass, in bf16 autocast where `low`; the gradients are dropped."""
    device, start = core.embed.weight.device, time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        loss = token_loss(core, batch, drop=make_dropout(0, device=device))
    loss.backward()
    spent = time.perf_counter() - start
    nn.Module.zero_grad(core, set_to_none=True)
    return spent


def time_training_step(
    spec: Spec, optimizer: Any, rows: int, lengths: tuple[int, int], seconds: float = 0.0
) -> float:
    """The seconds of a training step of a model on this machine: the median of a few, on drawn tokens.

    `lengths` are those of a source and of a target (0: without); a model without a head has labels to tell. Steps are
    made for so many `seconds` at least, since others who use a machine come and go.
    """
    refuse_oversized(spec, "auto")
    core = Transformer(spec).to(parse_device("auto"))
    updates, device = make_optimizer(core, Settings(steps=1, optimizer=optimizer)), core.embed.weight.device
    source, target = (torch.randint(0, spec.vocabulary, (rows, max(1, length)), device=device) for length in lengths)
    both, low, spent = bool(spec.encoder and spec.decoder), choose_precision(core) == "bf16", list[float]()
    while len(spent) <= STEPS or sum(spent) < seconds:
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            made = core(target if lengths[1] else source, Inputs(source=source) if both else Inputs(), mode="train")
        if spec.head:
            nn.functional.cross_entropy(made.logits.flatten(0, 1).float(), target.flatten()).backward()
        else:
            made.hidden.float().square().mean().backward()
        updates.step()
        updates.zero_grad()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[1:])


def take_rows(batch: Batch, rows: int) -> Batch:
    """About the first rows of a batch: all those of a text, or none."""
    each = batch.orders * batch.choices
    texts = max(1, rows // each)
    cut = {k: t[: texts if k == "classes" else texts * each] for k, t in batch.rows.items()}
    return dataclasses.replace(batch, **cut)


class Speed:
    """How fast a run goes: tokens a second, and its share of what this machine's matrix products reach.

    The floating-point operations of a training step are three times those forward, for what is real and not padding;
    an encoder is taken to read as many tokens as the decoder writes, and what is computed again is not counted.
    """

    def __init__(self, core: Transformer) -> None:
        self.core, self.by_length, self.device = core, dict[int, int](), core.embed.weight.device.type
        self.operations, self.peak, self.shown = 0.0, 0.0, (0, 0.0)  # since it was shown, at (tokens, seconds)

    def count(self, batch: Batch) -> float:
        """The operations of one forward and backward pass."""
        rows, length = batch.target.shape
        real = rows * length if batch.target_real is None else int(batch.target_real.sum())
        whole = min(-(-length // GRAIN) * GRAIN, self.core.spec.context or 1 << 30)
        if whole not in self.by_length:
            self.by_length[whole] = cost.count_flops(self.core, whole).prefill
        return 3.0 * real * self.by_length[whole]

    def measure(self, at: Progress) -> dict[str, float]:
        """What an event says of the speed since the last one."""
        tokens, seconds = self.shown
        spent = max(at.seconds - seconds, 1e-9)
        rate = self.operations / spent
        if rate > self.peak:  # at first, and where something else had the machine when it was measured
            self.peak = max(rate, measure_peak(self.device, at.precision))
        self.shown, self.operations = (at.tokens, at.seconds), 0.0
        share = rate / self.peak if rate else 0.0
        return {"tokens_per_second": (at.tokens - tokens) / spent, "seconds": at.seconds, "of_peak": share}


def measure_peak(device: str, precision: str) -> float:
    """Operations a second of one large matrix product in fp32 or bf16: the best of some, about 0.1 s."""
    side = SIDES.get(device, 2048)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.full((side, side), 0.5, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        float(multiply(a, a)[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best


def count_weights(spec: Spec) -> int:
    """The weights of a model whose blocks are alike: those of one with a block, and the rest of its blocks."""
    stacks = {name: stack for name in ("encoder", "decoder") if (stack := getattr(spec, name))}
    layers = min(len(stack.blocks) for stack in stacks.values())
    one, two = (
        sum(map(math.prod, cost.shapes(dataclasses.replace(spec, **{
            name: dataclasses.replace(stack, blocks=stack.blocks[: len(stack.blocks) - layers + n])
            for name, stack in stacks.items()})).values()))
        for n in (1, min(2, layers))
    )
    return one + (layers - 1) * (two - one)


def refuse_oversized(spec: Spec, device: str) -> None:
    """QkvError where the weights of a new model, their gradients and moments alone take more memory than is free."""
    free, width, layers = read_free_memory(device), spec.stack.width, len(spec.stack.blocks)
    places = spec.stack.positions.size if spec.stack.positions else 0
    weights = width * (layers * width + places + spec.vocabulary)  # there are more, at any rate
    for block in spec.stack.blocks[:1]:
        experts, ffn = (block.moe.num_experts, block.moe.expert) if block.moe else (1, block.ffn)
        weights += width * layers * experts * (ffn.width if ffn else 0)
    if free is None or weights < CERTAIN:
        return
    if 16 * weights < free:
        weights = count_weights(spec)
    if (need := 16 * weights) > free:  # four numbers of four bytes each
        raise QkvError("a model of {weights:,} parameters needs {need:.1f} GB to train, and {free:.1f} GB are free; "
                       "make model.width, model.layers, model.context or tokenizer.size smaller", weights=weights,
                       need=need / 1e9, free=free / 1e9)
