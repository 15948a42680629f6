"""Muon (Jordan et al. 2024) for the matrices of the layers, those of one shape turned together. Next: optim.py."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

STEPS, CURVE = 5, (3.4445, -4.7750, 2.0315)  # Jordan's: steep at zero, so that small singular values grow soon
MOST = 2**24  # numbers turned at once


class Muon(torch.optim.Optimizer):
    """A step along the nearest orthogonal matrix to the gradient's momentum; weights are [R, C], or experts' [E, R, C].

    Its size is AdamW's (Liu et al. 2025, section 2.2), so one rate fits both. A group's `low` says whether the products
    run in bf16; PyTorch's own always do, and take 13 times as long where a CPU has no bf16 (bench/muon.py).
    """

    def __init__(self, weights: Iterable[nn.Parameter], *, lr: float, weight_decay: float, momentum: float = 0.95):
        start = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "low": False}
        super().__init__(weights, start)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            for pile in piles(p for p in group["params"] if p.grad is not None):
                rows, columns = pile[0].shape[-2:]
                pushed = [self.push(p, group["momentum"]).reshape(-1, rows, columns) for p in pile]
                turned = orthogonal(torch.cat(pushed), low=group["low"]).split([len(part) for part in pushed])
                for p, part in zip(pile, turned, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(part.reshape(p.shape), alpha=-0.2 * max(rows, columns) ** 0.5 * group["lr"])

    def push(self, p: nn.Parameter, momentum: float) -> Tensor:
        """The gradient, leant towards the mean of those before it (Nesterov)."""
        assert p.grad is not None
        state: dict[str, Any] = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        mean = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(mean, momentum)


def piles(weights: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Weights whose matrices have one shape, as many together as MOST allows."""
    alike: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
    for p in weights:
        pile = alike[p.shape[-2:]]
        if pile and sum(q.numel() for q in pile) + p.numel() > MOST:
            yield alike.pop(p.shape[-2:])
        alike[p.shape[-2:]].append(p)
    yield from alike.values()


def orthogonal(matrices: Tensor, *, low: bool = False) -> Tensor:
    """Matrices [N, R, C] with all their singular values brought near 1, by products alone (Newton-Schulz)."""
    a, b, c = CURVE
    x = matrices.bfloat16() if low else matrices.float()
    x = x.mT if matrices.shape[1] > matrices.shape[2] else x  # the smaller square is the cheaper
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x
