"""What columns hold, by their names and by what is in them: texts and translations, or texts and labels.

What cannot be decided is an error that shows the command for each way to read it. Next: kind.py.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qkv.data.sources import HEADER_WORDS, LABEL_KEYS, is_label_key
from qkv.errors import QkvError
from qkv.messages import Message, join

MANY = 500  # labels; whether more are meant is asked
FEW = 3  # rows that each label has, on average
NARROW = 40  # columns of a terminal that a label takes at most
SHORT = 12  # and what may be a label or a translation
NAME = 8  # what the name of a person takes in Chinese
CERTAIN = ("label", "labels", "class", "category", "标签", "类别")  # names of labels, whatever is below them
TEXT_KEYS = ("text", "sentence", "content", "review", "document", "body", "comment", "文本", "句子", "内容", "评论")
TWO_TEXTS = (  # which have one label together
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence"),
    ("text1", "text2"), ("text_a", "text_b"), ("query", "passage"), ("前提", "假设"), ("句子1", "句子2"),
)
PAIR_KEYS = (
    ("source", "target"), ("src", "tgt"), ("prompt", "completion"), ("instruction", "output"), ("input", "output"),
    ("question", "answer"), ("document", "summary"), ("article", "summary"), ("article", "highlights"),
    ("text", "summary"), ("dialogue", "summary"), ("zh", "en"), ("en", "zh"), ("原文", "译文"), ("中文", "英文"),
    ("问题", "答案"), ("原文", "摘要"),
)


@dataclass(frozen=True)
class Asked:
    """What a person typed: the words that name files, the settings of the data, and the objective."""

    words: Sequence[str]
    data: Mapping[str, Any]
    objective: str


@dataclass(frozen=True)
class Column:
    """What the sampled cells of a column are like."""

    name: Message | str
    index: int
    rows: int
    width: float  # columns of a terminal, on average
    words: float
    counts: Counter[str]

    @property
    def different(self) -> int:
        """How many different cells there are."""
        return len(self.counts)

    @property
    def is_label(self) -> bool:
        """Whether few different short texts fill it, each seen several times."""
        return self.different >= 2 and self.rows >= FEW * self.different and self.width <= NARROW and self.words <= 5

    @property
    def sample(self) -> str:
        """What stands in the first of its different cells."""
        return "".join([*self.counts][:20])

    @property
    def is_written(self) -> bool:
        """Whether letters make up most of it, as of no dates and numbers."""
        return 2 * sum(map(str.isalpha, self.sample)) >= len(self.sample)

    @property
    def is_text(self) -> bool:
        """Whether many of its cells are different texts of several words, or of Chinese, and begin differently."""
        chinese = any(c > "\u2e7f" for c in self.sample)
        if not self.is_written:
            return False
        various = 10 * self.different > self.rows and len({cell[:6] for cell in self.counts}) >= 5
        return (self.words >= 3 or chinese) and various and self.width > (NAME if chinese else SHORT)

    @property
    def is_measured(self) -> bool:
        """Whether numbers fill it."""
        return all(re.fullmatch(r"[+-]?\d*[.,]?\d+(e[+-]?\d+)?", cell) for cell in self.counts)

    @property
    def is_number(self) -> bool:
        """Whether it numbers the rows."""
        return self.different == self.rows and all(cell.isdigit() for cell in self.counts)


class Sides(NamedTuple):
    """The columns that are read, and the texts beside them that are not."""

    kind: str  # "pairs" or "labels"
    texts: Sequence[Column]  # the source; or what has a label: one text, or two that are judged together
    two: Column
    unread: Sequence[Column]
    notes: tuple[Message, ...] = ()

    @property
    def read(self) -> list[Column]:
        """All that are read, in order."""
        return [*self.texts, self.two]


def measure_column(name: Message | str, index: int, cells: Sequence[str]) -> Column:
    """What cells are like."""
    counts, some = Counter(cell[:200].strip() for cell in cells), cells[:: max(1, len(cells) // 2000)]
    width = sum(len(cell) + sum(c > "\u2e7f" for c in cell) for cell in some) / max(1, len(some))
    return Column(name, index, len(cells), width, sum(len(cell.split()) for cell in some) / max(1, len(some)), counts)


def decide_sides(place: str, columns: Sequence[Column], titles: Sequence[str], asked: Asked) -> Sides:
    """Which columns are read, as pairs or as labels: by their names, and by what is in them.

    Raises:
        QkvError: it may be either; or so many labels that they may be none.
    """
    objective, by_name = asked.objective, {t.lower(): c for t, c in zip(titles, columns, strict=False)}
    key = next((key for key in (*LABEL_KEYS, *filter(is_label_key, by_name)) if key in by_name), "")
    label = by_name.get(key)
    if label and not (label.is_label or objective == "labels" or key in CERTAIN):
        label = None
    candidates = [c for c in columns if not c.is_number and (c.is_label or not c.is_measured)]
    rest = candidates if len(columns) > 2 and len(candidates) >= 2 else list(columns)
    pair = next(([by_name[a], by_name[b]] for a, b in PAIR_KEYS if a in by_name and b in by_name), [])
    if label is None and objective != "pairs":
        label = find_label(pair or rest)
    one, two = (pair or rest)[:2]
    if objective == "labels" and label is None:
        label = one if one.different < two.different else two
    if label and objective != "pairs":
        texts = [by_name[key] for key in TEXT_KEYS if key in by_name] or pair or rest
        others = [c for c in texts if c is not label] or [c for c in columns if c is not label]
        if label.different > MANY and objective != "labels":
            raise ask_sides(place, label, asked)
        beside, named = [c for c in columns if c is not label], asked.data.get("columns") or asked.data.get("keys")
        both = beside if named and len(beside) == 2 else find_two_texts(beside, by_name)
        texts = both or [max(others, key=lambda c: (c.is_text, c.width))]
        return Sides("labels", texts, label, find_unread(columns, (*texts, label)), note_one_text(beside, texts, label))
    if not objective and len(rest) == 2:
        narrow = two.width <= SHORT and two.words <= 2 and one.width >= 2 * two.width
        if narrow and 2 <= two.different < 0.8 * two.rows:
            raise ask_sides(place, two, asked)
        if single := next((side for side in (one, two) if side.different == 1 and side.rows >= 20), None):
            raise ask_sides(place, single, asked)
    return Sides("pairs", [one], two, find_unread(columns, (one, two)),
                 note_scores([c for c in columns if c not in (one, two)]))


def find_two_texts(columns: Sequence[Column], by_name: Mapping[str, Column]) -> list[Column]:
    """The two texts that have one label together: by their names, or because there are no others; empty without."""
    named = [by_name[key] for pair in TWO_TEXTS for key in pair if {*pair} <= {*by_name}][:2]
    found = [c for c in columns if c.is_text]
    return named or (found if len(found) == 2 else [])


def find_unread(columns: Sequence[Column], read: Sequence[Column]) -> list[Column]:
    """The columns of text that are not read: a third text beside a label, say."""
    return [c for c in columns if c not in read and c.is_text]


def find_label(columns: Sequence[Column]) -> Column | None:
    """The column that holds labels: few different texts, and far fewer than another column has."""
    found = [c for c in columns if c.is_label and any(4 * c.different <= other.different for other in columns)]
    return min(found, key=lambda c: c.different, default=None)


def ask_sides(place: str, column: Column, asked: Asked) -> QkvError:
    """The error that shows the command for labels and the one for pairs."""
    return QkvError("{place}: {column} holds {different:,} different short texts in {rows:,} rows: are these labels?"
                    "{commands}", place=place, column=column.name, different=column.different, rows=column.rows,
                    commands=list_commands(asked.words, ("labels", "pairs")))


def list_commands(words: Sequence[object], objectives: Sequence[str]) -> Message:
    """A command for each objective, ready to be pasted."""
    says = {"labels": Message("a classifier"), "pairs": Message("a translator"), "text": Message("a language model")}
    typed = shlex.join(map(str, words))
    return join("", [Message("\n  {what}: {command}", what=says[name], command=f"qkv train {typed} objective={name}")
                     for name in objectives])


def names_some(row: Sequence[str]) -> bool:
    """Whether a cell of a row is called as columns are: question1, is_duplicate."""
    return any(is_label_key(cell) or cell.strip().lower().rstrip("0123456789_") in HEADER_WORDS for cell in row)


def names_columns(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row of CSV names columns: words that do not come again, over longer or numeric cells.

    The first may be empty over numbers, as pandas writes a table with its index.
    """
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    below = [*zip(*rest, strict=True)]
    indexed = bool(rest) and not first[0].strip() and all(cell.isdigit() for cell in below[0])
    first, below = (first[1:], below[1:]) if indexed else (first, below)
    if not rest or len({*first}) < len(first) or not all(
            re.fullmatch(r"[^\W\d]\w*( \w+)?", cell.strip()) and cell not in under
            for cell, under in zip(first, below, strict=True)):
        return False
    return indexed or any(
        all(c.strip().lstrip("-").replace(".", "", 1).isdigit() for c in under)
        or sum(map(len, under)) > 2 * len(cell) * len(rest) for cell, under in zip(first, below, strict=True))


