"""What training data are: their kind, how much there is and how long texts are. Next: planner.py."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.data.shards import Mixture
from qkv.training.large_text import LargeText
from qkv.training.splits import Splits

LOOKED = 20_000  # rows that are measured, evenly over all
SEEN, LOOKS = 30_000, 30  # characters of a text that are measured at each of so many places
UNSPACED = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\u0e00-\u0e7f]")  # Chinese, Japanese; Thai
WORDS = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff]|[^\s\u2e80-\u9fff\uf900-\ufaff]+")  # each Chinese character is one
TYPICAL = 64  # tokens of a row of plain text that is timed
FEW_WORDS = 4  # texts of fewer have no four words together, which BLEU counts
LABELLED = ("labels", "similarity", "choice")


@dataclass(frozen=True)
class Facts:
    """What was measured of the training data: `characters` of both sides, of which `letters` are the target's."""

    kind: str  # "pairs", "labels", "plain text", "token shards" or "conversations": what the data are
    objective: str  # what is learnt from them
    rows: int
    characters: int
    letters: int
    alphabet: int
    unspaced: float  # the share of characters of scripts that put no spaces between words
    longest: int  # characters of a source, which one row in a hundred exceeds
    share: float = 0.0  # of the rows, held out because nobody said which
    recurring: float = 1.0  # the share of words that come more than once, on the side where fewer do
    answer: float = math.inf  # words of a target

    def measure_row(self, each: float, longest: int) -> tuple[int, int]:
        """The tokens of a source and of a target (0: none) in an average row, whose tokens have `each` characters.

        A pair's have their end, and all are rounded up to fours; none has more than `longest`.
        """
        rows, end = max(1, self.rows), 1 if self.kind == "pairs" else 0
        sides = {"pairs": (self.characters - self.letters, self.letters), "labels": (self.letters, 0)}
        first, second = sides.get(self.kind, (0, TYPICAL * each * rows))
        return tuple(min(longest, 4 * math.ceil((n / rows / each + end) / 4) if n else 0)
                     for n in (first, second))  # type: ignore[return-value]


def measure_data(splits: Splits, objective: str) -> Facts:
    """The facts of the training data, from rows or stretches drawn evenly over all of it."""
    train, labelled = splits.train, objective in LABELLED
    if isinstance(train, Mixture):
        count = 4 * sum(len(shard) for shard in train.shards)
        return Facts("token shards", objective, count, count, count, 0, 0.0, 0)
    if isinstance(train, str | LargeText):
        places = range(0, len(train), max(1, len(train) // LOOKS))
        some = "".join(train[at : at + SEEN] for at in places) if len(train) > LOOKS * SEEN else train[:]
        return Facts("plain text", objective, len(train) // 64, len(train), len(train), len(set(some)),
                     len(UNSPACED.findall(some)) / max(1, len(some)), 0)
    rows = train[:: max(1, len(train) // LOOKED)]
    if not rows:  # what training refuses
        return Facts(splits.kind, objective, 0, 0, 0, 0, 0.0, 0)
    kind = "conversations" if objective == "chat" else splits.kind  # pairs too are learnt as questions and answers
    if kind == "conversations":
        rows = [("\n".join(str(m["content"]) if isinstance(m, dict) else m for m in talk), "") for talk in rows]
    sources, targets = [row[0] for row in rows], [] if labelled else [row[1] for row in rows]
    text, scale, lengths = "".join((*sources, *targets)), len(train) / len(rows), sorted(map(len, sources))
    letters = sum(map(len, targets)) or len(text)
    return Facts("labels" if labelled else kind, objective, len(train), int(scale * len(text)),
                 int(scale * letters), len(set(text)), len(UNSPACED.findall(text)) / max(1, len(text)),
                 lengths[int(0.99 * (len(lengths) - 1))], splits.share,
                 min(measure_recurring(side) for side in (sources, targets)), count_words(targets))


def count_words(texts: Sequence[str]) -> float:
    """How many words a text has on average; each Chinese character is one."""
    return sum(len(WORDS.findall(text)) for text in texts) / len(texts) if texts else math.inf


def measure_recurring(texts: Sequence[str]) -> float:
    """The share of words, as spaces part them, that come more than once; 1.0 where the script writes no spaces."""
    text = " ".join(texts)
    if not texts or len(UNSPACED.findall(text)) > 0.2 * len(text):
        return 1.0
    counts = Counter(text.split())
    return sum(n for n in counts.values() if n > 1) / max(1, counts.total())
