"""What the taps of a core are called, and what one call of a stack carried through them. Next: recording.py.

Letters: B rows, T queries, S keys, H heads, G key/value groups, K head dim.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.core.cache import Cache
from qkv.core.masks import AttentionBias
from qkv.core.model import Stack
from qkv.core.positions import Positions, bucket_distances
from qkv.core.step import Mode, Step, Tracer, active_tracer
from qkv.errors import QkvError
from qkv.spec import Block, Spec
from qkv.spec import Latent as Latents


@dataclass(eq=False)
class Call:
    """One pass of one stack: the ids that went in, the slots where they stand, and what its taps carried."""

    stack: Stack
    ids: Tensor  # B T
    start: int
    mode: Mode
    mask: dict[Any, AttentionBias]
    sources: int
    place: Positions
    across: int  # positions of the memory
    taps: Mapping[str, Tensor] = field(default_factory=dict)
    parents: list[int] | None = None  # the row of the call before that each row continues; None: its own

    @property
    def end(self) -> int:
        """The slot after its last one."""
        return self.start + self.ids.shape[1]

    def first_slot(self, name: str, x: Tensor) -> int:
        """The slot of the first position of x: the last ones where it has fewer; the memory's slots start at 0."""
        return 0 if of_memory(name) else self.end - x.shape[position_axis(x)]


@dataclass(eq=False)
class Run:
    """The calls of one stack that share a cache: a prompt and its continuation, or one plain pass."""

    stack: str
    cache: Cache
    calls: list[Call] = field(default_factory=list)

    @property
    def ids(self) -> Tensor:
        """All ids [B, T] of this run."""
        self.require_same_rows()
        return torch.cat([c.ids for c in self.calls], 1)

    @property
    def place(self) -> Positions:
        """Where each token of this run stands, each [B, T]."""
        rows = [[x.expand(c.ids.shape) for x in c.place] for c in self.calls]
        return Positions(*(torch.cat(parts, 1) for parts in zip(*rows, strict=True)))

    @property
    def phases(self) -> list[Mode]:
        """The mode in which each position was read."""
        return [c.mode for c in self.calls for _ in range(c.ids.shape[1])]

    @property
    def used(self) -> list[bool]:
        """Whether the guess at each position was there to be used: only the last one of each call is."""
        return [i == c.ids.shape[1] - 1 for c in self.calls for i in range(c.ids.shape[1])]

    def require_same_rows(self) -> None:
        """A QkvError where rows moved between calls: such values cannot be stitched by row."""
        gaps = any(a.end != b.start for a, b in zip(self.calls, self.calls[1:], strict=False))
        rows = {n for c in self.calls for n in (len(c.ids), c.sources)}
        reordered = any(c.parents not in (None, [*range(len(c.ids))]) for c in self.calls)
        if len(self.calls) > 1 and (gaps or reordered or len(rows) > 1):
            raise QkvError("rows left the batch or were reordered between calls (beams, or several texts), so "
                           "positions cannot be stitched by row; take one of its texts: t.line(0), and t.lines() "
                           "lists them")


def tap_names(spec: Spec) -> list[str]:
    """Every tap name of a core of this spec, in the order of the forward pass; `pattern` is rebuilt from q and k."""
    found: list[str] = []
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if stack is None:
            continue
        dot = f"{side}." if spec.encoder and spec.decoder else ""
        layers = [f"layers.{i}.{n}" for i, block in enumerate(stack.blocks) for n in block_names(block)]
        found += [f"{dot}{n}" for n in ("embed", *layers, "final_norm")]
    return [*found, *["logits"] * bool(spec.head), *["labels.out"] * bool(spec.labels)]


def block_names(block: Block) -> list[str]:
    """The tap names of one layer, in the order of its forward pass."""
    ends = ("score", "pattern", "z", "out")
    own = ("norm", "q_pre", "k_pre", "v", "q", "k", *ends)
    taps = ("norm", "q_pre", "q", "latent", "k_rope", "k", "v", *ends) if isinstance(block.attn, Latents) else own
    found = ["resid_in", *(f"attn.{n}" for n in taps)]
    found += [] if block.residual == "parallel" else ["resid_mid"]
    found += [*(f"cross.{n}" for n in own if n != "k"), "resid_cross"] if block.cross else []
    path, ffn = ("moe.shared", block.moe.shared) if block.moe else ("ffn", block.ffn)
    if block.moe:
        found += [f"moe.{n}" for n in ("norm", "logits", "index", "weight", "out")] + ["moe.shared"] * bool(ffn)
    if ffn:
        found += [f"{path}.{n}" for n in ("norm", "up", *["gate"] * ffn.gated, "act", "out")]
    return [*found, "resid_out"]


def of_memory(name: str) -> bool:
    """Whether a tap is made once from the memory and not from each token."""
    return ".cross." in name and name.endswith((".k_pre", ".v"))


def position_axis(x: Tensor) -> int:
    """The axis of positions: [B, T, D] or [B, H, T, K]."""
    return 2 if x.dim() == 4 else 1


@contextmanager
def use_tracer(tracer: Tracer | None) -> Iterator[None]:
    """What runs inside is heard by this tracer alone, or by none."""
    token = active_tracer.set(tracer)
    try:
        yield
    finally:
        active_tracer.reset(token)


@torch.no_grad()
def collect_masks(stack: Stack, ids: Tensor, step: Step) -> dict[Any, AttentionBias]:
    """The masks of a call with what the stack's relative positions add to its scores."""
    near = stack.spec.relative
    if near is None:
        return dict(step.mask)
    buckets = bucket_distances(step.cache.length, ids.shape[1], near, ids.device)
    return step.with_attention_bias(stack.relative(buckets)).mask


def open_bias(seen: AttentionBias, queries: Sequence[int], keys: int, heads: Sequence[int] | None = None) -> Tensor:
    """What a mask adds to the scores of some queries of its call and some heads (None: all) [B or 1, H or 1, T, S]."""
    if seen.bias is not None:
        bias = seen.bias if heads is None or seen.bias.shape[1] == 1 else seen.bias[:, heads]
        return bias if bias.shape[2] == 1 else bias[:, :, list(queries)]
    future = (torch.arange(keys) > torch.tensor(queries)[:, None]) & seen.causal  # T S
    return torch.zeros(future.shape).masked_fill(future, torch.finfo(torch.float32).min)[None, None]


def compute_pattern(q: Tensor, k: Tensor, bias: Tensor, scale: float, cap: float | None = None) -> Tensor:
    """softmax(q kᵀ · scale + bias) in fp32: q [B, H, T, K] and k [B or fewer, G, S, K] -> [B, H, T, S].

    A `cap` c keeps the products within c·tanh(product/c). Key/value groups are views; hypotheses of one source share
    its row of k.
    """
    copies = q.shape[0] // k.shape[0]
    k = k.float().repeat_interleave(copies, 0) if copies > 1 else k.float()
    score = (q.float().unflatten(1, (k.shape[1], -1)) @ k[:, :, None].mT).flatten(1, 2) * scale  # B H T S
    score = cap * torch.tanh(score / cap) if cap else score  # B H T S
    return score.add_(bias.to(score.device).repeat_interleave(copies if len(bias) > 1 else 1, 0)).softmax(-1)
