"""Adam and AdamW over a core's weights, fused where the device can; and the gradient's norm. Next: loop.py."""

import torch
from torch import Tensor, nn

from qkv.core.model import Norm
from qkv.training.settings import Settings


def named_weights(core: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that learn, by name, each once (a tied matrix under its first name)."""
    return {n: p for n, p in core.named_parameters() if p.requires_grad}


def make(core: nn.Module, s: Settings) -> torch.optim.Optimizer:
    """The optimiser of the settings (Kingma & Ba 2015; Loshchilov & Hutter 2019).

    Weight decay spares norms, biases and embeddings.
    """
    spared = {id(p) for m in core.modules() if isinstance(m, Norm | nn.Embedding) for p in m.parameters(recurse=False)}
    weights = list(named_weights(core).values())
    plain = [p for p in weights if id(p) not in spared and p.ndim > 1]
    kept = [p for p in weights if id(p) in spared or p.ndim <= 1]
    groups = [{"params": plain, "weight_decay": s.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if s.optimizer == "adamw" else torch.optim.Adam
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in weights)
    return kind([g for g in groups if g["params"]], lr=s.lr, betas=s.betas, eps=s.eps, fused=fused)


def clip(weights: list[nn.Parameter], largest: float) -> Tensor:
    """Scale the gradients so that their joint norm is at most `largest` (0: leave them); gives the norm before."""
    grads = [p.grad for p in weights if p.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    if largest:
        nn.utils.clip_grads_with_norm_(weights, largest, norm)
    return norm
