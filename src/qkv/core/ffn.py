"""The feed-forward network of each position.

Letters: B batch, T queries, D width, F ffn.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv import spec
from qkv.core.step import Step

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


class Ffn(nn.Module):
    """Up, activation (times gate), down, for each position alone."""

    def __init__(self, s: spec.Ffn, width: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        if s.gated:
            self.gate = nn.Linear(width, s.width, bias=s.bias)
        self.up = nn.Linear(width, s.width, bias=s.bias)
        self.down = nn.Linear(s.width, width, bias=s.bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s = self.spec
        x = step.tap(self, "norm", x)  # B T D
        up = step.tap(self, "up", self.up(x))  # B T F
        if s.gated:
            gate = step.tap(self, "gate", self.gate(x))  # B T F
            act = ACTIVATIONS[s.activation](gate) * up  # B T F
        else:
            act = ACTIVATIONS[s.activation](up)  # B T F
        act = step.tap(self, "act", act)  # B T F
        return step.tap(self, "out", self.down(step.drop(act, s.dropout)))  # B T D
