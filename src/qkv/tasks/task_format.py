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

TASK_TOKENS = ("_start_", "_delimiter_", "_classify_")  # as the authors' own code spells them
SEPARATOR = " ||| "  # stands between two texts where a vocabulary has no token for it: so our own runs lay them
RIGHT = "right"  # the one label of a model that learnt which of several answers is right
Ids = Sequence[int]
Join = Literal["single", "added", "compared"]


@dataclass(frozen=True)
class TaskTokens:
    """The ids that open a text, stand between two, and end it: the state of the last, `extract`, is what is judged."""

    start: int
    delimiter: int
    extract: int

    @staticmethod
    def from_tokenizer(tokenizer: Tokenizer, spelled: tuple[str, str, str] = TASK_TOKENS) -> "TaskTokens":
        """The task tokens of a vocabulary; a missing one is a QkvError that says what to do."""
        found = [tokenizer.id(token) for token in spelled]
        start, delimiter, extract = (-1 if i is None else i for i in found)
        if None in found:
            missing = ", ".join(token for token, i in zip(spelled, found, strict=True) if i is None)
            raise QkvError("the vocabulary lacks {missing}; name three of its tokens, or add them and train them",
                           missing=missing)
        return TaskTokens(start, delimiter, extract)


@dataclass(frozen=True)
class Example:
    """The rows of ids that one example is read as, and how their logits are joined: see `join_logits`."""

    ids: tuple[tuple[int, ...], ...]
    join: Join = "single"


def format_classification(text: Ids, tokens: TaskTokens, *, longest: int | None = None) -> Example:
    """One text: start, text, extract. Texts longer than `longest` with their task tokens lose their ends."""
    (text,) = truncate((text,), longest, 2)
    return Example(((tokens.start, *text, tokens.extract),))


def join_pair(first: Ids, second: Ids, tokens: TaskTokens, longest: int | None) -> tuple[int, ...]:
    """Two texts in one row: start, first, delimiter, second, extract."""
    first, second = truncate((first, second), longest, 3)
    return (tokens.start, *first, tokens.delimiter, *second, tokens.extract)


def format_entailment(premise: Ids, hypothesis: Ids, tokens: TaskTokens, *, longest: int | None = None) -> Example:
    """Whether a text follows from another: start, premise, delimiter, hypothesis, extract."""
    return Example((join_pair(premise, hypothesis, tokens, longest),))


def format_similarity(a: Ids, b: Ids, tokens: TaskTokens, *, longest: int | None = None) -> Example:
    """Whether two texts mean the same, which has no order: both orders are read, and their states added."""
    return Example((join_pair(a, b, tokens, longest), join_pair(b, a, tokens, longest)), "added")


def format_choices(context: Ids, answers: Sequence[Ids], tokens: TaskTokens, *, longest: int | None = None) -> Example:
    """Which answer fits a context: one row each, whose single logits are compared."""
    if len(answers) < 2:
        raise QkvError("choices: found {answers} answers, expected at least two to choose from",
                       answers=len(answers))
    return Example(tuple(join_pair(context, answer, tokens, longest) for answer in answers), "compared")


def format_example(texts: Sequence[Ids], tokens: TaskTokens, *, both: bool = False) -> Example:
    """The rows of one text, of two (`both`: in both orders), or of a question with its answers."""
    if len(texts) > 2:
        return format_choices(texts[0], texts[1:], tokens)
    if len(texts) == 1:
        return format_classification(texts[0], tokens)
    return (format_similarity if both else format_entailment)(texts[0], texts[1], tokens)


def format_without_tokens(texts: Sequence[str], encode: Callable[[str], Ids]) -> Example:
    """Two texts in both orders, or a question with answers, without task tokens: SEPARATOR joins them."""
    if len(texts) == 2:
        return Example(tuple(tuple(encode(SEPARATOR.join(order))) for order in (texts, texts[::-1])), "added")
    return Example(tuple(tuple(encode(f"{texts[0]}{SEPARATOR}{text}")) for text in texts[1:]), "compared")


def join_logits(logits: Tensor, join: Join, bias: Tensor | None = None) -> Tensor:
    """The logits of one example from those of its rows: [..., R, C] -> [..., C], or [..., R] where rows are compared.

    Logits of added states are added logits, less the output layer's `bias` [C] that was counted once too often.
    """
    if join == "compared":
        return logits[..., 0]
    if join == "single":
        return logits[..., 0, :]
    once = logits.sum(-2)
    return once if bias is None else once - bias * (logits.shape[-2] - 1)


def format_pair(
    first: Ids, second: Ids | None = None, *, cls: int, sep: int, longest: int | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One text or two for an encoder, and the segment of each id: cls, first, sep (0), second, sep (1)."""
    if second is None:
        (first,) = truncate((first,), longest, 2)
        return (cls, *first, sep), (0,) * (len(first) + 2)
    first, second = truncate((first, second), longest, 3)
    return (cls, *first, sep, *second, sep), (0,) * (len(first) + 2) + (1,) * (len(second) + 1)


def truncate(texts: Sequence[Ids], longest: int | None, added: int) -> list[Ids]:
    """Cut texts to `longest` ids less the `added` ones: the longer loses its end first, on a tie the second."""
    kept: list[Ids] = [list(text) for text in texts]
    if longest is None:
        return kept
    if longest - added < len(kept):
        raise QkvError("a limit of {longest} ids leaves no room for {kept} texts beside {added} special tokens; raise "
                       "it",
                       longest=longest, kept=len(kept), added=added)
    while sum(map(len, kept)) > longest - added:
        longer = max(range(len(kept)), key=lambda i: (len(kept[i]), i))
        kept[longer] = kept[longer][:-1]
    return kept
