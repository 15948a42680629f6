"""Normalisation of the states: LayerNorm and RMSNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv import spec


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last dimension."""

    def __init__(self, s: spec.Norm, width: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = s, path
        self.weight = nn.Parameter(torch.ones(width))
        if s.kind == "layer":
            self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        s = self.spec
        weight = self.weight + s.offset if s.offset else self.weight
        if s.kind == "rms":
            return F.rms_norm(x, x.shape[-1:], weight, s.eps)
        if s.kind == "unbiased":
            return F.layer_norm(x, x.shape[-1:], weight, None, s.eps)
        return F.layer_norm(x, x.shape[-1:], weight, self.bias, s.eps)
