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
ONCE = 0.1  # share of different words that occur once; natural texts have 0.17 to 0.8, templates filled in almost 0
RECURRING = 0.3  # share of recurring words below which characters are learnt; a hundred sentences have 0.4 to 0.7
ENOUGH = 200  # rows that show an order; what helps to find it is no better with fewer
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
    longest: int  # characters of a text, or of the longer side of a pair, which one row in a hundred exceeds
    share: float = 0.0  # of the rows, held out because nobody said which
    recurring: float = 1.0  # the share of words that occur more than once, on the side where fewer do
    metric: str = "bleu"  # of pairs
    once: float = 1.0  # the share of different words that occur once, in sources with labels
    two_texts: bool = False  # whether a label is that of two texts

    @property
    def ordered(self) -> bool:
        """Whether labels go by the order of words, as each is in many texts, or of letters, as hardly any is in two."""
        letters = self.recurring < RECURRING and self.rows >= ENOUGH
        return self.objective == "labels" and (self.once < ONCE or letters)

    @property
    def rates(self) -> str:
        """Which rates are usual: those of the kind of data, or those of "ordered" labels of enough rows."""
        return "ordered" if self.ordered and self.rows >= ENOUGH else self.kind

    def measure_row(self, each: float, longest: int) -> tuple[int, int]:
        """The tokens of an average row's source and target (0: none), at `each` characters a token, `longest` at most.

        Rounded up to fours, as batches are; both sides of a pair end with a token of their own.
        """
        if self.kind not in ("pairs", "labels"):
            return 0, min(longest, TYPICAL)

        def count_tokens(characters: int, end: int) -> int:
            return min(longest, 4 * math.ceil((characters / max(1, self.rows) / each + end) / 4))

        if self.kind == "labels":
            return count_tokens(self.letters, 0), 0
        return count_tokens(self.characters - self.letters, 1), count_tokens(self.letters, 1)


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
                     count_unspaced(some) / max(1, len(some)), 0)
    rows = train[:: max(1, len(train) // LOOKED)]
    if not rows:  # what training refuses
        return Facts(splits.kind, objective, 0, 0, 0, 0, 0.0, 0)
    kind = "conversations" if objective == "chat" else splits.kind  # pairs too are learnt as questions and answers
    if kind == "conversations":
        rows = [("\n".join(str(m["content"]) if isinstance(m, dict) else m for m in talk), "") for talk in rows]
    sources, targets = [row[0] for row in rows], [] if labelled else [row[1] for row in rows]
    text, scale, lengths = "".join((*sources, *targets)), len(train) / len(rows), sorted(map(len, sources))
    if targets:
        lengths = sorted(max(len(one), len(other)) for one, other in zip(sources, targets, strict=True))
    letters = sum(map(len, targets)) or len(text)
    return Facts("labels" if labelled else kind, objective, len(train), int(scale * len(text)),
                 int(scale * letters), len(set(text)), count_unspaced(text) / max(1, len(text)),
                 lengths[int(0.99 * (len(lengths) - 1))], splits.share,
                 min(measure_recurring(side) for side in (sources, targets)),
                 choose_metric(list(zip(sources, targets, strict=True))) if targets else "bleu",
                 measure_once(sources) if labelled else 1.0)


def count_unspaced(text: str) -> int:
    """How many characters are of scripts that put no spaces between words; no list of them is made."""
    return UNSPACED.subn("", text)[1]


def choose_metric(pairs: Sequence[tuple[str, str]]) -> str:
    """`bleu`, or `exact_match` where BLEU cannot judge the targets.

    They average fewer than four words, or most have the words of their sources: each Chinese character is one, and
    BLEU does not see the spaces between them.
    """
    same = count = 0
    for source, target in pairs:  # one by one: the words of all of them would fill the memory
        words = WORDS.findall(target)
        same, count = same + (words == WORDS.findall(source)), count + len(words)
    return "exact_match" if 2 * same > len(pairs) or count < FEW_WORDS * len(pairs) else "bleu"


def measure_recurring(texts: Sequence[str]) -> float:
    """The share of space-separated words that occur more than once; 1.0 where the script writes no spaces."""
    text = " ".join(texts)
    if not texts or count_unspaced(text) > 0.2 * len(text):
        return 1.0
    counts = Counter(word for text in texts for word in text.split())
    return sum(n for n in counts.values() if n > 1) / max(1, counts.total())


def measure_once(texts: Sequence[str]) -> float:
    """The share of different words, or Chinese characters, that occur once; 1.0 without any."""
    counts = Counter(word for text in texts for word in WORDS.findall(text))
    return sum(n == 1 for n in counts.values()) / len(counts) if counts else 1.0