def note_scores(columns: Sequence[Column]) -> tuple[Message, ...]:
    """The note on a column of numbers beside pairs, as of how alike they are, which nothing learns."""
    scores = [c.name for c in columns if c.is_measured and any("." in cell for cell in c.counts)]
    return (Message("{column} holds numbers, which are not read; for a classifier of the texts beside it make a few "
                    "labels of them", column=scores[0]),) if scores else ()


def note_unread(columns: Sequence[Column]) -> tuple[Message, ...]:
    """The note on texts that are not read."""
    return (Message("not read: {columns}; join the columns that belong together into one",
                    columns=join(", ", [c.name for c in columns])),) if columns else ()


def note_one_text(beside: Sequence[Column], texts: Sequence[Column], label: Column) -> tuple[Message, ...]:
    """The note on words beside the one text that is read: a second text, or other labels."""
    others = [c for c in beside if c not in texts and c.is_written and c.different > 1]
    if len(texts) > 1 or len(beside) != 2 or not others:
        return ()

    def set_columns(*some: Column) -> str:
        keyed = not isinstance(label.name, Message)
        names = json.dumps([c.name if keyed else c.index for c in some], ensure_ascii=False)
        return f"data.{'keys' if keyed else 'columns'}='{names}'"

    other, together = others[0], set_columns(*beside, label)
    if not other.is_label:
        return (Message("{other} is not read; to judge it together with {one}: {together}", other=other.name,
                        one=texts[0].name, together=together),)
    return (Message("{other} is not read; to judge it together with {one}: {together}; to learn it as the label: "
                    "{alone}", other=other.name, one=texts[0].name, together=together,
                    alone=set_columns(*texts, other)),)


