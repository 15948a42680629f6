"""The next token of each row from its logits: what is forbidden, what the text so far changes, the choice, its logprob.

A row's token depends on its own logits, text and seed alone. The distributions are in ../sampling.py.
"""

import math
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import sampling as sample
from qkv.generation.sequence import DecodeOptions, Sequence
from qkv.sampling import Sampling


class Choice(NamedTuple):
    """A token for each row, its logprob under the model itself, and the likeliest ids with theirs, where asked for."""

    ids: Tensor  # B
    tokens: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]]


class Sampler:
    """Chooses by `sampling` and by what `options` forbid and change."""

    def __init__(self, sampling: Sampling, options: DecodeOptions, device: torch.device) -> None:
        self.sampling, self.options = sampling, options
        self.forbid = torch.tensor(options.forbid, dtype=torch.long, device=device)

    def choose(self, logits: Tensor, rows: Seq[Sequence]) -> Choice:
        """A token for each row, given logits [B, V]; a logprob that is not finite says that the logits are not."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        logprobs = logits.log_softmax(-1, dtype=wide)  # B V
        allowed = logprobs.index_fill(-1, self.forbid, -math.inf) if len(self.forbid) else logprobs
        if self.sampling.temperature == 0:
            tokens = allowed.argmax(-1)
        else:
            probs = sample.distribution(allowed, self.sampling)
            tokens = sample.draw(probs, [row.seed for row in rows], [len(row.tokens) for row in rows])
        mine = logprobs.gather(-1, tokens[:, None])[:, 0]
        return Choice(tokens, tokens.tolist(), mine.tolist(), [[] for _ in rows])
