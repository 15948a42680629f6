"""The optimisers over a core's weights, PyTorch's own but for Muon, and the gradient's norm. Next: muon.py, loop.py.

Adam and AdamW, fused where the device can; Adafactor; Muon for the hidden matrices beside AdamW for the rest.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.core.experts import ExpertLinear
from qkv.core.norm import Norm
from qkv.training.muon import Muon
from qkv.training.settings import Settings

State = dict[str, Any]


def named_weights(core: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that learn, by name, each once (a tied matrix under its first name)."""
    return {n: p for n, p in core.named_parameters() if p.requires_grad}


def make_optimizer(core: nn.Module, s: Settings) -> "torch.optim.Optimizer | Together":
    """The optimiser of the settings (Kingma & Ba 2015; Loshchilov & Hutter 2019; Shazeer & Stern 2018).

    Weight decay spares norms, biases and embeddings. `muon` takes the matrices within the layers, those of experts one
    by one, and AdamW the rest.
    """
    spared = {id(p) for m in core.modules() if isinstance(m, Norm | nn.Embedding) for p in m.parameters(recurse=False)}
    weights = list(named_weights(core).values())
    inner = {id(p) for p in hidden_matrices(core)} if s.optimizer == "muon" else set[int]()
    decays = [id(p) not in spared and p.ndim > 1 for p in weights]
    matrices = [p for p, decay in zip(weights, decays, strict=True) if decay and id(p) in inner]
    groups = [{"params": [p for p, decay in zip(weights, decays, strict=True) if decay and id(p) not in inner],
               "weight_decay": s.weight_decay},
              {"params": [p for p, decay in zip(weights, decays, strict=True) if not decay], "weight_decay": 0.0}]
    groups = [g for g in groups if g["params"]]
    if s.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=s.lr)
    kind = torch.optim.Adam if s.optimizer == "adam" else torch.optim.AdamW
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in weights)
    rest = kind(groups, lr=s.lr, betas=s.betas, eps=s.eps, fused=fused)
    return Together([Muon(matrices, lr=s.lr, weight_decay=s.weight_decay), rest]) if matrices else rest


def hidden_matrices(core: nn.Module) -> list[nn.Parameter]:
    """The matrices within the layers that learn, which Muon takes."""
    found = (m.weight for n, m in core.named_modules() if isinstance(m, nn.Linear | ExpertLinear) and "layers." in n)
    return [p for p in found if isinstance(p, nn.Parameter) and p.requires_grad]


class Together:
    """Several optimisers that step as one."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[State]:
        """The groups of all."""
        return [group for one in self.optimizers for group in one.param_groups]

    def step(self) -> None:
        """Let each make its step."""
        for one in self.optimizers:
            one.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)


def optimizer_states(core: nn.Module, optimizer: "torch.optim.Optimizer | Together") -> dict[str, tuple[State, bool]]:
    """What the optimiser remembers of each weight by name, to be read and filled, and whether it is fused."""
    names = {p: n for n, p in named_weights(core).items()}
    found: dict[str, tuple[State, bool]] = {}
    for one in optimizer.optimizers if isinstance(optimizer, Together) else (optimizer,):
        for group in one.param_groups:
            found |= {names[p]: (one.state[p], bool(group.get("fused"))) for p in group["params"]}
    return found


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
