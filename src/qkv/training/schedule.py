"""The learning rate as a pure function of the step, which counts from 1. Next: optim.py."""

import math

from qkv.training.settings import Settings


def learning_rate(s: Settings, step: int, *, total: int, width: int) -> float:
    """The learning rate of a step by the settings' schedule over `total` steps, for a model of `width`."""
    lr, start, falls = s.lr, max(s.warmup, 1), max(1, total - s.warmup)
    match s.schedule:
        case "noam":  # lr · width^-½ · min(step^-½, step · warmup^-3/2) (Vaswani et al. 2017, eq. 3)
            return lr * width**-0.5 * min(step**-0.5, step * start**-1.5)
        case "inverse":  # a line from 0 to lr, then lr · sqrt(warmup / step) (fairseq's inverse_sqrt)
            return lr * min(step / start, math.sqrt(start / step))
        case "constant":  # a line up, then lr
            return lr * min(1.0, step / start)
        case "wsd":  # a line up, lr, then a line down to floor · lr over the last share (Hu et al. 2024)
            left = max(0, total - step) / max(1, round(s.decay * total))
            return lr * min(step / start, s.floor + (1 - s.floor) * min(1.0, left))  # both where they overlap
        case "linear" | "cosine" if step <= s.warmup:
            return lr * step / s.warmup
        case "linear":  # a line up, then a line down to floor · lr at `total` (Devlin et al. 2018, appendix A.2)
            return lr * (s.floor + (1 - s.floor) * max(0, total - step) / falls)
        case "cosine":  # a line up, then half a cosine down to floor · lr at `total` (Loshchilov & Hutter 2017)
            done = min(1.0, (step - s.warmup) / falls)
            return lr * (s.floor + (1 - s.floor) * 0.5 * (1 + math.cos(math.pi * done)))
