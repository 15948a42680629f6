"""Positions: sinusoids for the embedding, rotations of q and k, buckets of distances.

Pure functions of the positions. Letters: B batch, T queries, S keys, H heads, K head dim, D width, P rotary dims.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import spec


class Positions(NamedTuple):
    """Each token's position, its count within the blank that it fills (0 outside), and its segment."""

    token: Tensor  # B T
    blank: Tensor  # B T
    segment: Tensor  # B T


def resolve_positions(
    positions: Tensor, segments: Tensor | None, prefix: Tensor | None, blank: Tensor | None
) -> Positions:
    """The positions of tokens at `positions` [B, T]: those after a prefix [B] fill its blank (Du et al. 2022, 2.1).

    Where they fill several blanks, `blank` [B, T] has each token's own, and -1 in the text.
    """
    nowhere = torch.zeros_like(positions)  # B T
    segment = nowhere if segments is None else segments  # B T
    if prefix is None or blank is None:
        return Positions(positions, nowhere, segment)
    if blank.ndim == 2:
        count = torch.where(blank < 0, nowhere, position_in_run(blank) + 1)  # B T
        return Positions(torch.where(blank < 0, positions, blank), count, segment)
    count = (positions - prefix[:, None] + 1).clamp_min(0)  # B T
    return Positions(torch.where(count > 0, blank[:, None], positions), count, segment)


def position_in_run(groups: Tensor) -> Tensor:
    """Each token's position within its run of equal numbers: [B, T] -> [B, T]."""
    slots = torch.arange(groups.shape[1], device=groups.device).expand_as(groups)  # B T
    begins = torch.ones_like(groups, dtype=torch.bool)
    begins[:, 1:] = groups[:, 1:] != groups[:, :-1]
    return slots - torch.where(begins, slots, 0).cummax(1).values


def sinusoid(positions: Tensor, width: int, layout: str) -> Tensor:
    """Sines and cosines of geometrically falling frequencies (Vaswani et al. 2017, 3.5): [..., T] -> [..., T, D]."""
    half = (width + 1) // 2
    last = width - 2 if layout == "spanning" else width
    exponent = torch.arange(half, device=positions.device, dtype=torch.float64) * 2 / last
    angle = (positions.double()[..., None] / 10_000.0**exponent).float()  # B T P
    pair = torch.sin(angle), torch.cos(angle)
    if layout != "interleaved":
        return torch.cat(pair, -1)[..., :width]  # B T D
    return torch.stack(pair, -1).flatten(-2)[..., :width]  # B T D


def compute_angles(positions: Tensor, s: spec.Rotary) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each rotary angle: positions [B, T] -> two [B, 1, T, P/2] in fp32 (Su et al. 2021, eq. 15).

    Two axes of positions [B, T, 2] give two [B, 1, T, 2, P/2].
    """
    exponent = torch.arange(0, s.dim, 2, device=positions.device, dtype=torch.int64).float() / s.dim
    gain = s.scaling.gain if s.scaling else 1.0
    speed = 1.0 / s.base**exponent if s.scaling is None else scale_frequencies(exponent, positions, s, s.scaling)
    angle = positions.float()[:, None, ..., None] * speed
    return (angle.cos(), angle.sin()) if gain == 1.0 else (angle.cos() * gain, angle.sin() * gain)


def scale_frequencies(exponent: Tensor, positions: Tensor, s: spec.Rotary, by: spec.Scaling) -> Tensor:
    """The frequency of each rotary pair for texts longer than in training: exponents [P/2] -> frequencies [P/2]."""
    if by.kind == "dynamic":  # the base grows with the text once it is longer than in training
        length = (positions.max() + 1).clamp_min(by.trained)
        stretch = by.factor * length / by.trained - (by.factor - 1)
        return 1.0 / (s.base * stretch ** (s.dim / (s.dim - 2))) ** exponent
    if by.kind == "longrope":  # all positions turn by one set of factors, which their last one decides
        short, long = (torch.tensor(each, device=exponent.device) for each in (by.short, by.long))  # P/2
        return 1.0 / (torch.where(positions.max() < by.trained, short, long) * s.base**exponent)
    speed = 1.0 / s.base**exponent
    if by.kind == "linear":
        return speed / by.factor
    if by.kind == "wavelength":
        turns = by.trained * speed / (2 * math.pi)
        stays = ((turns - by.slow) / (by.fast - by.slow)).clamp(0, 1)
    else:
        first, last = (yarn_correction_dim(turns, s, by.trained) for turns in (by.fast, by.slow))
        if by.whole == "rounded":
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, s.dim - 1)
        index = torch.arange(s.dim // 2, device=exponent.device, dtype=torch.float32)
        stays = 1 - ((index - first) / (last - first if last != first else 0.001)).clamp(0, 1)
    return speed / by.factor * (1 - stays) + speed * stays


def yarn_correction_dim(turns: float, s: spec.Rotary, trained: int) -> float:
    """The index (a fraction) of the rotary pair that makes so many turns over the trained positions."""
    return s.dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(s.base))


def bucket_distances(start: int, tokens: int, s: spec.Relative, device: torch.device) -> Tensor:
    """The bucket of each distance from the queries start… to the keys 0…: [T, S] (Raffel et al. 2020, section 2.1)."""
    slots = torch.arange(start + tokens, device=device)
    ahead = slots[None, :] - slots[start:, None]  # T S
    count, base = s.buckets, torch.zeros_like(ahead)  # T S
    if s.direction == "both":
        count //= 2
        base = (ahead > 0).long() * count  # T S
        ahead = -ahead.abs()  # T S
    back = (-ahead).clamp_min(0)  # T S
    near = count // 2
    far = torch.log(back.float().clamp_min(1) / near) / math.log(s.distance / near) * (count - near)
    return base + torch.where(back < near, back, (near + far.long()).clamp_max(count - 1))  # T S


def rotate(x: Tensor, turn: tuple[Tensor, Tensor], s: spec.Rotary) -> Tensor:
    """Rotate the first P numbers of each head by its position's angles, keep the rest: [B, H, T, K] -> the same."""
    cos, sin = turn[0].to(x.dtype), turn[1].to(x.dtype)
    if s.axes == 2:
        halves = zip(x.chunk(2, -1), cos.unbind(-2), sin.unbind(-2), strict=True)
        return torch.cat([rotate(half, (c, n), replace(s, axes=1)) for half, c, n in halves], -1)  # B H T K
    if s.pairs == "half":
        a, b = x[..., : s.dim // 2], x[..., s.dim // 2 : s.dim]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = x[..., 0 : s.dim : 2], x[..., 1 : s.dim : 2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return torch.cat((turned, x[..., s.dim :]), -1) if s.dim < x.shape[-1] else turned  # B H T K
