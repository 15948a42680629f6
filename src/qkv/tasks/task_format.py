"""Texts of a task as rows of ids: how one question, two texts or several answers are laid before a model.

Radford et al. 2018, section 3.3 and figure 1, for decoders that read left to right; Devlin et al. 2018, figure 2, for
encoders. Pure functions of ids. Letters: R rows, C labels. Next: core/model.py, `Labels`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

TASK_TOKENS = ("_start_", "_delimiter_", "_classify_")  # as the authors' own code spells them
SEPARATOR = " ||| "  # stands between two texts where a vocabulary has no token for it: so our own runs lay them
RIGHT = "right"  # the one label of a model that learnt which of several answers is right
Ids = Sequence[int]
Join = Literal["single", "added", "compared"]


@dataclass(frozen=True)
class Example:
    """The rows of ids that one example is read as, and how their logits are joined: see `join_logits`."""

    ids: tuple[tuple[int, ...], ...]
    join: Join = "single"


def format_example(texts: Sequence[Ids], tokens: Sequence[int], *, both: bool = False) -> Example:
    """The rows of one text, of two (`both`: in both orders, whose logits are added), or of a question with its answers.

    `tokens` are the ids of TASK_TOKENS, which open a text, stand between two, and end it: the last one is judged.
    """
    start, delimiter, extract = tokens

    def join_texts(first: Ids, *second: Ids) -> tuple[int, ...]:
        return (start, *first, *(i for text in second for i in (delimiter, *text)), extract)

    if len(texts) > 2:
        return Example(tuple(join_texts(texts[0], answer) for answer in texts[1:]), "compared")
    if both:
        return Example((join_texts(*texts), join_texts(*texts[::-1])), "added")
    return Example((join_texts(*texts),))


def format_without_tokens(texts: Sequence[str], encode: Callable[[str], Ids]) -> Example:
    """Two texts in both orders, or a question with answers, without task tokens: SEPARATOR joins them."""
    if len(texts) == 2:
        return Example(tuple(tuple(encode(SEPARATOR.join(order))) for order in (texts, texts[::-1])), "added")
    return Example(tuple(tuple(encode(f"{texts[0]}{SEPARATOR}{text}")) for text in texts[1:]), "compared")


def format_pair(first: Ids, second: Ids, *, cls: int, sep: int, between: int = 1) -> tuple[list[int], list[int]]:
    """Two texts for an encoder, and the segment of each id: cls, first, sep (0), second, sep (1).

    RoBERTa has two separators `between`, and one at the end like the others.
    """
    middle = [sep] * between
    return [cls, *first, *middle, *second, sep], [0] * (len(first) + 1 + between) + [1] * (len(second) + 1)


def mark_pair(text: str, separator: str) -> str:
    """A text as a tokenizer reads it; of two with a tab between the separator of `format_pair` stands there instead."""
    return text.replace("\t", separator, 1) if separator else text


def number_segments(ids: Ids, sep: int | None) -> list[int]:
    """The segment of each id as `format_pair` counts them: 1 behind the first separator."""
    first = [*ids].index(sep) + 1 if sep is not None and sep in ids else len(ids)
    return [0] * first + [1] * (len(ids) - first)


def join_logits(logits: Tensor, join: Join) -> Tensor:
    """The logits of one example from those of its rows: [R, C] -> [C], or [R] where rows are compared."""
    return logits[:, 0] if join == "compared" else logits.sum(0)