def note_two_texts(texts: Sequence[Column], data: Mapping[str, Any]) -> tuple[Message, ...]:
    """The note on two texts that have one label, of which `data` says the columns or keys."""
    if len(texts) < 2:
        return ()
    key = "columns" if "columns" in data else "keys"
    alone = f"data.{key}='{json.dumps([data[key][0], data[key][-1]], ensure_ascii=False)}'"
    return (Message("{one} and {other} are judged together, as `qkv classify` judges two texts with a tab between (for "
                    "one alone: {alone})", one=texts[0].name, other=texts[1].name, alone=alone),)


def note_numbers(source: Column, target: Column) -> tuple[Message, ...]:
    """The note on numbers beside texts, which a translator would write."""
    return (Message("{column} holds numbers, which are learnt as text, digit by digit; for a classifier make a few "
                    "labels of them", column=target.name),) if source.is_text and target.is_measured else ()


def note_single_labels(counts: Mapping[str, int]) -> tuple[Message, ...]:
    """The note on labels that only one row has."""
    once = [label for label, count in counts.items() if count == 1]
    some = ", ".join(repr(label[:20]) for label in once[:4])
    return (Message("{count:,} labels stand in only one row each ({some}): such a label is either learnt or judged, "
                    "not both", count=len(once), some=some),) if once else ()
