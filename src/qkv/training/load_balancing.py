"""What keeps experts equally busy: a loss that pulls the router, or a bias that steers it without a gradient.

Both read the taps `moe.logits` and `moe.index`, of one layer or of several laid together; the caller leaves padding
out: `balance_loss(logits[real], index[real], experts)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkv.core.experts import Experts
from qkv.core.step import Tracer, active_tracer
from qkv.data.collate import Batch


def balance_loss(logits: Tensor, index: Tensor, experts: int) -> Tensor:
    """experts · Σ f·P, least when tokens spread evenly: Fedus et al. 2021, equations 4 to 6.

    f is how many tokens of all chose an expert, P the mean probability that the router gave it; logits [..., E] and
    index [..., J] have their tokens in common. A number, J at perfect balance; the gradient flows through P alone.
    """
    share = count_tokens(index, experts) / (index.numel() / index.shape[-1])  # E
    return experts * (share * logits.float().softmax(-1).flatten(0, -2).mean(0)).sum()


def move_bias(bias: Tensor, counts: Tensor, *, rate: float) -> Tensor:
    """The bias [E] for the next step: `rate` up for experts with less than the mean load, down for those with more.

    Wang et al. 2024, algorithm 1, with the loads [E] of the whole last batch; draws no gradient.
    """
    return bias.detach() + rate * (counts.mean() - counts).sign().to(bias)


@torch.no_grad()
def move_router_biases(core: nn.Module, loads: Tensor, *, rate: float) -> None:
    """Move the biases of all routers that have one, in place, by the loads [L, E] of the layers with experts."""
    routers = [m for m in core.modules() if isinstance(m, Experts)]
    for router, counts in zip(routers, loads, strict=True):
        if router.spec.balance == "bias":
            router.bias.copy_(move_bias(router.bias, counts.to(router.bias.device), rate=rate))


def count_tokens(index: Tensor, experts: int) -> Tensor:
    """How many tokens chose each expert [E]."""
    chosen = index.flatten()
    # a bincount would make the host wait for the longest
    return torch.zeros(experts, device=index.device).scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.float))


class RouterListener:
    """Hears what every router decides in one pass: `logits` [B, T, E] and `index` [B, T, J] by path and name.

    Whoever listened before hears all the same.
    """

    def __init__(self, outer: Tracer | None = None) -> None:
        self.outer, self.needs_eager_attention = outer, bool(outer and outer.needs_eager_attention)
        self.heard: dict[str, dict[str, Tensor]] = {}
        begins = getattr(outer, "on_forward", None)
        if begins:
            self.on_forward = begins

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Take note of a router's decisions."""
        if self.outer:
            x = self.outer.tap(module, name, x)
        if isinstance(module, Experts) and name in ("logits", "index"):
            self.heard.setdefault(module.path, {})[name] = x
        return x


@contextmanager
def listen_to_routers() -> Iterator[RouterListener]:
    """Listen to the routers of what runs within."""
    routes = RouterListener(active_tracer.get())
    token = active_tracer.set(routes)
    try:
        yield routes
    finally:
        active_tracer.reset(token)


def collect_decisions(routes: RouterListener, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """What the routers of all layers decided about real tokens: logits [L, N, E], chosen [L, N, J], loads [L, E]."""
    logits, index = (torch.stack([of[name] for of in routes.heard.values()]) for name in ("logits", "index"))
    if batch.target_real is not None:
        logits, index = logits[:, batch.target_real], index[:, batch.target_real]  # L N E, L N J
    else:
        logits, index = logits.flatten(1, 2), index.flatten(1, 2)
    return logits, index, torch.stack([count_tokens(layer, logits.shape[-1]) for layer in index])


def measure_imbalance(loads: Tensor) -> float:
    """The load of the busiest expert over the mean load, in the worst layer: 1 is even, E is one expert for all."""
    return float((loads.amax(-1) / loads.mean(-1).clamp_min(1e-9)).max())
