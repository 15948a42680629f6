"""The reasons of masked cells from the rules themselves."""

import torch
from torch import Tensor

from qkv import spec
from qkv.core.masks import REASONS, MaskContext, find_blocked


def find_reasons(rule: spec.Mask, at: MaskContext) -> Tensor:
    """Why each cell is masked: uint8 [B or 1, T, S], an index into REASONS, 0 where seen; the first reason wins."""
    why = torch.zeros(1, len(at.q_pos), len(at.k_pos), dtype=torch.uint8, device=at.k_pos.device)
    for reason, cells in find_blocked(rule, at):
        why = torch.where((why == 0) & cells, torch.tensor(REASONS.index(reason), dtype=torch.uint8), why)
    return why
