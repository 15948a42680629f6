"""The optimisers over a core's weights, PyTorch's own but for Muon. Next: schedule.py, loop.py.

Adam and AdamW, fused where the device can; Adafactor; Muon for the hidden matrices beside AdamW for the rest.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.core.experts import ExpertLinear
from qkv.core.norm import Norm
from qkv.training.fsdp import group_by_mesh
from qkv.training.settings import Settings

State = dict[str, Any]
STEPS, CURVE = 5, (3.4445, -4.7750, 2.0315)  # Jordan's: steep at zero, so that small singular values grow soon
MOST = 2**24  # numbers turned at once


def named_weights(core: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that learn, by name, each once (a tied matrix under its first name)."""
    return {n: p for n, p in core.named_parameters() if p.requires_grad}


def make_optimizer(core: nn.Module, s: Settings) -> torch.optim.Optimizer:
    """The optimiser of the settings (Kingma & Ba 2015; Loshchilov & Hutter 2019; Shazeer & Stern 2018).

    Weight decay spares norms, biases and embeddings. `muon` takes the matrices within the layers, those of experts one
    by one, and AdamW the rest.
    """
    spared = {id(p) for m in core.modules() if isinstance(m, Norm | nn.Embedding) for p in m.parameters(recurse=False)}
    weights = list(named_weights(core).values())
    inner = {id(p) for p in hidden_matrices(core)} if s.optimizer == "muon" else set[int]()
    decays = [id(p) not in spared and p.ndim > 1 for p in weights]
    matrices = [p for p, decay in zip(weights, decays, strict=True) if decay and id(p) in inner]
    rest = [p for p, decay in zip(weights, decays, strict=True) if decay and id(p) not in inner]
    light = [p for p, decay in zip(weights, decays, strict=True) if not decay]
    groups = [{"params": some, "weight_decay": decay} for all_, decay in ((rest, s.weight_decay), (light, 0.0))
              for some in group_by_mesh(all_)]
    if s.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=s.lr)
    kind = torch.optim.Adam if s.optimizer == "adam" else torch.optim.AdamW
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in weights)
    adam: State = {"lr": s.lr, "betas": s.betas, "eps": s.eps, "fused": fused}
    return Muon(matrices, groups, weight_decay=s.weight_decay, **adam) if matrices else kind(groups, **adam)


def hidden_matrices(core: nn.Module) -> list[nn.Parameter]:
    """The matrices within the layers that learn, which Muon takes."""
    found = (m.weight for n, m in core.named_modules() if isinstance(m, nn.Linear | ExpertLinear) and "layers." in n)
    return [p for p in found if isinstance(p, nn.Parameter) and p.requires_grad]


def optimizer_states(core: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[State, bool]]:
    """What the optimiser remembers of each weight by name, to be read and filled, and whether it is fused."""
    names = {p: n for n, p in named_weights(core).items()}
    return {names[p]: (optimizer.state[p], bool(group.get("fused")))
            for group in optimizer.param_groups for p in group["params"]}


class Mean:
    """An exponential moving average of tensors, in place of their last values (Polyak & Juditsky 1992).

    Early on it forgets faster, so that the first values soon have no weight: by at least 9 / (10 + steps).
    """

    def __init__(self, live: dict[str, Tensor], decay: float) -> None:
        self.live, self.decay = live, decay
        self.values = {name: t.clone() for name, t in live.items()}

    def update(self, step: int) -> None:
        """Take in what the tensors are after so many steps."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.values.values()), list(self.live.values()), share)


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024) for `matrices`, and AdamW for the groups of the `rest`.

    A step goes along the nearest orthogonal matrix to the gradient's momentum; matrices are [R, C], or experts'
    [E, R, C], and those of one shape are turned together. Its size is AdamW's (Liu et al. 2025, section 2.2), so one
    rate fits both. A group's `low` says whether the products run in bf16; PyTorch's own always do, and take 13 times as
    long where a CPU has no bf16 (bench/muon.py).
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], rest: Sequence[State] = (), *, weight_decay: float,
        momentum: float = 0.95, **adam: Any,
    ) -> None:
        own = {"params": list(matrices), "weight_decay": weight_decay, "momentum": momentum, "low": False}
        super().__init__([own, *rest], **adam)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if "momentum" not in group]
        super().step()
        self.param_groups = groups
        for group in (group for group in groups if "momentum" in group):
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
