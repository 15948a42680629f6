"""Corrupted text to learn from: masked words, spans, infilling, blanks, a prefix. Pure functions.

Every draw is a function of (seed, epoch, index) alone: text `index` is spoilt alike in every run of that epoch, and in
no other batch's way. Ids go in and come out as lists; what belongs into a batch is collate.py's. Next: collate.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from qkv.data.collate import IGNORED, Blanks
from qkv.data.order import make_generator
from qkv.errors import QkvError

APART = 0x5370616E  # keeps these draws away from those that order batches


@dataclass(frozen=True)
class Draw:
    """Which draw this is: the same three numbers give the same one."""

    seed: int
    epoch: int
    index: int

    def at_index(self, index: int) -> "Draw":
        """The draw of another index in the same epoch."""
        return Draw(self.seed, self.epoch, index)

    def make_generator(self) -> np.random.Generator:
        """The generator of this draw, at its beginning."""
        return make_generator(seed=self.seed ^ APART, epoch=self.epoch, index=self.index)


@dataclass(frozen=True)
class TokenIds:
    """The ids that mean something to a corruption: what hides a word, what is never hidden, how many ids there are."""

    mask: int
    special: frozenset[int]
    vocabulary: int

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """The ids that are not special tokens: a random word is one of them."""
        return np.setdiff1d(np.arange(self.vocabulary), [*self.special, self.mask])


def mask_words(ids: Sequence[int], marks: TokenIds, draw: Draw, *, share: float = 0.15) -> tuple[list[int], list[int]]:
    """(ids with words hidden, labels that hold the hidden ones and -100 elsewhere), both as long as `ids`.

    `share` of the words that are not special, at least one, are to be guessed: 80 % of them become the mask, 10 % a
    random word, 10 % stay (Devlin et al. 2018, section 3.1 and appendix A.1).
    """
    chance = draw.make_generator()
    open_ = [i for i, token in enumerate(ids) if token not in marks.special]
    count = max(1, round(share * len(open_))) if open_ else 0
    chosen = [open_[i] for i in chance.permutation(len(open_))[:count]]
    fates, words = chance.random(count), marks.words[chance.integers(len(marks.words), size=count)]
    hidden, labels = list(ids), [IGNORED] * len(ids)
    for place, fate, word in zip(chosen, fates.tolist(), words.tolist(), strict=True):
        labels[place] = ids[place]
        hidden[place] = marks.mask if fate < 0.8 else word if fate < 0.9 else ids[place]
    return hidden, labels


def corrupt_spans(
    ids: Sequence[int], sentinels: Sequence[int], draw: Draw, *, share: float = 0.15, mean: float = 3.0
) -> tuple[list[int], list[int]]:
    """(text with a sentinel in the place of each span, each span after its sentinel and one more sentinel to end).

    About `share` of the ids are lost, in spans of `mean` on average (Raffel et al. 2020, sections 3.1.4 and 3.3.4); the
    lengths of spans and of the gaps are drawn uniformly from all that sum up, and text comes before the first.

    Raises:
        QkvError: a text of less than two ids, or more spans than there are sentinels.
    """
    if len(ids) < 2:
        raise QkvError("spans: found a text of {ids} ids, expected at least 2: one to hide and one to keep",
                       ids=len(ids))
    chance = draw.make_generator()
    lost = min(max(round(share * len(ids)), 1), len(ids) - 1)
    count = min(max(round(lost / mean), 1), len(ids) - lost)
    if count >= len(sentinels):
        raise QkvError("spans: {count} spans need {count2} sentinels, found {sentinels}", count=count,
                       count2=count + 1, sentinels=len(sentinels))
    kept, gone = split_total(len(ids) - lost, count, chance), split_total(lost, count, chance)
    source, target, at = list[int](), list[int](), 0
    for sentinel, before, length in zip(sentinels, kept, gone, strict=False):
        source += [*ids[at : at + before], sentinel]
        target += [sentinel, *ids[at + before : at + before + length]]
        at += before + length
    return source, [*target, sentinels[count]]


def split_total(whole: int, parts: int, chance: np.random.Generator) -> list[int]:
    """`whole` as the sum of so many numbers of at least 1, every such sum as likely as any other."""
    ends = np.sort(chance.permutation(whole - 1)[: parts - 1]) + 1
    return np.diff([0, *ends, whole]).tolist()


def infill_spans(ids: Sequence[int], mask: int, draw: Draw, *, share: float = 0.3, mean: float = 3.0) -> list[int]:
    """The text with one mask in the place of each span, whose length is Poisson(`mean`); of an empty span, a mask more.

    Spans are drawn until `share` of the ids are lost, and do not touch (Lewis et al. 2020, section 2.2).
    """
    chance = draw.make_generator()
    lengths = draw_lengths(round(share * len(ids)), mean, chance, least=0)
    found, at = list[int](), 0
    for start, length in place_spans(len(ids), lengths, chance):
        found += [*ids[at:start], mask]
        at = start + length
    return [*found, *ids[at:]]


def draw_lengths(budget: int, mean: float, chance: np.random.Generator, *, least: int) -> list[int]:
    """Poisson lengths, none below `least`, until they sum up to `budget`; the last is cut to fit."""
    found = list[int]()
    while sum(found) < budget:
        found.append(min(max(int(chance.poisson(mean)), least), budget - sum(found)))
    return found


def place_spans(whole: int, lengths: Sequence[int], chance: np.random.Generator) -> list[tuple[int, int]]:
    """(start, length) of spans that neither overlap nor touch, in the text's order; what has no room is left out."""
    kept = whole - sum(lengths)
    gaps = np.sort(chance.permutation(kept + 1)[: len(lengths)])  # kept ids before each span
    before = np.cumsum([0, *lengths])
    return [(int(gap + before[i]), lengths[i]) for i, gap in enumerate(gaps)]


