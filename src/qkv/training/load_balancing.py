"""What keeps experts equally busy: a loss that pulls the router, or a bias that steers it without a gradient.

Both read the taps `moe.logits` and `moe.index`, of one layer or of several laid together; whoever calls leaves padding
out: `balance(logits[real], index[real], experts)`.
"""

import torch
from torch import Tensor, nn

from qkv.core.experts import Experts


def balance(logits: Tensor, index: Tensor, experts: int) -> Tensor:
    """experts · Σ f·P, least when tokens spread evenly: Fedus et al. 2021, equations 4 to 6.

    f is how many tokens of all chose an expert, P the mean probability that the router gave it; logits [..., E] and
    index [..., J] have their tokens in common. A number, J at perfect balance; the gradient flows through P alone.
    """
    share = load(index, experts) / (index.numel() / index.shape[-1])  # E
    return experts * (share * logits.float().softmax(-1).flatten(0, -2).mean(0)).sum()


def rebalance(bias: Tensor, counts: Tensor, *, rate: float) -> Tensor:
    """The bias [E] for the next step: `rate` up for experts with less than the mean load, down for those with more.

    Wang et al. 2024, algorithm 1, with the loads [E] of the whole last batch; draws no gradient.
    """
    return bias.detach() + rate * (counts.mean() - counts).sign().to(bias)


@torch.no_grad()
def steer(core: nn.Module, loads: Tensor, *, rate: float) -> None:
    """Move the biases of all routers that have one, in place, by the loads [L, E] of the layers with experts."""
    routers = [m for m in core.modules() if isinstance(m, Experts)]
    for router, counts in zip(routers, loads, strict=True):
        if router.spec.balance == "bias":
            router.bias.copy_(rebalance(router.bias, counts.to(router.bias.device), rate=rate))


def load(index: Tensor, experts: int) -> Tensor:
    """How many tokens chose each expert [E]."""
    return torch.bincount(index.flatten(), minlength=experts).float()
