"""How good a model is by what it finds likely: the last word of a text, and the right one among several answers."""

import math
from dataclasses import dataclass
from pathlib import Path

from qkv.arguments import check_arguments
from qkv.data.sources import get_string, parse_object, read_rows
from qkv.data.text_files import refuse_blank
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.tasks.score import logprob, predict_text
from qkv.tasks.types import Model, Tell, be_silent, name_row

WIDE = "\u2e7f"  # characters above it, such as Chinese ones, have no spaces between words


@dataclass(frozen=True)
class LastWord:
    """The share of texts whose last word is the likeliest one token by token, and the word's perplexity (LAMBADA)."""

    accuracy: float
    right: int
    texts: int
    perplexity: float


@dataclass(frozen=True)
class Choice:
    """The share of questions whose right answer is the likeliest: by log-probability, and by it per UTF-8 byte.

    `chance` is the share that guessing would get; `chosen` has the two numbers of the answers chosen for each question.
    """

    accuracy: float
    normalized_accuracy: float
    chance: float
    questions: int
    chosen: tuple[tuple[int, int], ...]


@check_arguments
def evaluate_last_word(model: Model, path: Path, *, tell: Tell = be_silent) -> LastWord:
    """Each line without its last word is read, and the word predicted (Paperno et al. 2016).

    Raises:
        QkvError: a line of one word, or one that the model cannot read (file and line).
    """
    right, total, rows = 0, 0.0, list(read_rows(path, split_last_word))
    for done, (number, parts) in enumerate(rows, 1):
        with name_row(path, number):
            chances, likeliest = predict_text(model, parts)
        right, total = right + bool(likeliest.all()), total - chances.sum().item()
        tell(done, len(rows))
    mean = total / len(rows)
    return LastWord(right / len(rows), right, len(rows), math.exp(mean) if mean < 700 else math.inf)


def split_last_word(line: str, place: str) -> tuple[str, str]:
    """What stands before the last word and the word with the space before it; a tab may say where it begins."""
    before, tab, word = line.rstrip().rpartition("\t")
    if not tab:
        before, tab, word = line.strip().rpartition(" ")
        word = tab + word
    if not before.strip() or not word.strip():
        raise QkvError("{place}: found one word, expected a text and its last word; where no spaces stand between "
                       "words, put a tab before the last one", place=place)
    return before, word


@check_arguments
def evaluate_choice(model: Model, path: Path, *, tell: Tell = be_silent) -> Choice:
    """Each answer is scored after its question; the likeliest one is chosen.

    Raises:
        QkvError: a broken row, or one that the model cannot read (file and line).
    """
    rows, chosen, chance = list(read_rows(path, parse_question)), list[tuple[int, int]](), 0.0
    for done, (number, (question, choices, _)) in enumerate(rows, 1):
        with name_row(path, number):
            scores = [logprob(model, (question, separate(question, choice) + choice)) for choice in choices]
        each = [score / len(choice.encode("utf-8")) for score, choice in zip(scores, choices, strict=True)]
        chosen.append((scores.index(max(scores)), each.index(max(each))))
        chance += 1 / len(choices)
        tell(done, len(rows))
    hits = [sum(pair[by] == answer for pair, (_, (_, _, answer)) in zip(chosen, rows, strict=True)) for by in (0, 1)]
    count = len(rows)
    return Choice(hits[0] / count, hits[1] / count, chance / count, count, tuple(chosen))


def parse_question(text: str, place: str) -> tuple[str, list[str], int]:
    """Question, choices and the number of the right one of a JSON line; `answer` is its number from 0, or its text."""
    row = parse_object(text, place)
    question, choices, answer = get_string(row, "question", place), row.get("choices"), row.get("answer")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c for c in choices):
        raise QkvError("{place}: key {key!r} holds {found:.60}, expected {wanted}", place=place, key="choices",
                       found=repr(choices), wanted=Message("a list of two or more texts"))
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    refuse_blank((question,), ("question",), place)
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        wanted = Message("one of the choices, or its number from 0 to {last}", last=len(choices) - 1)
        raise QkvError("{place}: key {key!r} holds {found:.60}, expected {wanted}", place=place, key="answer",
                       found=repr(row.get("answer")), wanted=wanted)
    return question, [str(choice) for choice in choices], answer


def separate(question: str, choice: str) -> str:
    """What stands between a question and an answer: a space, unless there is one or either script has none."""
    return "" if question[-1:].isspace() or question[-1:] > WIDE or choice[0] > WIDE or choice[0].isspace() else " "

