"""The next token of each row from its logits: what is forbidden, what the text so far changes, the choice, its logprob.

A row's token depends on its own logits, text and seed alone. The distributions are in ../sampling.py.
"""

import math
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import sampling as sample
from qkv.generation.sequence import DecodeOptions, Sequence, Top
from qkv.sampling import Sampling


class Choice(NamedTuple):
    """A token for each row, its logprob under the model itself, and the likeliest ids with theirs, where asked for."""

    ids: Tensor  # B
    tokens: list[int]
    logprobs: list[float]
    top: list[Top]  # empty where nobody asked


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
        return read_choice(tokens, logprobs, self.options.top_logprobs)


def read_choice(tokens: Tensor, logprobs: Tensor, top: int) -> Choice:
    """The chosen tokens [B] and the `top` likeliest of logprobs [B, V], in one copy from the device."""
    chosen = torch.stack((tokens, logprobs.gather(-1, tokens[:, None])[:, 0]))  # ids are exact in fp32
    if not top:
        ids, mine = chosen.tolist()
        return Choice(tokens, list(map(int, ids)), mine, [])
    best = logprobs.topk(min(top, logprobs.shape[-1]))
    rows = torch.cat((chosen.T, best.indices, best.values), 1).tolist()
    half = best.values.shape[1] + 2
    listed = [tuple(zip(map(int, row[2:half]), row[half:], strict=True)) for row in rows]
    return Choice(tokens, [int(row[0]) for row in rows], [row[1] for row in rows], listed)
