"""What keeps experts equally busy: a loss that pulls the router, or a bias that steers it without a gradient.

Both read the taps `moe.logits` and `moe.index`, of one layer or of several laid together; whoever calls leaves padding
out: `balance(logits[real], index[real], experts)`.
"""

import torch
from torch import Tensor


def balance(logits: Tensor, index: Tensor, experts: int) -> Tensor:
    """experts · Σ f·P, least when tokens spread evenly: Fedus et al. 2021, equations 4 to 6.

    f is how many tokens of all chose an expert, P the mean probability that the router gave it; logits [..., E] and
    index [..., J] have their tokens in common. A number, J at perfect balance; the gradient flows through P alone.
    """
    share = load(index, experts) / (index.numel() / index.shape[-1])  # E
    return experts * (share * logits.float().softmax(-1).flatten(0, -2).mean(0)).sum()


def rebalance(bias: Tensor, index: Tensor, *, rate: float) -> Tensor:
    """The bias [E] for the next step: `rate` up for experts with less than the mean load, down for those with more.

    Wang et al. 2024, algorithm 1, with the experts [..., J] that the whole last batch chose; draws no gradient.
    """
    counts = load(index, len(bias))  # E
    return bias.detach() + rate * (counts.mean() - counts).sign().to(bias)


def load(index: Tensor, experts: int) -> Tensor:
    """How many tokens chose each expert [E]."""
    return torch.bincount(index.flatten(), minlength=experts).float()
