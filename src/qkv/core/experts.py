"""Mixture of experts: a router picks a few feed-forward networks for each token; `route` picks, `dispatch` computes.

Letters: B batch, T queries, D width, F ffn, E experts, J chosen experts, N flat tokens.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv import spec
from qkv.core.ffn import ACTIVATIONS, Ffn
from qkv.core.step import Step


class ExpertLinear(nn.Module):
    """The same linear layer of all experts, in one tensor [E, out, width]."""

    def __init__(self, s: spec.Experts, width: int, out: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        self.weight = nn.Parameter(torch.empty(s.num_experts, out, width).normal_(0.0, width**-0.5))

    def forward(self) -> tuple[Tensor, ...]:
        """Each expert's matrix [out, in]: split once, so that the backward pass writes the gradient once."""
        return self.weight.unbind()


class Experts(nn.Module):
    """Each token goes to the few experts that the router chooses (Shazeer et al. 2017), and to a shared one."""

    bias: Tensor
    multiply = staticmethod(F.linear)  # rows by an expert's matrix; adapt/row_layers.py has a faster one

    def __init__(self, s: spec.Experts, width: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        self.act = ACTIVATIONS[s.expert.activation]
        if s.expert.gated:
            self.gate = ExpertLinear(s, width, s.expert.width, f"{path}.gate")
        self.up = ExpertLinear(s, width, s.expert.width, f"{path}.up")
        self.down = ExpertLinear(s, s.expert.width, width, f"{path}.down")
        self.router = nn.Linear(width, s.num_experts, bias=False)
        if s.balance == "bias":
            self.register_buffer("bias", torch.zeros(s.num_experts, dtype=torch.float32))
        if s.shared:
            self.shared = Ffn(s.shared, width, f"{path}.shared")
        if s.shared_gate:
            self.shared_gate = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.tap(self, "norm", x)  # B T D
        logits = step.tap(self, "logits", fp32_linear(x, self.router.weight))  # B T E
        index, weight = route(logits, self.bias if s.balance == "bias" else 0.0, s)  # B T J
        index, weight = step.tap(self, "index", index), step.tap(self, "weight", weight)  # B T J, B T J
        out = self.dispatch(x.flatten(0, 1), index.flatten(0, 1), weight.flatten(0, 1), step).view_as(x)  # B T D
        if s.shared:
            shared = self.shared(x, step)  # B T D
            if s.shared_gate:
                shared = shared * self.shared_gate(x).sigmoid()  # B T D
            out = out + step.tap(self, "shared", shared)  # B T D
        return step.tap(self, "out", out)  # B T D

    def dispatch(self, x: Tensor, index: Tensor, weight: Tensor, step: Step) -> Tensor:
        """Each expert computes the tokens that were routed to it; the weighted outputs are summed in at least fp32."""
        s = self.spec
        gates, ups, downs = self.gate() if s.expert.gated else (), self.up(), self.down()
        out = torch.zeros_like(x, dtype=weight.dtype)  # N D
        for e in active_experts(index, s.num_experts):
            token, place = (index == e).nonzero(as_tuple=True)  # tokens routed to e, and the rank of their choice
            mine = x[token]
            up = self.multiply(mine, ups[e])
            if s.expert.gated:
                act = self.act(self.multiply(mine, gates[e])) * up
            else:
                act = self.act(up)
            said = self.multiply(step.drop(act, s.expert.dropout), downs[e])
            out.index_add_(0, token, said * weight[token, place, None])
        return out.to(x.dtype)  # N D


def fp32_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., D] times weight [E, D], [..., E], in at least 32 bits, under autocast too.

    Rounding in the router sends tokens to other experts (Fedus et al. 2021, section 2.4).
    """
    x, weight = to_fp32(x), to_fp32(weight)
    if x.is_meta:  # nothing is computed, and autocast does not support this device
        return F.linear(x, weight)
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x, weight)


def to_fp32(x: Tensor) -> Tensor:
    """x in at least 32 bits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def route(logits: Tensor, bias: Tensor | float, s: spec.Experts) -> tuple[Tensor, Tensor]:
    """The chosen experts and their weights, both [..., J], from the router's logits [..., E].

    The best scores win (Shazeer et al. 2017), within the open groups (Liu et al. 2024, section 2.2.2); `bias`
    changes the choice but not the weights (Wang et al. 2024).
    """
    score = logits.softmax(-1) if s.score == "softmax" else logits.sigmoid()
    choice = score + bias if s.balance == "bias" else score
    if s.groups > 1:
        choice = mask_closed_groups(choice, s)
    index = choice.topk(s.top_k, -1).indices
    weight = score.gather(-1, index)
    if s.weights == "sum to one":
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    return index, weight * s.scale


def mask_closed_groups(choice: Tensor, s: spec.Experts) -> Tensor:
    """Scores [..., E] with minus infinity in all groups but the open ones."""
    groups = choice.unflatten(-1, (s.groups, -1))
    if s.group_score == "best":
        best = groups.amax(-1)
    else:
        best = groups.topk(2, -1).values.sum(-1)
    closed = torch.ones_like(best, dtype=torch.bool).scatter(-1, best.topk(s.topk_groups, -1).indices, False)
    return groups.masked_fill(closed[..., None], -torch.inf).flatten(-2)


def active_experts(index: Tensor, count: int) -> Iterable[int]:
    """The experts that some token chose, so that only their weights are read; all of them in a compiled graph."""
    return range(count) if torch.compiler.is_compiling() else index.unique().tolist()
