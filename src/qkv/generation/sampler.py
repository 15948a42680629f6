"""The next token of each row from its logits: what is forbidden, what the text so far changes, the choice, its logprob.

A row's token depends on its own logits, text and seed alone. The distributions are in ../sampling.py, the rules that a
text obeys in constraints.py.
"""

import math
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv import sampling as sample
from qkv.errors import QkvError
from qkv.generation.constraints import Guide
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
        """A token for each row, given logits [B, V]; a logprob that is not finite says that the logits are not.

        Where the rules of a row leave nothing to choose, they say so (`fault`), and its token means nothing.
        """
        wide = torch.promote_types(logits.dtype, torch.float32)
        logprobs = logits.log_softmax(-1, dtype=wide)  # B V
        allowed = self.adjust(logits.to(wide), rows) if self.sampling.adjusts else logprobs
        if len(self.forbid):
            allowed = allowed.index_fill(-1, self.forbid, -math.inf)
        guides = [row.rules.follow(row.tokens) for row in rows]
        if self.sampling.adjusts or any(guides):
            allowed = keep_possible(bar_followers(allowed, guides), logprobs, rows)
        tokens = self.draw(allowed, rows)
        while refused := [(n, t) for n, t in enumerate(tokens.tolist() if any(guides) else ())
                          if (guide := guides[n]) and not rows[n].rules.fault and guide.refuses(t)]:
            index = torch.tensor(refused, device=allowed.device)
            allowed = allowed.index_put((index[:, 0], index[:, 1]), allowed.new_tensor(-math.inf))
            allowed = keep_possible(allowed, logprobs, rows)
            tokens = self.draw(allowed, rows)
        return read_choice(tokens, logprobs, self.options.top_logprobs)

    def draw(self, allowed: Tensor, rows: Seq[Sequence]) -> Tensor:
        """The token [B] of each row by what is allowed [B, V]."""
        if self.sampling.temperature == 0:
            return allowed.argmax(-1)
        probs = sample.distribution(allowed, self.sampling)
        return sample.draw(probs, [row.seed for row in rows], [len(row.tokens) for row in rows])

    def adjust(self, logits: Tensor, rows: Seq[Sequence]) -> Tensor:
        """The logits [B, V] as penalties, bias and the least length change them."""
        device, none = logits.device, logits.shape[-1]
        texts = [row.rules.extend_text(row.tokens, device) for row in rows]
        ends = [torch.tensor(row.rules.ends, dtype=torch.long, device=device) for row in rows]
        text = pad_sequence(texts, batch_first=True, padding_value=none, padding_side="left")  # B T
        written = torch.tensor([len(row.tokens) for row in rows], device=device)  # B
        return sample.adjust(logits, self.sampling, text, written, pad_sequence(ends, True, none))


def bar_followers(logits: Tensor, guides: Seq[Guide | None]) -> Tensor:
    """Logits [B, V] without what the guide of a row allows not."""
    if not any(guides):
        return logits
    barred = torch.zeros(logits.shape, dtype=torch.bool)  # B V, on the host, where guides are
    for guide, row in zip(guides, barred, strict=True):
        if guide is not None:
            guide.bar(row)
    return logits.masked_fill(barred.to(logits.device), -math.inf)


def keep_possible(allowed: Tensor, logprobs: Tensor, rows: Seq[Sequence]) -> Tensor:
    """What is allowed [B, V]; a row that has nothing left gets its fault, and its logprobs back."""
    stuck = (allowed == -math.inf).all(-1)  # B
    for n in stuck.nonzero()[:, 0].tolist():
        rows[n].rules.fault = QkvError(
            "token {number}: nothing may follow what was written; what is asked for (a grammar, banned repetitions, "
            "a least length) contradicts itself here or cannot be spelt by this vocabulary", code="no-token",
            number=len(rows[n].tokens) + 1)
    return torch.where(stuck[:, None], logprobs, allowed)


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
