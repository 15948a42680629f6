"""Texts of a task as rows of ids: how one question, two texts or several answers are laid before a model.

Radford et al. 2018, section 3.3 and figure 1, for decoders that read left to right; Devlin et al. 2018, figure 2, for
encoders. Pure functions of ids. Letters: R rows, C labels. Next: core/model.py, `Labels`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from qkv.errors import QkvError
from qkv.tokenizers.tokenizer import Tokenizer

SPELLED = ("_start_", "_delimiter_", "_classify_")  # as the authors' own code spells them
MARK = " ||| "  # stands between two texts where a vocabulary has no token for it: so our own runs lay them
RIGHT = "right"  # the one label of a model that learnt which of several answers is right
Ids = Sequence[int]
Join = Literal["single", "added", "compared"]


@dataclass(frozen=True)
class Marks:
    """The ids that open a text, stand between two, and end it: the state of the last, `extract`, is what is judged."""

    start: int
    delimiter: int
    extract: int

    @staticmethod
    def of(tokenizer: Tokenizer, spelled: tuple[str, str, str] = SPELLED) -> "Marks":
        """The marks of a tokenizer; a missing one is a QkvError that says how to go on."""
        found = [tokenizer.id(token) for token in spelled]
        start, delimiter, extract = (-1 if i is None else i for i in found)
        if None in found:
            missing = ", ".join(token for token, i in zip(spelled, found, strict=True) if i is None)
            raise QkvError("the vocabulary lacks {missing}; name three of its tokens, or add them and train them",
                           missing=missing)
        return Marks(start, delimiter, extract)


@dataclass(frozen=True)
class Rows:
    """The rows that one example is read as, and what is done with their logits: see `answer`."""

    ids: tuple[tuple[int, ...], ...]
    join: Join = "single"


def classification(tokens: Ids, marks: Marks, *, longest: int | None = None) -> Rows:
    """One text: start, text, extract. Texts longer than `longest` with their marks lose their ends."""
    (text,) = cut((tokens,), longest, 2)
    return Rows(((marks.start, *text, marks.extract),))


def joined(first: Ids, second: Ids, marks: Marks, longest: int | None) -> tuple[int, ...]:
    """Two texts in one row: start, first, delimiter, second, extract."""
    first, second = cut((first, second), longest, 3)
    return (marks.start, *first, marks.delimiter, *second, marks.extract)


def entailment(premise: Ids, hypothesis: Ids, marks: Marks, *, longest: int | None = None) -> Rows:
    """Whether a text follows from another: start, premise, delimiter, hypothesis, extract."""
    return Rows((joined(premise, hypothesis, marks, longest),))


def similarity(a: Ids, b: Ids, marks: Marks, *, longest: int | None = None) -> Rows:
    """Whether two texts mean the same, which has no order: both orders are read, and their states added."""
    return Rows((joined(a, b, marks, longest), joined(b, a, marks, longest)), "added")


def choices(context: Ids, answers: Sequence[Ids], marks: Marks, *, longest: int | None = None) -> Rows:
    """Which answer fits a context: one row each, whose single logits are compared."""
    if len(answers) < 2:
        raise QkvError("choices: found {answers} answers, expected at least two to choose from",
                       answers=len(answers))
    return Rows(tuple(joined(context, answer, marks, longest) for answer in answers), "compared")


def laid(texts: Sequence[Ids], marks: Marks, *, both: bool = False) -> Rows:
    """The rows of one text, of two (`both`: in both orders), or of a question with its answers."""
    if len(texts) > 2:
        return choices(texts[0], texts[1:], marks)
    if len(texts) == 1:
        return classification(texts[0], marks)
    return (similarity if both else entailment)(texts[0], texts[1], marks)


def unmarked(texts: Sequence[str], encode: Callable[[str], Ids]) -> Rows:
    """Two texts in both orders, or a question with answers, by a vocabulary without marks: MARK stands between."""
    if len(texts) == 2:
        return Rows(tuple(tuple(encode(MARK.join(order))) for order in (texts, texts[::-1])), "added")
    return Rows(tuple(tuple(encode(f"{texts[0]}{MARK}{text}")) for text in texts[1:]), "compared")


def answer(logits: Tensor, join: Join, bias: Tensor | None = None) -> Tensor:
    """The logits of one example from those of its rows: [..., R, C] -> [..., C], or [..., R] where rows are compared.

    Logits of added states are added logits, less the output layer's `bias` [C] that was counted once too often.
    """
    if join == "compared":
        return logits[..., 0]
    if join == "single":
        return logits[..., 0, :]
    once = logits.sum(-2)
    return once if bias is None else once - bias * (logits.shape[-2] - 1)


def pair(
    first: Ids, second: Ids | None = None, *, cls: int, sep: int, longest: int | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One text or two for an encoder, and the segment of each id: cls, first, sep (0), second, sep (1)."""
    if second is None:
        (first,) = cut((first,), longest, 2)
        return (cls, *first, sep), (0,) * (len(first) + 2)
    first, second = cut((first, second), longest, 3)
    return (cls, *first, sep, *second, sep), (0,) * (len(first) + 2) + (1,) * (len(second) + 1)


def cut(texts: Sequence[Ids], longest: int | None, marks: int) -> list[Ids]:
    """Texts that fit into `longest` ids beside so many `marks`: the longer loses its end first, on a tie the second."""
    kept: list[Ids] = [list(text) for text in texts]
    if longest is None:
        return kept
    if longest - marks < len(kept):
        raise QkvError("a limit of {longest} ids leaves no room for {kept} texts beside {marks} marks; raise it",
                       longest=longest, kept=len(kept), marks=marks)
    while sum(map(len, kept)) > longest - marks:
        longer = max(range(len(kept)), key=lambda i: (len(kept[i]), i))
        kept[longer] = kept[longer][:-1]
    return kept
