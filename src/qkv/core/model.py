"""The one core, in reading order. Read bottom up: Transformer -> Stack -> Block -> Attention (attention.py), Ffn, Norm.

Letters: B batch, T queries, S keys, D width, H heads, G key/value groups, K head dim, F ffn, V vocabulary, L layers.
`step` travels beside x and is built once per call (step.py): positions, masks, cache, memory, dropout, taps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv import spec
from qkv.core.attention import Attention, Norm
from qkv.core.experts import Experts
from qkv.core.latent import Latent
from qkv.core.positions import buckets, sinusoid
from qkv.core.step import Step

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


class Ffn(nn.Module):
    """Each position alone: up, activation (and gate), down."""

    def __init__(self, s: spec.Ffn, width: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        if s.gated:
            self.gate = nn.Linear(width, s.width, bias=s.bias)
        self.up = nn.Linear(width, s.width, bias=s.bias)
        self.down = nn.Linear(s.width, width, bias=s.bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.tap(self, "norm", x)  # B T D
        up = step.tap(self, "up", self.up(x))  # B T F
        if s.gated:
            gate = step.tap(self, "gate", self.gate(x))  # B T F
            act = ACTIVATIONS[s.activation](gate) * up  # B T F
        else:
            act = ACTIVATIONS[s.activation](up)  # B T F
        act = step.tap(self, "act", act)  # B T F
        return step.tap(self, "out", self.down(step.drop(act, s.dropout)))  # B T D


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
                self.add_module(name, Norm(norm, width, f"{path}.{name}") if norm else nn.Identity())

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.tap(self, "resid_in", x)  # B T D
        if s.residual == "normed":
            x = self.attn_in(x)  # B T D
            x = step.tap(self, "resid_mid", x * s.carry + step.drop(self.attn(x, step), s.dropout))  # B T D
            x = self.ffn_in(x)  # B T D
            f = (self.moe if s.moe else self.ffn)(x, step)  # B T D
            return step.tap(self, "resid_out", x * s.carry + step.drop(f, s.dropout))  # B T D
        a = self.attn_out(self.attn(self.attn_in(x), step))  # B T D
        if s.residual == "parallel":
            f = self.ffn_out((self.moe if s.moe else self.ffn)(self.ffn_in(x), step))  # B T D
            return step.tap(self, "resid_out", x + step.drop(a, s.dropout) + step.drop(f, s.dropout))  # B T D
        x = step.tap(self, "resid_mid", self.attn_sum(self.add(x, a, step)))  # B T D
        if s.cross:
            c = self.cross_out(self.cross(self.cross_in(x), step))  # B T D
            x = step.tap(self, "resid_cross", self.cross_sum(self.add(x, c, step)))  # B T D
        f = self.ffn_out((self.moe if s.moe else self.ffn)(self.ffn_in(x), step))  # B T D
        return step.tap(self, "resid_out", self.ffn_sum(self.add(x, f, step)))  # B T D

    def add(self, x: Tensor, update: Tensor, step: Step) -> Tensor:
        """The residual connection (He et al. 2015): what was there, plus what the sub-layer says."""
        s = self.spec
        if s.residual == "none":
            return step.drop(update, s.dropout)  # B T D
        return x + step.drop(update, s.dropout)  # B T D


class Stack(nn.Module):
    """Positions, then the blocks one after another, then the final norm."""

    def __init__(self, s: spec.Stack, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        dot = f"{path}." if path else ""
        if s.positions and s.positions.kind == "learned":
            self.positions = nn.Embedding(s.positions.size + s.positions.offset, s.width)
            if s.positions.blanks == "counted":
                self.blanks = nn.Embedding(s.positions.size + s.positions.offset, s.width)
        if s.segments:
            self.segments = nn.Embedding(s.segments, s.width)
        if s.relative:
            self.relative = nn.Embedding(s.relative.buckets, s.relative.heads)
        self.embed_norm = Norm(s.embed_norm, s.width, f"{dot}embed_norm") if s.embed_norm else nn.Identity()
        self.layers = nn.ModuleList(Block(b, s.width, i, f"{dot}layers.{i}") for i, b in enumerate(s.blocks))
        self.final_norm = Norm(s.final_norm, s.width, f"{dot}final_norm") if s.final_norm else nn.Identity()
        parts = [a for b in s.blocks for a in (b.attn, b.cross) if a]
        self.masks = tuple(dict.fromkeys(a.mask for a in parts))
        self.rotaries = tuple(dict.fromkeys(a.rotary for a in parts if a.rotary))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = x * s.embed_scale  # B T D
        if s.positions:
            if s.positions.kind == "learned":
                x = x + self.positions(step.place.token + s.positions.offset)  # B T D
                if s.positions.blanks == "counted":
                    x = x + self.blanks(step.place.blank)  # B T D
            else:
                x = x + sinusoid(step.place.token, s.width, s.positions.layout).to(x.dtype)  # B T D
        if s.segments:
            x = x + self.segments(step.place.segment)  # B T D
        if s.relative:
            step = step.leaning(self.relative(buckets(step.cache.length, x.shape[1], s.relative, x.device)))
        x = step.drop(step.tap(self, "embed", self.embed_norm(x)), s.dropout)  # B T D
        for layer in self.layers:
            x = layer(x, step)  # B T D
        return step.tap(self, "final_norm", self.final_norm(x))  # B T D


class Dense(nn.Module):
    """A square layer with an activation, and a norm where the spec has one."""

    def __init__(self, s: spec.Dense, width: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        self.linear = nn.Linear(width, width)
        self.norm = Norm(s.norm, width, f"{path}.norm") if s.norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        s = self.spec
        return self.norm(ACTIVATIONS[s.activation](self.linear(x)))


class Head(nn.Linear):
    """The output projection where states are prepared for it first."""

    def __init__(self, s: spec.Head, width: int, vocabulary: int) -> None:
        super().__init__(width, vocabulary, bias=s.bias)
        self.spec, self.path = s, "head"
        self.dense = Dense(s.dense, width, "head.dense") if s.dense else nn.Identity()

    def prepare(self, x: Tensor) -> Tensor:
        """What meets the vocabulary's matrix."""
        s = self.spec
        return self.dense(x) * s.scale

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  as nn.Linear has it
        return super().forward(self.prepare(input))


