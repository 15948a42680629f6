"""Attention by queries, keys and values. `attend` is the formula written out; kernels.py has faster versions of it.

Letters: B batch, T queries, S keys, D width, H heads, G key/value groups, K head dim, W value head dim.
"""

import torch
from torch import Tensor, nn

from qkv import spec
from qkv.core.latent import Latent
from qkv.core.masks import AttentionBias
from qkv.core.norm import Norm
from qkv.core.positions import rotate
from qkv.core.step import Step


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, 3.2); heads may share keys and values (Ainslie et al. 2023)."""

    def __init__(self, s: spec.Attention, width: int, layer: int, path: str) -> None:
        super().__init__()
        self.spec, self.layer, self.path = s, layer, path
        self.scale = s.head_dim**-0.5 if s.scale is None else s.scale
        self.q = nn.Linear(width, s.heads * s.head_dim, bias=s.bias)
        self.k = nn.Linear(width, s.groups * s.head_dim, bias=s.bias)
        self.v = nn.Linear(width, s.groups * s.head_dim, bias=s.bias)
        self.out = nn.Linear(s.heads * s.head_dim, width, bias=s.out_bias)
        if s.qk_norm:
            q_heads, k_heads = (s.heads, s.groups) if s.qk_normed == "together" else (1, 1)
            self.q_norm = Norm(s.qk_norm, q_heads * s.head_dim, f"{path}.q_norm")
            self.k_norm = Norm(s.qk_norm, k_heads * s.head_dim, f"{path}.k_norm")

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.tap(self, "norm", x)  # B T D
        q = step.tap(self, "q_pre", self.q(x).unflatten(-1, (s.heads, -1)).transpose(1, 2))  # B H T K
        if s.mask.kind == "memory":
            k, v = step.cache.get_or_compute(self.layer, lambda: self.project_kv(step.memory, step))  # B G S K, B G S K
            q = step.tap(self, "q", q)  # B H T K
            z = self.cross_attend(q, k, v, step)  # B H T K
        else:
            k, v = self.project_kv(x, step)  # B G T K, B G T K
            if s.qk_norm and s.qk_normed == "by head":
                q, k = self.q_norm(q), self.k_norm(k)  # B H T K, B G T K
            if s.qk_norm and s.qk_normed == "together":
                q, k = norm_together(self.q_norm, q), norm_together(self.k_norm, k)  # B H T K, B G T K
            if s.rotary:
                q, k = rotate(q, step.angles[s.rotary], s.rotary), rotate(k, step.angles[s.rotary], s.rotary)
            q = step.tap(self, "q", q)  # B H T K
            k, v = step.cache.append(self.layer, step.tap(self, "k", k), v)
            z = step.attend(q, k, v, step.mask[s.mask], self, step)  # B H T K
        z = step.tap(self, "z", z)  # B H T K
        return step.tap(self, "out", self.out(z.transpose(1, 2).flatten(2)))  # B T D

    def project_kv(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """The keys and values of each position."""
        s = self.spec
        k = step.tap(self, "k_pre", self.k(x).unflatten(-1, (s.groups, -1)).transpose(1, 2))  # B G S K
        v = step.tap(self, "v", self.v(x).unflatten(-1, (s.groups, -1)).transpose(1, 2))  # B G S K
        return k, v

    def cross_attend(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        """Attend to the memory; the hypotheses of one source form one row, so that its keys are not copied."""
        rows, beams = k.shape[0], q.shape[0] // k.shape[0]
        q = q.unflatten(0, (rows, beams)).transpose(1, 2).flatten(2, 3)
        z = step.attend(q, k, v, step.mask[self.spec.mask], self, step)
        return z.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)


def norm_together(norm: Norm, x: Tensor) -> Tensor:
    """The heads of a token normed as one vector: [B, H, T, K] -> the same."""
    return norm(x.transpose(1, 2).flatten(2)).unflatten(-1, (x.shape[1], -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias, at: Attention | Latent, step: Step) -> Tensor:
    """softmax(q kᵀ · scale + mask) v, written out (Vaswani et al. 2017, eq. 1): the reference for every kernel."""
    s = at.spec
    if k.shape[1] < q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # B H S K
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)  # B H S W
    score = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * at.scale  # B H T S
    if s.cap:
        score = s.cap * torch.tanh(score / s.cap)  # B H T S
    if mask.bias is not None:
        score = score + mask.bias  # B H T S
    if mask.causal:
        future = torch.ones_like(score, dtype=torch.bool).triu(1)  # B H T S
        score = score.masked_fill(future, torch.finfo(score.dtype).min)  # B H T S
    score = step.tap(at, "score", score)  # B H T S
    pattern = step.tap(at, "pattern", score.softmax(-1).to(v.dtype))  # B H T S
    return step.drop(pattern, s.dropout) @ v  # B H T W
