"""The one core, in reading order. Read bottom up: Transformer -> Stack -> Block -> Attention (attention.py), Ffn, Norm.

Letters: B batch, T queries, S keys, D width, H heads, G key/value groups, K head dim, F ffn, V vocabulary, L layers.
`step` is passed beside x and built once per call (step.py): positions, masks, cache, memory, dropout, taps.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv import spec
from qkv.core import attention, kernels
from qkv.core.attention import Attention
from qkv.core.cache import Cache
from qkv.core.dropout import Drop, no_dropout
from qkv.core.experts import Experts
from qkv.core.ffn import ACTIVATIONS, Ffn
from qkv.core.latent import Latent
from qkv.core.masks import MaskContext, build_mask
from qkv.core.norm import Norm
from qkv.core.positions import bucket_distances, compute_angles, position_in_run, resolve_positions, sinusoid
from qkv.core.step import Inputs, Mode, Step, active_tracer, pass_through


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory, feed-forward; each added to the residual stream."""

    attn_in: nn.Module
    attn_out: nn.Module
    attn_sum: nn.Module
    cross_in: nn.Module
    cross_out: nn.Module
    cross_sum: nn.Module
    ffn_in: nn.Module
    ffn_out: nn.Module
    ffn_sum: nn.Module

    def __init__(self, s: spec.Block, width: int, layer: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        if isinstance(s.attn, spec.Latent):
            self.attn = Latent(s.attn, width, layer, f"{path}.attn")
        else:
            self.attn = Attention(s.attn, width, layer, f"{path}.attn")
        if s.moe:
            self.moe = Experts(s.moe, width, f"{path}.moe")
        if s.ffn:
            self.ffn = Ffn(s.ffn, width, f"{path}.ffn")
        parts = ["attn", "ffn"]
        if s.cross:
            self.cross = Attention(s.cross, width, layer, f"{path}.cross")
            parts = ["attn", "cross", "ffn"]
        for part in parts:
            for slot, norm in (("in", s.norm_in), ("out", s.norm_out), ("sum", s.norm_sum)):
                name = f"{part}_{slot}"
                norm = None if (name, s.norms) in (("ffn_in", "one"), ("attn_in", "second")) else norm
                self.add_module(name, Norm(norm, width, f"{path}.{name}") if norm else nn.Identity())

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.tap(self, "resid_in", x)  # B T D
        h = self.attn_in(x)  # B T D
        y = self.attn_sum(self.add_update(x, h, self.attn_out(self.attn(h, step)), step))  # B T D
        if s.residual != "parallel":
            y = step.tap(self, "resid_mid", y)  # B T D
        if s.cross:
            h = self.cross_in(y)  # B T D
            y = self.cross_sum(self.add_update(y, h, self.cross_out(self.cross(h, step)), step))  # B T D
            y = step.tap(self, "resid_cross", y)  # B T D
        if s.norms != "one":
            h = self.ffn_in(x if s.residual == "parallel" else y)  # B T D
        f = (self.moe if s.moe else self.ffn)(h, step)  # B T D
        return step.tap(self, "resid_out", self.ffn_sum(self.add_update(y, h, self.ffn_out(f), step)))  # B T D

    def add_update(self, x: Tensor, h: Tensor, update: Tensor, step: Step) -> Tensor:
        """The residual connection (He et al. 2015), x or the update scaled; DeepNorm adds to h, which was read."""
        s = self.spec
        update = step.drop(update, s.dropout)  # B T D
        if s.residual == "none":
            return update  # B T D
        if s.residual == "deepnorm":
            return h * s.residual_scale + update  # B T D
        if s.residual == "scaled":
            return x + update * s.residual_scale  # B T D
        return x + update  # B T D


class Stack(nn.Module):
    """Positions, then the blocks one after another, then the final norm."""

    def __init__(self, s: spec.Stack, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        dot, wide = f"{path}." if path else "", s.embed_width or s.width
        if s.positions and s.positions.kind == "learned":
            self.positions = nn.Embedding(s.positions.size + s.positions.offset, wide)
            if s.positions.blanks == "counted":
                self.blanks = nn.Embedding(s.positions.size + s.positions.offset, wide)
        if s.segments:
            self.segments = nn.Embedding(s.segments, wide)
        if s.embed_width:
            self.embed_project = nn.Linear(wide, s.width)
        if s.relative:
            self.relative = nn.Embedding(s.relative.buckets, s.relative.heads)
        self.embed_norm = Norm(s.embed_norm, wide, f"{dot}embed_norm") if s.embed_norm else nn.Identity()
        self.layers = nn.ModuleList(Block(b, s.width, i, f"{dot}layers.{i}") for i, b in enumerate(s.blocks))
        self.final_norm = Norm(s.final_norm, s.width, f"{dot}final_norm") if s.final_norm else nn.Identity()
        parts = [a for b in s.blocks for a in (b.attn, b.cross) if a]
        self.masks = tuple(dict.fromkeys(a.mask for a in parts))
        self.rotaries = tuple(dict.fromkeys(a.rotary for a in parts if a.rotary))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = x * s.embed_scale
        if s.positions:
            if s.positions.kind == "learned":
                x = x + self.positions(step.positions.token + s.positions.offset)
                if s.positions.blanks == "counted":
                    x = x + self.blanks(step.positions.blank)
            else:
                counted = step.positions.token + s.positions.offset  # B T
                x = x + sinusoid(counted, s.width, s.positions.layout).to(x.dtype)
        if s.segments:
            x = x + self.segments(step.positions.segment)
        if s.relative:
            buckets = bucket_distances(step.cache.length, x.shape[1], s.relative, x.device)
            step = step.with_attention_bias(self.relative(buckets))
        x = self.embed_norm(x)
        if s.embed_width:
            x = self.embed_project(x)
        x = step.drop(step.tap(self, "embed", x), s.dropout)  # B T D
        for layer in self.layers:
            x = layer(x, step)  # B T D
        return step.tap(self, "final_norm", self.final_norm(x))  # B T D


class Dense(nn.Module):
    """A layer with an activation, and a norm where the spec has one."""

    def __init__(self, s: spec.Dense, width: int, out: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        self.linear = nn.Linear(width, out, bias=s.bias)
        self.norm = Norm(s.norm, out, f"{path}.norm") if s.norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        s = self.spec
        return self.norm(ACTIVATIONS[s.activation](self.linear(x)))


class Head(nn.Linear):
    """An output projection that transforms and scales the states first, and may cap the logits."""

    def __init__(self, s: spec.Head, width: int, wide: int, vocabulary: int) -> None:
        super().__init__(wide, vocabulary, bias=s.bias)
        self.spec, self.path = s, "head"
        self.dense = Dense(s.dense, width, wide, "head.dense") if s.dense else nn.Identity()

    def prepare(self, x: Tensor) -> Tensor:
        """The states that are multiplied with the vocabulary's matrix."""
        s = self.spec
        return self.dense(x) * s.scale

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  as nn.Linear has it
        return self.limit(super().forward(self.prepare(input)))

    def limit(self, logits: Tensor) -> Tensor:
        """The logits softly capped, where the spec says so."""
        s = self.spec
        return s.cap * torch.tanh(logits / s.cap) if s.cap else logits


class Labels(nn.Module):
    """One state of each text, projected to labels."""

    def __init__(self, s: spec.Labels, width: int) -> None:
        super().__init__()
        self.spec, self.path = s, "labels"
        self.dense = Dense(s.dense, width, width, "labels.dense") if s.dense else nn.Identity()
        self.out = nn.Linear(width, s.count, bias=s.bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        if s.token == "first":
            x = x[:, 0]  # B D
        elif s.token == "mean":
            at = step.positions.token  # B T
            real = (at == torch.arange(at.shape[1], device=at.device))[..., None]  # B T 1
            x = (x * real).sum(1) / real.sum(1)  # B D
        else:
            x = x[torch.arange(x.shape[0], device=x.device), step.positions.token.argmax(1)]  # B D
        return step.tap(self, "out", self.out(step.drop(self.dense(x), s.dropout)))


class Output(NamedTuple):
    """What one forward pass gives: `logits` [B, T, V] (None without a head) and the last `hidden` states [B, T, D]."""

    logits: Tensor
    hidden: Tensor


class Transformer(nn.Module):
    """Token ids to logits, in any of the four architectures that the spec describes."""

    def __init__(self, s: spec.Spec) -> None:
        super().__init__()
        self.spec, self.path = s, ""
        both, wide = bool(s.encoder and s.decoder), s.stack.embed_width or s.stack.width
        self.embed = nn.Embedding(s.vocabulary, wide)
        if s.sources:
            self.source_embed = nn.Embedding(s.sources, wide)
        if s.encoder:
            self.encoder = Stack(s.encoder, "encoder" if both else "")
        if s.decoder:
            self.decoder = Stack(s.decoder, "decoder" if both else "")
        if s.head:
            if s.head.dense or s.head.scale != 1.0 or s.head.cap:
                self.head = Head(s.head, s.stack.width, wide, s.vocabulary)
            else:
                self.head = nn.Linear(wide, s.vocabulary, bias=s.head.bias)
            self.tie()
        if s.labels:
            self.labels = Labels(s.labels, s.stack.width)

    @property
    def stack(self) -> Stack:
        """The stack whose states become logits: the decoder where there is one."""
        s = self.spec
        return self.decoder if s.decoder else self.encoder

    def tie(self) -> None:
        """Use the embedding's matrix in the head (Press & Wolf 2017), where the spec says so."""
        s = self.spec
        if s.head and s.head.kind == "tied":
            self.head.weight = self.embed.weight

    def forward(
        self, ids: Tensor, inputs: Inputs | None = None, cache: Cache | None = None, *,
        mode: Mode = "train", drop: Drop = no_dropout, logits_to_keep: int = 0,
    ) -> Output:
        """Ids [B, T] to logits [B, T, V] and states; `logits_to_keep` > 0 gives logits of the last positions only."""
        s = self.spec
        x, step = self.run_stack(ids, inputs, cache, mode=mode, drop=drop)  # B T D
        if s.head:
            return Output(step.tap(self, "logits", self.head(x[:, -logits_to_keep:])), x)
        return Output(None, x)  # type: ignore[arg-type]

    def hidden(
        self, ids: Tensor, inputs: Inputs | None = None, cache: Cache | None = None, *,
        mode: Mode = "train", drop: Drop = no_dropout,
    ) -> Tensor:
        """The last states [B, T, D] without the head."""
        return self.run_stack(ids, inputs, cache, mode=mode, drop=drop)[0]

    def classify(
        self, ids: Tensor, inputs: Inputs | None = None, *, mode: Mode = "train", drop: Drop = no_dropout
    ) -> Tensor:
        """Logits over the labels of each text [B, labels]; texts are padded on the right."""
        x, step = self.run_stack(ids, inputs, mode=mode, drop=drop)
        return self.labels(x, step)

    def encode(
        self, source: Tensor, inputs: Inputs | None = None, *, mode: Mode = "train", drop: Drop = no_dropout
    ) -> Tensor:
        """The encoder's states [B, S, D], which become the decoder's memory."""
        s = self.spec
        step = build_step(self.encoder, source, inputs, mode=mode, drop=drop)
        if s.sources:
            return self.encoder(self.source_embed(source), step)  # B T D
        return self.encoder(self.embed(source), step)  # B T D

    def run_stack(
        self, ids: Tensor, inputs: Inputs | None = None, cache: Cache | None = None, *,
        mode: Mode = "train", drop: Drop = no_dropout,
    ) -> tuple[Tensor, Step]:
        """The states that become logits, with their step; an encoder-decoder encodes its source first."""
        s = self.spec
        if s.encoder and s.decoder:
            inputs = read_source(self, inputs, mode, drop)
        stack = self.decoder if s.decoder else self.encoder
        step = build_step(stack, ids, inputs, cache, mode=mode, drop=drop)
        x = stack(self.embed(ids), step)  # B T D
        return x, step


def read_source(core: Transformer, inputs: Inputs | None, mode: Mode, drop: Drop) -> Inputs | None:
    """The inputs with the encoder's states as memory, where there is a source."""
    if inputs is None or inputs.source is None:
        return inputs
    memory = core.encode(inputs.source, Inputs(padding_mask=inputs.source_padding_mask), mode=mode, drop=drop)
    return replace(inputs, memory=memory)


def build_step(
    stack: Stack, ids: Tensor, inputs: Inputs | None = None, cache: Cache | None = None, *,
    mode: Mode = "train", drop: Drop = no_dropout,
) -> Step:
    """The step for `ids` [B, T] through `stack`; a tracer that is active in this context gets its taps."""
    inputs, cache = inputs or Inputs(), cache or Cache()
    (rows, tokens), start = ids.shape, cache.length
    slots = torch.arange(start + tokens, device=ids.device)  # S
    padding = cache.extend_mask(inputs.padding_mask, rows, tokens)
    at = slots[None, start:] if padding is None else (padding.cumsum(1) - 1).clamp_min(0)[:, start:]  # B T
    if inputs.document_ids is not None:
        at = position_in_run(inputs.document_ids)  # B T
    prefix_end = inputs.prefix_len
    if prefix_end is not None and padding is not None:
        prefix_end = prefix_end + padding.int().argmax(1)  # a left-padded row's prefix begins at its first real slot
    own = across = MaskContext(slots[start:], slots, padding, inputs.document_ids, prefix_end)
    if inputs.memory is not None:
        source = torch.arange(inputs.memory.shape[1], device=ids.device)
        across = MaskContext(slots[start:], source, inputs.source_padding_mask)
    positions = resolve_positions(at, inputs.segments, inputs.prefix_len, inputs.blank_pos)
    tracer = active_tracer.get()
    step = Step(
        positions=positions,
        angles={r: compute_angles(torch.stack(positions[:2], -1) if r.axes == 2 else at, r) for r in stack.rotaries},
        mask={m: build_mask(m, across if m.kind == "memory" else own) for m in stack.masks},
        cache=cache,
        memory=ids if inputs.memory is None else inputs.memory,
        mode=mode,
        drop=drop,
        attend=attention.attend if tracer and tracer.needs_eager_attention else cache.choose_attend(kernels.attend),
        tap=tracer.tap if tracer else pass_through,
    )
    on_forward = getattr(tracer, "on_forward", None)  # a trace also reads the call's mask, positions and mode
    return on_forward(stack, ids, step) if on_forward else step