class Labels(nn.Module):
    """One state of each text, projected to labels."""

    def __init__(self, s: spec.Labels, width: int) -> None:
        super().__init__()
        self.spec, self.path = s, "labels"
        self.dense = Dense(s.dense, width, "labels.dense") if s.dense else nn.Identity()
        self.out = nn.Linear(width, s.count, bias=s.bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        if s.token == "first":
            x = x[:, 0]  # B D
        else:
            x = x[torch.arange(len(x), device=x.device), step.place.token.argmax(1)]  # B D
        return step.tap(self, "out", self.out(step.drop(self.dense(x), s.dropout)))


class Transformer(nn.Module):
    """Token ids to logits, in any of the four architectures that the spec describes."""

    def __init__(self, s: spec.Spec) -> None:
        super().__init__()
        self.spec, self.path = s, ""
        both = bool(s.encoder and s.decoder)
        self.embed = nn.Embedding(s.vocabulary, s.stack.width)
        if s.sources:
            self.source_embed = nn.Embedding(s.sources, s.stack.width)
        if s.encoder:
            self.encoder = Stack(s.encoder, "encoder" if both else "")
        if s.decoder:
            self.decoder = Stack(s.decoder, "decoder" if both else "")
        if s.head:
            if s.head.dense or s.head.scale != 1.0:
                self.head = Head(s.head, s.stack.width, s.vocabulary)
            else:
                self.head = nn.Linear(s.stack.width, s.vocabulary, bias=s.head.bias)
            self.tie()
        if s.labels:
            self.labels = Labels(s.labels, s.stack.width)

    def tie(self) -> None:
        """Let the head speak with the embedding's own matrix (Press & Wolf 2017), where the spec says so."""
        s = self.spec
        if s.head and s.head.kind == "tied":
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, step: Step) -> Tensor:
        return step.tap(self, "logits", self.head(self.hidden(ids, step)))  # B T V

    def hidden(self, ids: Tensor, step: Step) -> Tensor:
        """The last states of the stack that speaks: the decoder, or the encoder where there is no decoder."""
        s = self.spec
        x = self.embed(ids)  # B T D
        if s.decoder:
            return self.decoder(x, step)  # B T D
        return self.encoder(x, step)  # B T D

    def classify(self, ids: Tensor, step: Step) -> Tensor:
        """Logits over the labels of each text [B, labels]; texts are padded on the right."""
        return self.labels(self.hidden(ids, step), step)

    def encode(self, source: Tensor, step: Step) -> Tensor:
        """The encoder's states, which become the decoder's memory."""
        s = self.spec
        if s.sources:
            return self.encoder(self.source_embed(source), step)  # B T D
        return self.encoder(self.embed(source), step)  # B T D
