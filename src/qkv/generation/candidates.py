"""Followers of live hypotheses, and how beams are shared among them where texts must hold something.

Letters: B sources, M beams, C candidates, V vocabulary.
"""

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import sampling
from qkv.adapt import native, row_ops
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

    def list_wanted(self) -> list[Candidate]:
        """The best follower of each row, and those that its guide wants; none of a dead row."""
        best, alive = self.values.argmax(-1).tolist(), self.sums.flatten().isfinite().tolist()
        pairs = [(row, token) for row, guide in enumerate(self.guides) if alive[row]
                 for token in (best[row], *(guide.list_wanted() if guide else ()))]
        index = torch.tensor(pairs, device=self.values.device).T
        rows, tokens = index[0], index[1]
        totals = self.sums.flatten()[rows] + self.values[rows, tokens]
        found = zip(totals.tolist(), *index.tolist(), self.logprobs[rows, tokens].tolist(), strict=True)
        return [c for c in map(Candidate._make, found) if c.total > -math.inf
                and not ((guide := self.guides[c.row]) and guide.refuses(c.token))]

    def count_lacks(self, candidate: Candidate) -> int:
        """How many tokens the text of a candidate still lacks at least."""
        guide = self.guides[candidate.row]
        return guide.follow(candidate.token).remaining if guide and candidate.token not in self.ends else 0


def share_beams(found: Candidates, reach: Reach, width: int) -> Candidates:
    """The candidates [B, C] that continue or end, the beams shared out among banks (Post and Vilar 2018).

    A bank has the candidates of a source that lack as many tokens: of the best `found`, the best follower of each row
    and those that its guide wants.
    """
    size, (sources, beams) = found.sums.shape[1] + width, reach.sums.shape
    # what is no number stays, and is found out
    every = [{c[1:3]: c for one in zip(*row, strict=True) if (c := Candidate._make(one)).total != -math.inf}
             for row in zip(*(x.tolist() for x in vars(found).values()), strict=True)]
    for c in reach.list_wanted():
        every[c.row // beams][c[1:3]] = c
    table: list[list[Candidate]] = []
    for n in range(sources):
        lacks = {c: reach.count_lacks(c) for c in sorted(every[n].values(), reverse=True)}
        first = fill_banks(lacks, width)
        ended = sum(c.token in reach.ends for c in first)  # in whose place others go on
        rest = {c: k for c, k in lacks.items() if c.token not in reach.ends and c not in first}
        first += fill_banks(rest, ended)
        table.append(first + [Candidate(-math.inf, n * beams, 0, 0.0)] * (size - len(first)))
    return Candidates(*(torch.tensor([[c[field] for c in some] for some in table], dtype=old.dtype, device=old.device)
                        for field, old in enumerate(vars(found).values())))


def fill_banks(lacks: Mapping[Candidate, int], places: int) -> list[Candidate]:
    """The candidates, best first, that get one of the places: banks in turn, from the one that lacks least."""
    banks: dict[int, list[Candidate]] = {}
    for c, k in lacks.items():
        banks.setdefault(k, []).append(c)
    rounds = zip_longest(*(banks[k] for k in sorted(banks)))
    return sorted([c for one in rounds for c in one if c is not None][:places], reverse=True)


def select_top(logits: Tensor, count: int, forbid: Seq[int]) -> tuple[Tensor, Tensor]:
    """As `sampling.select_top` of logits [B, V], by a kernel where there is one: each row alone, in any company."""
    found = native.library() if native.is_plain(logits) else None
    if found is None:
        return sampling.select_top(logits, count, forbid)
    values, ids = row_ops.find_best(found, logits, min(count, logits.shape[-1]), forbid)
    rest = (~values.isfinite().all(1)).nonzero()[:, 0]
    if len(rest):  # rows in which something is no finite number
        values[rest], ids[rest] = sampling.select_top(logits[rest], count, forbid)
    return values, ids
