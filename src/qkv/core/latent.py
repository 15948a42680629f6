"""Multi-head latent attention: keys and values from one small vector per position, the only thing that is cached.

Same interface as attention.py. Two ways to the same result: `expand` for many queries, `attend_absorbed` for decoding.
Letters: B batch, T queries, S keys, D width, H heads, K head dim, W value head dim, R latent rank, P rotary dims.
"""

import torch
from torch import Tensor, nn

from qkv import spec
from qkv.core.norm import Norm
from qkv.core.positions import rotate
from qkv.core.step import Step


class Latent(nn.Module):
    """Multi-head latent attention (Liu et al. 2024, arXiv 2405.04434, eq. 9-19); one rotary key serves all heads.

    Taps: norm, q_pre, q, latent, k_rope of the new positions; k, v of all positions where they are expanded; z, out.
    """

    def __init__(self, s: spec.Latent, width: int, layer: int, path: str) -> None:
        super().__init__()
        self.spec, self.layer, self.path = s, layer, path
        dim = s.nope_head_dim + s.rotary.dim
        self.scale = dim**-0.5 if s.scale is None else s.scale
        if s.q_rank:
            self.q_down = nn.Linear(width, s.q_rank, bias=s.bias)
            self.q_norm = Norm(s.norm, s.q_rank, f"{path}.q_norm")
            self.q_up = nn.Linear(s.q_rank, s.heads * dim, bias=False)
        else:
            self.q = nn.Linear(width, s.heads * dim, bias=False)
        self.kv_down = nn.Linear(width, s.kv_rank + s.rotary.dim, bias=s.bias)
        self.kv_norm = Norm(s.norm, s.kv_rank, f"{path}.kv_norm")
        self.kv_up = nn.Linear(s.kv_rank, s.heads * (s.nope_head_dim + s.value_dim), bias=False)
        self.out = nn.Linear(s.heads * s.value_dim, width, bias=s.bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.tap(self, "norm", x)  # B T D
        q = step.tap(self, "q_pre", self.project_q(x))  # B H T K
        plain, turned = q.split((s.nope_head_dim, s.rotary.dim), -1)
        q = torch.cat((plain, rotate(turned, step.angles[s.rotary], s.rotary)), -1)  # B H T K
        q = step.tap(self, "q", q)  # B H T K
        latent, k_rope = self.kv_down(x)[:, None].split((s.kv_rank, s.rotary.dim), -1)
        latent = step.tap(self, "latent", self.kv_norm(latent))  # B G T R
        k_rope = step.tap(self, "k_rope", rotate(k_rope, step.angles[s.rotary], s.rotary))  # B G T P
        latent, k_rope = step.cache.append(self.layer, latent, k_rope)
        if step.mode == "decode":
            z = self.attend_absorbed(q, latent, k_rope, step)  # B H T W
        else:
            k, v = self.expand(latent, k_rope)  # B H S K, B H S W
            k, v = step.tap(self, "k", k), step.tap(self, "v", v)  # B H S K, B H S W
            z = step.attend(q, k, v, step.mask[s.mask], self, step)  # B H T W
        z = step.tap(self, "z", z)  # B H T W
        return step.tap(self, "out", self.out(z.transpose(1, 2).flatten(2)))  # B T D

    def project_q(self, x: Tensor) -> Tensor:
        """Queries before the rotation, from the state or from a low-rank vector of it."""
        s = self.spec
        if s.q_rank:
            q = self.q_up(self.q_norm(self.q_down(x)))
        else:
            q = self.q(x)
        return q.unflatten(-1, (s.heads, -1)).transpose(1, 2)  # B H T K

    def expand(self, latent: Tensor, k_rope: Tensor) -> tuple[Tensor, Tensor]:
        """Each head's keys [B, H, S, K] and values [B, H, S, W] from the latents and the shared rotary key."""
        s = self.spec
        both = self.kv_up(latent[:, 0]).unflatten(-1, (s.heads, -1)).transpose(1, 2)
        k, v = both.split((s.nope_head_dim, s.value_dim), -1)
        return torch.cat((k, k_rope.expand(-1, s.heads, -1, -1)), -1), v  # B H S K, B H S W

    def attend_absorbed(self, q: Tensor, latent: Tensor, k_rope: Tensor, step: Step) -> Tensor:
        """The same without expanding: q is projected down to the latents, the result up to values (ibid., 2.1.2)."""
        s = self.spec
        up_k, up_v = self.kv_up.weight.unflatten(0, (s.heads, -1)).split((s.nope_head_dim, s.value_dim), 1)
        plain, turned = q.split((s.nope_head_dim, s.rotary.dim), -1)
        q = torch.cat((plain @ up_k, turned), -1)  # B H T K
        k = torch.cat((latent, k_rope), -1)  # B G S K
        # values as wide as keys, as fused kernels need them, without a copy; the rotary part of the result is dropped
        z = step.attend(q, k, k, step.mask[s.mask], self, step)[..., : s.kv_rank]  # B H T R
        return z @ up_v.mT  # B H T W