def permute_sentences(sentences: Sequence[Sequence[int]], draw: Draw) -> list[int]:
    """The sentences of a text in a random order, as one text (Lewis et al. 2020, section 2.2)."""
    return [token for i in draw.make_generator().permutation(len(sentences)) for token in sentences[i]]


def blank_spans(
    ids: Sequence[int], mask: int, ends: tuple[int, int], draw: Draw, *, share: float = 0.15, mean: float = 3.0
) -> Blanks:
    """Blank infilling (Du et al. 2022, section 2.1): spans of Poisson(`mean`) words, at least 1, until `share` is lost.

    Each span leaves one mask; its words are written after the start id ends[0] and closed by the end id ends[1].
    """
    chance, (start, end) = draw.make_generator(), ends
    lengths = draw_lengths(max(1, round(share * len(ids))), mean, chance, least=1)
    text, at, where = list[int](), 0, list[tuple[int, int, int]]()
    for first, length in place_spans(len(ids), lengths, chance):
        text += [*ids[at:first], mask]
        where.append((first, length, len(text) - 1))
        at = first + length
    text += ids[at:]
    row, labels = list(text), [IGNORED] * len(text)
    places, counts = list(range(len(text))), [0] * len(text)
    for i in chance.permutation(len(where)):
        first, length, place = where[i]
        words = ids[first : first + length]
        row += [start, *words]
        labels += [*words, end]
        places += [place] * (length + 1)
        counts += range(1, length + 2)
    return Blanks(row, labels, len(text), np.array([places, counts]))


def split_prefix(ids: Sequence[int], draw: Draw) -> tuple[list[int], list[int]]:
    """(prefix, what follows), cut at a random place with at least one id on each side (Raffel et al. 2020, 3.2.1).

    Raises:
        QkvError: a text of less than two ids.
    """
    if len(ids) < 2:
        raise QkvError("divided: found a text of {ids} ids, expected at least 2: one to read and one to predict",
                       ids=len(ids))
    at = int(draw.make_generator().integers(1, len(ids)))
    return list(ids[:at]), list(ids[at:])
