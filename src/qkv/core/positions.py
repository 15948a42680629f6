"""Where a token stands: sinusoids that are added, rotations that turn q and k. Pure functions of the positions."""

import torch
from torch import Tensor

from qkv import spec


def sinusoid(positions: Tensor, width: int, layout: str) -> Tensor:
    """Sines and cosines of geometrically falling frequencies (Vaswani et al. 2017, 3.5): [..., T] -> [..., T, D]."""
    half = (width + 1) // 2
    exponent = torch.arange(half, device=positions.device, dtype=torch.float64) * 2 / width
    angle = (positions.double()[..., None] / 10_000.0**exponent).float()  # B T P
    pair = torch.sin(angle), torch.cos(angle)
    if layout == "halves":
        return torch.cat(pair, -1)[..., :width]  # B T D
    return torch.stack(pair, -1).flatten(-2)[..., :width]  # B T D


def angles(positions: Tensor, s: spec.Rotary) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each rotary angle: positions [B, T] -> two [B, 1, T, P/2] in fp32 (Su et al. 2021, eq. 15)."""
    exponent = torch.arange(0, s.dim, 2, device=positions.device, dtype=torch.int64).float() / s.dim
    angle = positions.float()[:, None, :, None] * (1.0 / s.base**exponent)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor], s: spec.Rotary) -> Tensor:
    """Turn the first P numbers of each head by its position's angles, the rest passes: [B, H, T, K] -> the same."""
    cos, sin = turn[0].to(x.dtype), turn[1].to(x.dtype)
    if s.pairs == "halves":
        a, b = x[..., : s.dim // 2], x[..., s.dim // 2 : s.dim]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = x[..., 0 : s.dim : 2], x[..., 1 : s.dim : 2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return torch.cat((turned, x[..., s.dim :]), -1) if s.dim < x.shape[-1] else turned  # B H T K
