"""How good labels are: accuracy, Matthews correlation, F1 of each label and their mean, and what is taken for what."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.plots.forms import Table

MOST_COLUMNS = 12  # labels of a confusion table; of more the commonest mistakes are listed
MISTAKES = 15


@dataclass(frozen=True)
class Accuracy:
    """The share of right labels, that of the commonest label for comparison, and each label's (texts, right, said).

    `matthews` is the correlation of what is true with what was said, 0 for guesses and for one label for everything
    (Gorodkin 2004); `f1` is each label's harmonic mean of precision and recall, `macro_f1` their mean; `confusion` has
    the texts by true label and said label, where there are any.
    """

    accuracy: float
    majority: float
    right: int
    texts: int
    labels: dict[str, tuple[int, int, int]]
    matthews: float
    macro_f1: float
    f1: dict[str, float]
    confusion: dict[str, dict[str, int]]

    @property
    def record(self) -> dict[str, Any]:
        """The same for JSON: each label's texts, right ones, those said to have it, and F1."""
        rows = {name: {"texts": texts, "right": right, "said": said, "f1": self.f1[name]}
                for name, (texts, right, said) in self.labels.items()}
        return {**{key: value for key, value in vars(self).items() if key != "f1"}, "labels": rows}


def score_labels(wanted: Sequence[str], said: Sequence[str], names: Sequence[str] = ()) -> Accuracy:
    """The scores of the labels `said` where those `wanted` are true, in the order of `names`, else of the alphabet."""
    there, chosen, both = Counter(wanted), Counter(said), Counter(zip(wanted, said, strict=True))
    found = [*names, *sorted((there.keys() | chosen.keys()) - {*names})]
    counts = {n: (there[n], both[n, n], chosen[n]) for n in found if there[n] or chosen[n]}
    f1 = {name: 2 * right / (texts + guessed) for name, (texts, right, guessed) in counts.items()}
    total, right = len(wanted), sum(right for _, right, _ in counts.values())
    spread = math.prod(total**2 - sum(n * n for n in count.values()) for count in (there, chosen))
    together = right * total - sum(texts * guessed for texts, _, guessed in counts.values())
    confusion = {true: {guess: both[true, guess] for guess in counts if both[true, guess]} for true in counts
                 if there[true]}
    return Accuracy(right / total, max(there.values()) / total, right, total, counts,
                    together / math.sqrt(spread) if spread else 0.0, sum(f1.values()) / len(f1), f1, confusion)


def draw_confusion(found: Accuracy, *, corner: str) -> Table:
    """True labels down, said labels across; of very many the commonest mistakes. `corner` says which is which."""
    table, names = found.confusion, list(found.labels)
    if len(names) > MOST_COLUMNS:
        wrong = [(count, true, guess) for true, row in table.items() for guess, count in row.items() if guess != true]
        wrong.sort(key=lambda row: -row[0])
        rows = [[f"{true} → {guess}", f"{count:,}"] for count, true, guess in wrong[:MISTAKES]]
        return Table("", [[corner, ""], *rows])
    rows = [[true, *(f"{row.get(guess, 0):,}" for guess in names)] for true, row in table.items()]
    return Table("", [[corner, *names], *rows])
