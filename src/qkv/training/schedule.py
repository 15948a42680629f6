"""Learning rates: pure functions of the step, which counts from 1. The settings pick one. Next: optim.py."""

import math

from qkv.training.settings import Settings


def noam(step: int, *, lr: float, warmup: int, width: int) -> float:
    """lr · width^-½ · min(step^-½, step · warmup^-3/2) (Vaswani et al. 2017, eq. 3)."""
    return lr * width**-0.5 * min(step**-0.5, step * max(warmup, 1) ** -1.5)


def inverse(step: int, *, lr: float, warmup: int) -> float:
    """A line from 0 to lr over `warmup` steps, then lr · sqrt(warmup / step) (fairseq's inverse_sqrt)."""
    return lr * min(step / max(warmup, 1), math.sqrt(max(warmup, 1) / step))


def cosine(step: int, *, lr: float, warmup: int, total: int, floor: float) -> float:
    """A line up, then half a cosine from lr down to floor · lr at `total` (Loshchilov & Hutter 2017)."""
    if step <= warmup:
        return lr * step / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))


def wsd(step: int, *, lr: float, warmup: int, total: int, decay: float, floor: float) -> float:
    """Warm-up, stable, decay: a line up, lr, then a line down to floor · lr over the last share (Hu et al. 2024)."""
    left = max(0, total - step) / max(1, round(decay * total))
    return lr * min(step / max(warmup, 1), floor + (1 - floor) * min(1.0, left))  # both where they overlap


def linear(step: int, *, lr: float, warmup: int, total: int, floor: float) -> float:
    """A line up, then a line from lr down to floor · lr at `total` (Devlin et al. 2018, appendix A.2)."""
    if step <= warmup:
        return lr * step / warmup
    return lr * (floor + (1 - floor) * max(0, total - step) / max(1, total - warmup))


def constant(step: int, *, lr: float, warmup: int) -> float:
    """A line up, then lr."""
    return lr * min(1.0, step / max(warmup, 1))


def learning_rate(s: Settings, step: int, *, total: int, width: int) -> float:
    """The learning rate of a step by the settings' schedule over `total` steps, for a model of `width`."""
    if s.schedule == "noam":
        return noam(step, lr=s.lr, warmup=s.warmup, width=width)
    if s.schedule == "inverse":
        return inverse(step, lr=s.lr, warmup=s.warmup)
    if s.schedule == "cosine":
        return cosine(step, lr=s.lr, warmup=s.warmup, total=total, floor=s.floor)
    if s.schedule == "wsd":
        return wsd(step, lr=s.lr, warmup=s.warmup, total=total, decay=s.decay, floor=s.floor)
    if s.schedule == "linear":
        return linear(step, lr=s.lr, warmup=s.warmup, total=total, floor=s.floor)
    return constant(step, lr=s.lr, warmup=s.warmup)
