"""Followers of live hypotheses, and how beams are shared among them where texts must hold something.

Letters: B sources, M beams, C candidates, V vocabulary.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.generation.constraints import Guide


class Candidate(NamedTuple):
    """A follower of a row: the sum that the row has with it, and its logprob under the model itself."""

    total: float
    row: int
    token: int
    logprob: float


@dataclass
class Candidates:
    """Followers of each source, best first, but where its beams are shared out among guides' banks."""

    sums: Tensor  # B C
    parents: Tensor  # B C, rows
    tokens: Tensor  # B C
    logprobs: Tensor  # B C, of the model itself

    def select_columns(self, columns: Tensor) -> "Candidates":
        """The candidates of these columns [B, M]."""
        return Candidates(*(x.gather(1, columns) for x in vars(self).values()))


class Reach(NamedTuple):
    """All that may follow the rows of a search."""

    values: Tensor  # BM V, what each id adds to its row's sum
    logprobs: Tensor  # BM V, of the model itself
    sums: Tensor  # B M
    guides: Seq[Guide | None]  # BM
    ends: tuple[int, ...]

    def extend(self, row: int, token: int) -> Candidate:
        """The candidate that a token makes of a row."""
        total = float(self.sums.flatten()[row]) + float(self.values[row, token])
        return Candidate(total, row, token, float(self.logprobs[row, token]))

    def list_wanted(self, row: int) -> list[Candidate]:
        """The best follower of a row, and those that its guide wants; none of a dead row."""
        guide = self.guides[row]
        tokens = (int(self.values[row].argmax()), *(guide.list_wanted() if guide else ()))
        found = [self.extend(row, token) for token in tokens]
        return [c for c in found if c.total > -math.inf and not (guide and guide.refuses(c.token))]

    def count_lacks(self, candidate: Candidate) -> int:
        """How many tokens the text of a candidate still lacks at least."""
        guide = self.guides[candidate.row]
        return guide.follow(candidate.token).remaining if guide and candidate.token not in self.ends else 0


def share_beams(found: Candidates, reach: Reach, width: int) -> Candidates:
    """The candidates [B, C] that continue or end, the beams shared out among banks (Post and Vilar 2018).

    A bank has the candidates of a source that lack as many tokens: of the best `found`, the best follower of each row
    and those that its guide wants.
    """
    size = found.sums.shape[1] + width
    table: list[list[Candidate]] = []
    for n, rows in enumerate(torch.arange(reach.sums.numel()).view(reach.sums.shape).tolist()):
        best = [Candidate(*one) for one in zip(*(x[n].tolist() for x in vars(found).values()), strict=True)]
        more = [c for row in rows for c in reach.list_wanted(row)]
        every = sorted({c[1:3]: c for c in (*best, *more) if c.total > -math.inf}.values(), reverse=True)
        first = fill_banks(every, reach, width)
        going = [c for c in every if c.token not in reach.ends]
        rest = [c for c in going if c not in first]
        first += fill_banks(rest, reach, width - len(going) + len(rest))  # in the place of those that end
        table.append(first + [Candidate(-math.inf, rows[0], 0, 0.0)] * (size - len(first)))
    return Candidates(*(torch.tensor([[c[field] for c in some] for some in table], dtype=old.dtype, device=old.device)
                        for field, old in enumerate(vars(found).values())))


def fill_banks(candidates: Seq[Candidate], reach: Reach, places: int) -> list[Candidate]:
    """The candidates, best first, that get one of the places: banks in turn, from the one that lacks least."""
    banks: dict[int, list[Candidate]] = {}
    for c in candidates:
        banks.setdefault(reach.count_lacks(c), []).append(c)
    rounds = zip_longest(*(banks[lacks] for lacks in sorted(banks)))
    return sorted([c for one in rounds for c in one if c is not None][:places], reverse=True)
