"""One optimiser step: the losses of its micro-batches forward and backward, their gradients together, the update.

Order and dropout are functions of (seed, epoch, batch, micro-batch), so a resumed run repeats the uninterrupted one.
Where several processes train (distributed.py), each does this on its share of a step. Next: losses.py, optim.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.adapt.onednn_linear import pack_weights
from qkv.core.dropout import Drop, make_dropout, no_dropout
from qkv.core.model import Block, Transformer
from qkv.core.step import Step, active_tracer
from qkv.data.collate import Batch
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training import distributed, fsdp, optim
from qkv.training.control import Progress
from qkv.training.load_balancing import move_router_biases
from qkv.training.losses import step_loss
from qkv.training.machine import Speed
from qkv.training.plan import Plan
from qkv.training.scheduled_sampling import replace_inputs, sampling_share
from qkv.training.settings import Settings

Forward = Callable[[Tensor, Step], Tensor]


@dataclass(frozen=True)
class Gradients:
    """What a step's passes gave beside the gradients: its mean loss, what it learnt from, its experts' loads [L, E]."""

    keys: Sequence[Any]  # of its micro-batches
    batches: dict[int, Batch]  # this process's own, by the number of their micro-batch
    loss: float
    norm: float  # of all gradients together, before they are clipped
    tokens: int  # of all processes, and so `empty`, the micro-batches without any
    empty: int
    loads: Tensor


class OptimizerStep:
    """What makes the steps of a run: the weights that move, their optimiser, the processes that share the batches."""

    def __init__(self, core: Transformer, plan: Plan, settings: Settings) -> None:
        self.core, self.plan, self.settings = core, plan, settings
        self.device, self.ranks = core.embed.weight.device, distributed.current_ranks()
        self.together = self.ranks.size > 1
        self.barrier = self.ranks.barrier_on_error if self.together else nullcontext
        self.shards: fsdp.Sharded | None = None
        self.cut = settings.tensor_parallel if self.together else 1  # processes that read the same batches
        self.replica, self.replicas = self.ranks.rank // self.cut, self.ranks.size // self.cut
        if (settings.shard or self.cut > 1) and self.together:
            self.ranks.broadcast(core)
            self.shards = fsdp.Sharded(core, settings)
        self.learner = self.shards.core if self.shards else core  # whose weights move
        if self.cut == 1:
            pack_weights(self.learner)
        self.blocks = Blocks(self.learner, settings, self.device)
        self.optimizer = optim.make_optimizer(self.learner, settings)
        self.weights = list(optim.named_weights(self.learner).values())
        self.micro = settings.accumulate * self.replicas  # micro-batches in a step
        self.speed = Speed(core)
        counts = [b.moe.num_experts for b in core.spec.stack.blocks if b.moe]
        self.loads = torch.zeros(len(counts), max(counts, default=0))  # L E, tokens of the last step by expert

    def compute_gradients(self, keys: Sequence[Any], at: Progress) -> Gradients:
        """The gradients of a step: those of all its micro-batches, divided once by all their tokens."""
        s, mine = self.settings, range(self.replica, len(keys), self.replicas)
        batches = {micro: self.plan.make(keys[micro]).to(self.device) for micro in mine}
        tokens, empty = sum(b.tokens for b in batches.values()), sum(b.tokens == 0 for b in batches.values())
        if self.together:
            tokens, empty = (int(n) // self.cut for n in self.ranks.all_reduce_sum([tokens, empty]))
        loss, loads = 0.0, torch.zeros_like(self.loads)
        for micro, batch in batches.items():
            drop = make_dropout(s.seed, at.epoch, at.done, micro, device=self.device, traceable=self.blocks.compiles)
            micro_loss, busy = self.loss(batch, keys[micro], at, drop, micro)
            micro_loss = micro_loss / max(tokens, 1)
            micro_loss.backward()
            loss += float(micro_loss.detach())
            self.speed.operations += self.speed.count(batch) * (2 if s.rdrop else 1) / self.cut
            loads += 0 if busy is None else busy.cpu()
        if self.together:
            loss = self.sum_ranks(loss, keys, at)
        self.norm = fsdp.measure_norm([p.grad for p in self.weights if p.grad is not None])
        return Gradients(keys, batches, loss, float(self.norm), tokens, empty, loads)

    def loss(self, batch: Batch, key: Any, at: Progress, drop: Drop, micro: int = 0) -> tuple[Tensor, Tensor | None]:
        """The loss of a micro-batch and the loads of its experts; an error of a label names the rows of the data."""
        s, loss = self.settings, self.shards or partial(step_loss, self.core)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=at.precision == "bf16"):
            if s.scheduled_sampling:
                part = sampling_share(at.step, most=s.scheduled_sampling, ramp=s.scheduled_sampling_ramp)
                batch = replace_inputs(self.core, batch, part, s.seed, at.epoch, at.done, micro)
            try:
                with self.blocks.learning():
                    return loss(batch, smoothing=s.label_smoothing, aux_loss_weight=s.moe_aux_loss, rdrop=s.rdrop,
                                drop=drop)
            except QkvError as e:
                place = Message("step {step} (epoch {epoch}, rows {rows})", step=at.step + 1, epoch=at.epoch,
                                rows=str(key)[:80])
                raise QkvError("training: {place}: {e}", place=place, e=e) from e

    def sum_ranks(self, loss: float, keys: Sequence[Any], at: Progress) -> float:
        """The loss of all ranks, whose gradients are summed too."""
        if not self.shards:
            return self.ranks.all_reduce_gradients(self.weights, loss)
        if 0 < len(keys) % self.replicas <= self.replica:  # parts of weights are gathered by all ranks or by none
            spare, _ = self.loss(self.plan.make(keys[0]).to(self.device), keys[0], at, no_dropout)
            (spare * 0).backward()
        if self.cut > 1:
            self.shards.sum_gradients()
        return self.ranks.all_reduce_sum([loss])[0] / self.cut

    def update(self, lr: float, at: Progress, made: Gradients) -> None:
        """Clip the gradients, move the weights by them, and the biases of routers by the loads of their experts."""
        if self.settings.clip:
            for some in fsdp.group_by_mesh(self.weights):
                nn.utils.clip_grads_with_norm_(some, self.settings.clip, self.norm)
        for group in self.optimizer.param_groups:
            group["lr"], group["low"] = lr, at.precision == "bf16"  # low: Muon's products in bf16
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if made.loads.numel():
            loads = made.loads.flatten().tolist()
            self.loads = torch.tensor(self.ranks.all_reduce_sum(loads) if self.together else loads)
            self.loads = self.loads.view_as(made.loads) / self.cut
            move_router_biases(self.learner, self.loads, rate=self.settings.moe_bias_lr)


class Blocks:
    """How the blocks of a core run within `learning`, and nowhere else: as they are, compiled, or made again on the way
    back. All blocks of one shape share one graph, and a second one serves every other length.
    """

    def __init__(self, core: nn.Module, settings: Settings, device: torch.device, backend: str = "inductor") -> None:
        self.compiles = settings.compile == "blocks" or (settings.compile == "auto" and device.type == "cuda")
        self.fast: dict[Block, Forward] = {}
        for block in (m for m in core.modules() if isinstance(m, Block)):
            run: Forward = block.forward
            if self.compiles and not block.spec.moe:  # routers are listened to, and a graph hears nothing
                run = torch.compile(run, backend=backend)
            if settings.recompute == "blocks":
                run = recompute_block(run)
            if run != block.forward:
                self.fast[block] = run

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Within it blocks run in their fast way, unless something listens to the taps."""
        blocks = {} if active_tracer.get() else self.fast
        for block, run in blocks.items():
            block.forward = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            for block in blocks:
                del block.forward


def recompute_block(run: Forward) -> Forward:
    """`run`, of which only its input is kept; on the way back it is made again, its dropout too (Chen et al. 2016)."""

    def call_block(x: Tensor, step: Step) -> Tensor:
        marks: list[Tensor] = []

        def replay_dropout(x: Tensor) -> Tensor:
            if step.drop is not no_dropout:
                if marks:
                    step.drop.set_state(marks[0])  # type: ignore[attr-defined]
                else:
                    marks.append(step.drop.get_state())  # type: ignore[attr-defined]
            return run(x, step)

        return checkpoint(replay_dropout, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]

    return call_block
