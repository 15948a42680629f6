"""What a text must obey while it is written: begin so, hold this, never say that, follow a grammar.

A guide is such a rule at one point of a text. It never changes: `follow` gives the guide after a token, so that the
children of a beam share their parent's. Sampler and BeamSearch ask it; it knows no model. Letters: V vocabulary.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from qkv.errors import QkvError


class Guide:
    """A rule at one point of a text; this one allows everything, and the others say what differs."""

    @property
    def remaining(self) -> int:
        """How many tokens must still come, at least, before the text may end."""
        return 0

    def bar(self, barred: Tensor) -> None:
        """Mark the ids that may not come next in barred [V]."""

    def refuses(self, token: int) -> bool:
        """Whether an id that is not barred may not come next either: what is too slow to ask of every id."""
        return False

    def list_wanted(self) -> Seq[int]:
        """The ids that bring the text nearer to what it must hold."""
        return ()

    def follow(self, token: int) -> "Guide":
        """The rule after one more token."""
        return self


@dataclass(frozen=True)
class Beginning(Guide):
    """The text begins with `ids`."""

    ids: tuple[int, ...]

    @property
    def remaining(self) -> int:
        return len(self.ids)

    def bar(self, barred: Tensor) -> None:
        if self.ids:
            allowed = barred[self.ids[0]].clone()
            barred.fill_(True)
            barred[self.ids[0]] = allowed

    def follow(self, token: int) -> Guide:
        return Beginning(self.ids[1:]) if self.ids else self


@dataclass(frozen=True)
class Phrase:
    """Ids that must stand somewhere in a row, in one of several spellings, and how much of each the text ends with."""

    spellings: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]

    @property
    def remaining(self) -> int:
        return min(len(ids) - n for ids, n in zip(self.spellings, self.held, strict=True))

    def follow(self, token: int) -> "Phrase":
        if not self.remaining:
            return self
        pairs = zip(self.spellings, self.held, strict=True)
        return Phrase(self.spellings, tuple(match_end((*ids[:n], token), ids) for ids, n in pairs))


def match_end(text: tuple[int, ...], ids: tuple[int, ...]) -> int:
    """The length of the longest beginning of `ids` that `text` ends with."""
    return next((n for n in range(min(len(text), len(ids)), 0, -1) if text[-n:] == ids[:n]), 0)


@dataclass(frozen=True)
class Holding(Guide):
    """The text holds every phrase before one of `ends` ends it."""

    phrases: tuple[Phrase, ...]
    ends: tuple[int, ...]

    @staticmethod
    def from_spellings(phrases: Seq[Seq[tuple[int, ...]]], ends: tuple[int, ...]) -> "Holding":
        """The rule at the beginning of a text, of phrases that each have some spellings."""
        return Holding(tuple(Phrase(tuple(some), (0,) * len(some)) for some in phrases), ends)

    @property
    def remaining(self) -> int:
        return sum(phrase.remaining for phrase in self.phrases)

    def bar(self, barred: Tensor) -> None:
        if self.remaining:
            barred[list(self.ends)] = True

    def list_wanted(self) -> Seq[int]:
        return [ids[n] for phrase in self.phrases if phrase.remaining
                for ids, n in zip(phrase.spellings, phrase.held, strict=True)]

    def follow(self, token: int) -> Guide:
        return replace(self, phrases=tuple(phrase.follow(token) for phrase in self.phrases))


@dataclass(frozen=True)
class Avoiding(Guide):
    """The text never holds one of `texts`, however its tokens cut them, nor one of the rows of `ids`."""

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    decode: Callable[[Seq[int]], str]
    tokens: tuple[int, ...] = ()

    def refuses(self, token: int) -> bool:
        tokens = (*self.tokens, token)
        if any(tokens[-len(row) :] == row for row in self.ids):
            return True
        text = self.decode(tokens) if self.texts else ""
        return any(one in text for one in self.texts)

    def follow(self, token: int) -> Guide:
        return replace(self, tokens=(*self.tokens, token))


@dataclass(frozen=True)
class Several(Guide):
    """Several rules at once."""

    guides: tuple[Guide, ...]

    @property
    def remaining(self) -> int:
        guides = self.guides
        forced = next((g.ids for g in guides if isinstance(g, Beginning)), ())
        for token in forced:  # what the beginning holds need not come again
            guides = [g.follow(token) for g in guides]
        return len(forced) + sum(g.remaining for g in guides)

    def bar(self, barred: Tensor) -> None:
        for guide in self.guides:
            guide.bar(barred)

    def refuses(self, token: int) -> bool:
        return any(guide.refuses(token) for guide in self.guides)

    def list_wanted(self) -> Seq[int]:
        return [token for guide in self.guides for token in guide.list_wanted()]

    def follow(self, token: int) -> Guide:
        return Several(tuple(guide.follow(token) for guide in self.guides))


def join_guides(guides: Seq[Guide]) -> Guide | None:
    """One rule out of several; None out of none."""
    return Several(tuple(guides)) if len(guides) > 1 else next(iter(guides), None)


@dataclass(slots=True)
class Rules:
    """What the choice of a row's next token looks at beside its logits.

    before  the ids that the text goes on from, which repetition counts
    ends    the ids that end it
    guide   what it must obey, after the tokens that were `read`
    fault   why no token can follow
    """

    before: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    guide: Guide | None = None
    read: int = 0
    text: Tensor | None = None  # T, `before` and the tokens so far
    fault: QkvError | None = None

    def follow(self, tokens: Seq[int]) -> Guide | None:
        """The guide after all of `tokens`."""
        if self.guide is not None:
            self.guide = reduce(lambda guide, token: guide.follow(token), tokens[self.read :], self.guide)
        self.read = len(tokens)
        return self.guide

    def extend_text(self, tokens: Seq[int], device: torch.device) -> Tensor:
        """The text so far [T]."""
        if self.text is None:
            self.text = torch.tensor(self.before, dtype=torch.long, device=device)
        new = tokens[len(self.text) - len(self.before) :]
        if new:
            self.text = torch.cat((self.text, torch.tensor(new, device=device)))
        return self.text
