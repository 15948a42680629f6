"""What there is to train on, and what it will cost: measured on a few steps of a copy before the first real one."""

import copy
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.core.dropout import dropper
from qkv.core.model import Transformer
from qkv.data.collate import Batch
from qkv.training import optim, precision
from qkv.training.losses import token_loss
from qkv.training.settings import Settings


@dataclass(frozen=True)
class Plan:
    """The batches of a run: `order` gives an epoch's keys as a function of its number, `make` the tensors of a key.

    `identity` says in JSON which data and tokenizer these are; a checkpoint of others is not resumed.
    """

    order: Callable[[int], Sequence[Any]]
    make: Callable[[Any], Batch]
    identity: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was left out, to be told before the run


@dataclass(frozen=True)
class Estimate:
    """What a run will take: weights, bytes at its peak, seconds a step and in all, and at what precision."""

    parameters: int
    steps: int
    steps_per_epoch: int
    peak_bytes: int
    seconds_per_step: float
    seconds: float
    tokens_per_second: float
    precision: str


def estimate(core: Transformer, plan: Plan, settings: Settings, *, steps: int = 3) -> Estimate:
    """The cost of a run, from a few real steps on a copy of `core`, the largest batch first; nothing is changed."""
    core, device = copy.deepcopy(core), core.embed.weight.device
    keys, n = list(plan.order(0)), settings.accumulate
    chosen, _ = precision.choose(settings.precision, core, placed(plan.make(keys[0]), device))
    optimizer, weights = optim.make(core, settings), list(optim.named_weights(core).values())
    largest = max(keys[:: max(1, len(keys) // 64)], key=lambda k: plan.make(k).target.numel())
    sample = [largest, *keys[:: max(1, len(keys) // max(1, steps - 1))][: max(1, steps - 1)]]
    spent: list[tuple[float, int]] = []
    saved = Saved()
    for i, key in enumerate(sample):
        start, batch = time.perf_counter(), placed(plan.make(key), device)
        with saved.hooks(i == 0), torch.autocast(device.type, torch.bfloat16, enabled=chosen == "bf16"):
            loss = token_loss(core, batch, smoothing=settings.smoothing, drop=dropper(0, 0, i, 0, device=device))
        (loss / max(1, batch.tokens)).backward()
        optim.clip(weights, settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        spent.append((time.perf_counter() - start, batch.tokens))
    kept = spent[1:]  # the first warms up and carries the hooks
    each = n * sum(s for s, _ in kept) / len(kept)
    per_epoch = -(-len(keys) // n)
    total = min(x for x in (settings.steps, settings.epochs * per_epoch, 10**12) if x)
    total = total if total < 10**12 else round(settings.seconds / each)
    own = sum(p.numel() * p.element_size() for p in core.parameters())
    return Estimate(
        parameters=sum(p.numel() for p in core.parameters()), steps=total, steps_per_epoch=per_epoch,
        peak_bytes=resident() + 3 * own + saved.bytes, seconds_per_step=each,
        seconds=min(total * each, settings.seconds or total * each),
        tokens_per_second=sum(t for _, t in kept) / max(1e-9, sum(s for s, _ in kept)), precision=chosen,
    )  # fmt: skip


class Saved:
    """Counts the bytes that the forward pass keeps for the way back, each storage once."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self.storages.values())

    def hooks(self, on: bool) -> torch.autograd.graph.saved_tensors_hooks:
        def pack(t: Tensor) -> Tensor:
            if on:
                storage = t.untyped_storage()
                self.storages[storage.data_ptr()] = storage.nbytes()
            return t

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)


def resident() -> int:
    """Bytes of the process before the first step: Python, torch, the data, the weights; 0 where it cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


def placed(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device; as it is where they are there already."""
    if batch.target.device == device:
        return batch
    tensors = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    return dataclasses.replace(batch, **{k: t.to(device) for k, t in tensors.items() if isinstance(t, Tensor)})
