"""Output projection and cross-entropy in one: the [N, V] logits exist one chunk of rows at a time, both ways.

The gradient is made on the way forward, while a chunk's probabilities are still in the cache; backward only scales it.
"""

from typing import Any

import torch
from torch import Tensor

from qkv.adapt.pack import multiply


class LinearCrossEntropy(torch.autograd.Function):
    """Sum over rows of (1 - ε)·(-log p(label)) + ε·mean over the vocabulary of (-log p) (Szegedy et al. 2016, 7).

    With `agree`, what `pull` adds for two passes that differ.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, agree: float
    ) -> Tensor:  # fmt: skip
        with torch.autocast(hidden.device.type, enabled=False):
            w = weight.detach().to(hidden.dtype)
            b = None if bias is None else bias.detach().to(hidden.dtype)
            dh, dw = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
            db = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
            total = torch.zeros((), dtype=torch.float64, device=hidden.device)
            rows = at_once(hidden, len(weight))
            passes = 2 if agree else 1
            parts = (x.view(passes, -1, *x.shape[1:]).split(-(-rows // passes), 1) for x in (hidden, labels, dh))
            sums = w.float().sum(0)
            level = 0.0 if b is None else b.float().mean()
            for h, label, out in zip(*parts, strict=True):
                h, label = h.flatten(0, 1), label.flatten()  # N D, N: of two passes, a word's rows stand half apart
                logits = multiply(h, w, b)  # N V
                p = logits.softmax(-1)
                said = logits.gather(1, label[:, None])[:, 0].float()
                # log of the sum of exponentials, from the one probability that is needed anyway
                mass = said - p.gather(1, label[:, None])[:, 0].float().clamp_min(1e-30).log()
                spread = h.float() @ sums / len(w) + level  # the mean logit, from D numbers and not from V
                total += (mass - (1 - smoothing) * said - smoothing * spread).sum().double()
                if agree:
                    total += pull(p, logits, mass, agree).double()
                # the gradient p - smoothing / V - (1 - smoothing) at the label, its two last terms without touching N V
                back = multiply(p, w.T)
                back -= (smoothing / len(w)) * sums
                back -= (1 - smoothing) * w[label]
                out.copy_(back.view_as(out))
                dw += multiply(p.T, h.T)
                dw -= (smoothing / len(w)) * h.float().sum(0)
                dw.index_add_(0, label, h.float(), alpha=smoothing - 1)
                if db is not None:
                    db += p.sum(0)
                    db -= len(h) * smoothing / len(w)
                    db.index_add_(0, label, torch.ones(len(h), device=h.device), alpha=smoothing - 1)
        ctx.save_for_backward(dh, dw.to(weight.dtype), None if db is None else db.to(bias.dtype))  # type: ignore[union-attr]
        return total.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        dh, dw, db = ctx.saved_tensors
        return dh * grad, dw * grad, None if db is None else db * grad, None, None, None


def at_once(hidden: Tensor, vocabulary: int) -> int:
    """The rows whose logits exist at the same time."""
    # 10 MB of fp32 logits stay in a CPU's cache; a GPU wants few large products (1 GB)
    return max(1, (2_500_000 if hidden.device.type == "cpu" else 1 << 28) // vocabulary)


def likeliest(hidden: Tensor, head: torch.nn.Module, vocabulary: int) -> Tensor:
    """The likeliest word [N] after each of `hidden` [N, D], a chunk of rows at a time."""
    return torch.cat([head(part).argmax(-1) for part in hidden.split(at_once(hidden, vocabulary))])


def pull(p: Tensor, logits: Tensor, mass: Tensor, agree: float) -> Tensor:
    """The sum of agree/2 · (KL(p1 | p2) + KL(p2 | p1)); its gradient at the logits is added to `p` in place.

    The first half of the rows of p [N, V] are one pass's probabilities, the second half the other's; `mass` [N] is the
    log of the sum of exponentials (Liang et al. 2021, equation 2).
    """
    one, two = p.chunk(2)
    (high, low), (top, base) = logits.chunk(2), mass[:, None].chunk(2)
    ratio, gap = high - low - (top - base).to(p.dtype), one - two  # log(p1 / p2), p1 - p2
    differ = (gap * ratio).sum(dtype=torch.float32)
    left, right = (q * (ratio - (q * ratio).sum(-1, keepdim=True)) + gap for q in (one, two))
    one.add_(left, alpha=agree / 2)
    two.sub_(right, alpha=agree / 2)
    return agree / 2 * differ


def linear_cross_entropy(
    hidden: Tensor, head: torch.nn.Linear, labels: Tensor, *, smoothing: float = 0.0, agree: float = 0.0
) -> Tensor:
    """The summed, label-smoothed cross-entropy of `head(hidden)` [N, D] against `labels` [N], without its logits.

    With `agree` the rows are two passes over the same words, one after the other, and differing costs (see `pull`).
    """
    if not torch.is_grad_enabled():
        rows, total = at_once(hidden, len(head.weight)), torch.zeros((), device=hidden.device)
        for part, label in zip(hidden.split(rows), labels.split(rows), strict=True):
            logits = torch.nn.functional.linear(part, head.weight, head.bias).float()  # it is prepared already
            total += torch.nn.functional.cross_entropy(logits, label, reduction="sum", label_smoothing=smoothing)
        return total
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    return LinearCrossEntropy.apply(hidden, head.weight, head.bias, labels, smoothing, agree)  # type: ignore[no-any-return]
