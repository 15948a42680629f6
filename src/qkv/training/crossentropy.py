"""Output projection and cross-entropy in one: the [N, V] logits exist one chunk of rows at a time, both ways.

The gradient is made on the way forward, while a chunk's probabilities are still in the cache; backward only scales it.
"""

from typing import Any

import torch
from torch import Tensor

from qkv.adapt.onednn_linear import multiply


class LinearCrossEntropy(torch.autograd.Function):
    """Sum over rows of (1 - ε)·(-log p(label)) + ε·mean over the vocabulary of (-log p) (Szegedy et al. 2016, 7).

    With `rdrop`, what `add_rdrop_gradient` adds for two passes that differ.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, rdrop: float
    ) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            w = weight.detach().to(hidden.dtype)
            b = None if bias is None else bias.detach().to(hidden.dtype)
            if rdrop:  # the two passes over a word stand side by side
                hidden, labels = (x.view(2, -1, *x.shape[1:]).transpose(0, 1).flatten(0, 1) for x in (hidden, labels))
            dh, dw = [], torch.zeros_like(weight, dtype=torch.float32)
            db = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
            total = torch.zeros((), dtype=torch.float64, device=hidden.device)
            sums = w.float().sum(0)
            level = 0.0 if b is None else b.float().mean()
            rows = 2 * -(-chunk_rows(hidden, len(w)) // 2)
            # dw is as large as the vocabulary's matrix, and adding it up dear: one product for four chunks
            pile = rows * (4 if hidden.device.type == "cpu" else 1)
            for hs, ls in zip(hidden.split(pile), labels.split(pile), strict=True):
                ps = hidden.new_empty(len(hs), len(w))
                for h, label, p in zip(hs.split(rows), ls.split(rows), ps.split(rows), strict=True):
                    logits = multiply(h, w, b)  # N V
                    torch.softmax(logits, -1, out=p)
                    said = logits.gather(1, label[:, None])[:, 0].float()
                    # log of the sum of exponentials, from the one probability that is needed anyway
                    mass = said - p.gather(1, label[:, None])[:, 0].float().clamp_min(1e-30).log()
                    spread = h.float() @ sums / len(w) + level  # the mean logit, from D numbers and not from V
                    total += (mass - (1 - smoothing) * said - smoothing * spread).sum().double()
                    if rdrop:
                        total += add_rdrop_gradient(p, logits, rdrop).double()
                    dh.append(multiply(p, w.T))
                dw += multiply(ps.T, hs.T)
                if db is not None:
                    db += ps.sum(0)
            # the gradient is p - smoothing / V - (1 - smoothing) at the label; its two last terms never touch N V
            back = torch.cat(dh).sub_((smoothing / len(w)) * sums).sub_((1 - smoothing) * w[labels])
            if rdrop:
                back = back.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1)
            dw -= (smoothing / len(w)) * hidden.float().sum(0)
            dw.index_add_(0, labels, hidden.float(), alpha=smoothing - 1)
            if db is not None:
                db -= len(hidden) * smoothing / len(w)
                db.index_add_(0, labels, torch.ones(len(hidden), device=hidden.device), alpha=smoothing - 1)
        ctx.save_for_backward(back, dw.to(weight.dtype), None if db is None else db.to(bias.dtype))  # type: ignore[union-attr]
        return total.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        dh, dw, db = ctx.saved_tensors
        return dh * grad, dw * grad, None if db is None else db * grad, None, None, None


def chunk_rows(hidden: Tensor, vocabulary: int) -> int:
    """The rows whose logits exist at the same time."""
    # 10 MB of fp32 logits stay in a CPU's cache; a GPU wants few large products (1 GB)
    return max(1, (2_500_000 if hidden.device.type == "cpu" else 1 << 28) // vocabulary)


def predict_tokens(hidden: Tensor, head: torch.nn.Module, vocabulary: int) -> Tensor:
    """The likeliest word [N] after each of `hidden` [N, D], a chunk of rows at a time."""
    return torch.cat([head(part).argmax(-1) for part in hidden.split(chunk_rows(hidden, vocabulary))])


def add_rdrop_gradient(p: Tensor, logits: Tensor, rdrop: float) -> Tensor:
    """The sum of rdrop/2 · (KL(p1 | p2) + KL(p2 | p1)); its gradient at the logits is added to `p` in place.

    Rows 0, 2, 4 of p [N, V] are one pass's probabilities, the row after each the other's (Liang et al. 2021, equation
    2). The logits are used up.
    """
    (one, two), (high, low) = p.unflatten(0, (-1, 2)).unbind(1), logits.unflatten(0, (-1, 2)).unbind(1)
    ratio, gap = high.sub_(low), one - two  # log(p1 / p2), but for a constant a row that its mean takes away
    means = [torch.linalg.vecdot(q, ratio)[:, None] for q in (one, two)]
    left, right = (torch.addcmul(gap, q, ratio - mean) for q, mean in zip((one, two), means, strict=True))
    one.add_(left, alpha=rdrop / 2)
    two.sub_(right, alpha=rdrop / 2)
    return rdrop / 2 * (means[0].float() - means[1].float()).sum()


def linear_cross_entropy(
    hidden: Tensor, head: torch.nn.Linear, labels: Tensor, *, smoothing: float = 0.0, rdrop: float = 0.0
) -> Tensor:
    """The summed, label-smoothed cross-entropy of `head(hidden)` [N, D] against `labels` [N], without its logits.

    With `rdrop` the rows are two passes over the same words, one after the other; differing costs (see
    `add_rdrop_gradient`).
    """
    weight, bias = head.weight, head.bias
    if not torch.is_grad_enabled():
        rows, total = chunk_rows(hidden, len(weight)), torch.zeros((), device=hidden.device)
        for part, label in zip(hidden.split(rows), labels.split(rows), strict=True):
            logits = torch.nn.functional.linear(part, weight, bias).float()  # it is prepared already
            total += torch.nn.functional.cross_entropy(logits, label, reduction="sum", label_smoothing=smoothing)
        return total
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    return LinearCrossEntropy.apply(hidden, weight, bias, labels, smoothing, rdrop)  # type: ignore[no-any-return]
