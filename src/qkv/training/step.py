"""One optimiser step: the losses of its micro-batches forward and backward, their gradients together, the update.

What is bad about a step is a function of what all ranks know and a checkpoint holds, so all decide alike.
Order and dropout are functions of (seed, epoch, batch, micro-batch), so a resumed run repeats the uninterrupted one.
Where several processes train (distributed.py), each does this on its share of a step. Next: losses.py, optim.py.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from qkv.adapt.onednn_linear import pack_weights
from qkv.core.dropout import Drop, make_dropout, no_dropout
from qkv.core.model import Transformer
from qkv.data.collate import Batch
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training import checkpoint, distributed, fsdp, log, optim
from qkv.training.blocks import Blocks
from qkv.training.load_balancing import move_router_biases
from qkv.training.losses import step_loss
from qkv.training.machine import Speed
from qkv.training.plan import Plan
from qkv.training.scheduled_sampling import replace_inputs, sampling_share
from qkv.training.settings import Settings

WINDOW = 64  # good steps that a step is compared with
ENOUGH = 16  # of them, before which nothing is a spike
ROW = 3  # bad steps one after another, after which a run that skips them stops all the same
KEPT = 20  # files of bad batches at most


@dataclass(frozen=True)
class Gradients:
    """What a step's passes gave beside the gradients: its mean loss, what it learnt from, its experts' loads [L, E]."""

    loss: float
    tokens: int  # of all processes, and so `empty`, the micro-batches without any
    empty: int
    batches: dict[int, Batch]  # this process's own, by the number of their micro-batch
    loads: Tensor


class OptimizerStep:
    """What makes the steps of a run: the weights that move, their optimiser, the processes that share the batches."""

    def __init__(self, core: Transformer, plan: Plan, settings: Settings) -> None:
        self.core, self.plan, self.settings = core, plan, settings
        self.device, self.ranks = core.embed.weight.device, distributed.current_ranks()
        self.shards: fsdp.Sharded | None = None
        if settings.shard and self.ranks.size > 1:
            self.ranks.broadcast(core)
            self.shards = fsdp.Sharded(core, settings)
        self.learner = self.shards.core if self.shards else core  # whose weights move
        pack_weights(self.learner)
        self.blocks = Blocks(self.learner, settings, self.device)
        self.optimizer = optim.make_optimizer(self.learner, settings)
        self.weights = list(optim.named_weights(self.learner).values())
        self.micro = settings.accumulate * self.ranks.size  # micro-batches in a step
        self.speed = Speed(core.spec, self.device.type)
        counts = [b.moe.num_experts for b in core.spec.stack.blocks if b.moe]
        self.loads = torch.zeros(len(counts), max(counts, default=0))  # L E, tokens of the last step by expert

    def compute_gradients(self, keys: Sequence[Any], at: checkpoint.Progress) -> Gradients:
        """The gradients of a step: those of all its micro-batches, divided once by all their tokens."""
        s, mine = self.settings, range(self.ranks.rank, len(keys), self.ranks.size)
        batches = [self.plan.make(keys[micro]).to(self.device) for micro in mine]
        counts = self.ranks.all_reduce_sum([sum(b.tokens for b in batches), sum(b.tokens == 0 for b in batches)])
        tokens, empty = map(int, counts)
        loss, loads = 0.0, torch.zeros_like(self.loads)
        for micro, batch in zip(mine, batches, strict=True):
            drop = make_dropout(s.seed, at.epoch, at.done, micro, device=self.device, traceable=self.blocks.compiles)
            with self.autocast(at):
                if s.scheduled_sampling:
                    part = sampling_share(at.step, most=s.scheduled_sampling, ramp=s.scheduled_sampling_ramp)
                    batch = replace_inputs(self.core, batch, part, s.seed, at.epoch, at.done, micro)
                micro_loss, busy = self.loss(batch, keys[micro], at, drop)
                micro_loss = micro_loss / max(tokens, 1)
            micro_loss.backward()
            loss += float(micro_loss.detach())
            self.speed.operations += self.speed.count(batch) * (2 if s.rdrop else 1)
            loads += 0 if busy is None else busy.cpu()
        loss = self.sum_ranks(loss, keys, at)
        return Gradients(loss, tokens, empty, dict(zip(mine, batches, strict=True)), loads)

    def autocast(self, at: checkpoint.Progress) -> torch.autocast:
        """The precision of the run's products."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=at.precision == "bf16")

    def loss(self, batch: Batch, key: Any, at: checkpoint.Progress, drop: Drop) -> tuple[Tensor, Tensor | None]:
        """The loss of a micro-batch and the loads of its experts; an error of a label names the rows of the data."""
        s, loss = self.settings, self.shards or partial(step_loss, self.core)
        try:
            with self.blocks.learning():
                return loss(
                    batch, smoothing=s.label_smoothing, aux_loss_weight=s.moe_aux_loss, rdrop=s.rdrop, drop=drop
                )
        except QkvError as e:
            place = Message("step {step} (epoch {epoch}, rows {rows})", step=at.step + 1, epoch=at.epoch,
                            rows=str(key)[:80])
            raise QkvError("training: {place}: {e}", place=place, e=e) from e

    def sum_ranks(self, loss: float, keys: Sequence[Any], at: checkpoint.Progress) -> float:
        """The loss of all ranks, whose gradients are summed too."""
        if not self.shards:
            return self.ranks.all_reduce_gradients(self.weights, loss)
        if 0 < len(keys) % self.ranks.size <= self.ranks.rank:  # parts of weights are gathered by all ranks or by none
            with self.autocast(at):
                spare, _ = self.loss(self.plan.make(keys[0]).to(self.device), keys[0], at, no_dropout)
            (spare * 0).backward()
        return self.ranks.all_reduce_sum([loss])[0]

    def clip(self) -> float:
        """Scale the gradients down to the largest norm of the settings; gives the norm before."""
        norm = optim.clip_gradients(self.weights, self.settings.clip)
        return float(fsdp.gather_tensor(norm) if self.shards else norm)

    def update(self, lr: float, at: checkpoint.Progress, loads: Tensor) -> None:
        """Move the weights by their gradients, and the biases of routers by the loads of their experts."""
        for group in self.optimizer.param_groups:
            group["lr"], group["low"] = lr, at.precision == "bf16"  # low: Muon's products in bf16
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if loads.numel():
            self.loads = torch.tensor(self.ranks.all_reduce_sum(loads.flatten().tolist())).view_as(loads)
            move_router_biases(self.learner, self.loads, rate=self.settings.moe_bias_lr)


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
    wrong: str, norm: float, keys: Sequence[Any], batches: Mapping[int, Batch], at: checkpoint.Progress, s: Settings,
    store: checkpoint.Store, rank: int,
) -> tuple[str, str]:
    """Count a bad step and keep its batches: the notes on both, if the run continues.

    Raises:
        NonFinite: bad steps end this run, or there were too many of them.
    """
    at.skipped, at.row = at.skipped + 1, at.row + 1
    where = Message("step {step} (epoch {epoch}, batch {batch}, rows {rows})", step=at.step + 1, epoch=at.epoch,
                    batch=at.done, rows=str(list(keys))[:80])
    aside = Message()
    if store.folder:
        again = f"-again-{at.back}" if at.back else ""  # it came to this step before
        path = store.folder / "bad_batches" / f"step-{at.step + 1}{again}.{rank}.safetensors"
        state = {"seed": s.seed, "epoch": at.epoch, "batch": at.done, "rows": [str(key) for key in keys],
                 "why": wrong, "gradient": norm}
        if keep_batches(path, batches, state):
            aside = Message("; its batches are in {path}", path=path)
    if s.on_bad_step == "stop" or at.row >= ROW or at.back >= ROW:
        kept = Message("nothing was saved before")
        if store.last:
            kept = Message("the last good checkpoint is {last}", last=store.last)
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
    checkpoint.write(path, tensors, log.replace_nonfinite(state))
    return True
