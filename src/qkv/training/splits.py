"""What a run reads: data for training, validation and test, how some are held out, and the data sets that a TOML file
names by `corpus`. Next: data_files.py."""

import math
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data import download, sources
from qkv.data.corpus import Pair as Sentence
from qkv.data.corpus import load_corpus, load_text
from qkv.data.mapped_rows import collect_rows
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.paths import cache_dir, data_dir
from qkv.training.large_text import LargeText

Pair = tuple[str, str]
SENTIMENT = {"0": "negative", "1": "positive"}  # the labels of SST-2
LISTED, SHORT = 100, 24  # a list has at least so many lines, of at most so many characters on average
Talk = tuple[dict[str, Any], ...]  # messages, each {"role": …, "content": …}


@dataclass(frozen=True)
class Splits:
    """The data of a run: pairs of (source, target), the text of a language model, or conversations."""

    train: Sequence[Any] | str | LargeText | Mixture  # pairs, or conversations: a Talk each
    valid: Sequence[Any] | str | LargeText | Mixture  # of a LargeText that is trained on: its end
    test: Sequence[Any] | str | LargeText | Mixture = ()
    notes: tuple[str, ...] = ()  # what was skipped, to be reported before the run
    often: NDArray[np.float64] | None = None  # how many times each row of train comes in an epoch; without it once
    share: float = 0.0  # of the rows, held out by their hash; 0 where something else says which

    @property
    def kind(self) -> str:
        """What these data are: plain text, conversations, or pairs."""
        if isinstance(self.train, str | LargeText):
            return "plain text"
        if isinstance(self.train, Mixture):
            return "token shards"
        return "conversations" if self.train and isinstance(self.train[0][0], dict) else "pairs"

    def as_conversations(self) -> "Splits":
        """Pairs as conversations of a question and its answer."""
        def converse(part: Any) -> Any:
            return collect_rows(({"role": "user", "content": one}, {"role": "assistant", "content": two})
                                for one, two in part)

        if self.kind != "pairs":
            return self
        return replace(self, train=converse(self.train), valid=converse(self.valid), test=converse(self.test))


def usual_share(rows: int) -> float:
    """The share of so many rows that is held out unless one is stated: a fifth, of more rows 500 to 1,000 of them.

    It halves only where rows double, so that a file may grow and keep its held-out rows.
    """
    return 0.0 if rows < 5 else min(0.2, 0.5 ** math.floor(math.log2(max(rows, 500) / 500)))


def choose_held_out(read: Callable[[], Iterable[str]], amount: float, *, top: bool = False) -> NDArray[np.bool_]:
    """Which of the texts that `read` gives are held out, each with its copies.

    An `amount` below 1 is a share: a text is held out by its own hash, whatever others there are; `top` takes the other
    end of the hashes. An amount from 1 on is a number, of the lowest hashes, of which more texts may replace some; they
    are read twice and not kept.
    """
    hashes = np.fromiter((zlib.crc32(text.encode("utf-8")) for text in read()), dtype=np.uint32)
    if amount < 1:
        mixed = hashes * np.uint32(2_654_435_761)  # Knuth 1998, section 6.4: similar texts have similar checksums
        mixed = ~mixed if top else mixed
        least = int(mixed.min()) + 1 if amount and len(mixed) >= 5 else 0  # of few rows one is held out all the same
        return mixed < max(amount * 2**32, least)
    count = min(int(amount), len(hashes) // 5)  # small data keep four fifths for training
    chosen = np.zeros(len(hashes), dtype=np.bool_)
    if count:
        low = hashes <= np.partition(hashes, count - 1)[count - 1]  # each text is there once at least
        copies: dict[tuple[int, str], list[int]] = {}
        for n, text in compress(enumerate(read()), low):
            copies.setdefault((int(hashes[n]), text), []).append(n)
        for text in sorted(copies):
            if chosen.sum() >= count:
                break
            chosen[copies[text]] = True
    return chosen


def shuffle_sorted(text: str) -> str:
    """A sorted list of short lines, such as words from a to z, in random order, so that its end is like the rest.

    Other texts are returned unchanged: the order of longer lines, such as those of a log, means something.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < LISTED or len(text) > SHORT * len(lines):
        return text
    rising = sum(one < other for one, other in pairwise(line.casefold() for line in lines))
    if rising < 0.95 * len(lines):
        return text
    random.Random(0).shuffle(lines)
    return "\n".join(lines) + "\n"


def text_splits(text: str, *, share: float) -> Splits:
    """The last `share` of a text is for validation."""
    cut = int(len(text) * (1 - share))
    return Splits(text[:cut], text[cut:])


def find_data_file(*parts: str) -> Path:
    """A file of the folder of real data, or of what `qkv data get` fetched; QkvError says where it should lie."""
    path, fetched = data_dir().joinpath(*parts), (cache_dir() / "data").joinpath(*parts)
    if not path.is_file() and not fetched.is_file():
        sets = [
            name for name, known in download.list_sets().items() if any(f.path == "/".join(parts) for f in known.files)
        ]
        get = f"qkv data get {sets[0]}" if sets else ""
        if sets:
            raise QkvError("{path}: no such file. {get} fetches it; or set QKV_DATA to the folder that holds {parts}/",
                           path=path, get=get, parts=parts[0])
        raise QkvError("{path}: no such file. Set QKV_DATA to the folder that holds {parts}/", path=path,
                       parts=parts[0])
    return path if path.is_file() else fetched


def read_pairs() -> Splits:
    """The corpus; its test sentences are recombinations that training never saw."""
    found = load_corpus()
    train, valid, test = ([(p.zh, p.en) for p in split] for split in (found.train, found.valid, found.test))
    return Splits(train, valid, test)


def read_text() -> Splits:
    """The language model's text; rhymes and stories return in it, so its last part is validation enough."""
    return text_splits(load_text(), share=0.03)


def read_labelled() -> Splits:
    """The corpus with labels; half of it is also read in both languages side by side, so that they share meanings.

    Conneau & Lample 2019, section 3.3, call it translation language modelling.
    """
    found = load_corpus()
    both = [(f"{p.zh}[SEP]{p.en}", p.label) for p in found.train[::2]]
    return Splits(label_sides(found.train) + both, label_sides(found.valid), label_sides(found.test))


def label_sides(pairs: tuple[Sentence, ...]) -> list[Pair]:
    """Each sentence in both languages with its label."""
    return [(text, p.label) for p in pairs for text in (p.zh, p.en)]


def list_words() -> list[str]:
    """Every word of both languages: a vocabulary of them alone can name what it lacks."""
    return [*load_corpus().words_zh, *load_corpus().words_en]


def read_sst2() -> Splits:
    """Sentences as the set cuts them: 6,920 to train on, 872 to validate, 1,821 to test."""
    train, valid, test = (list(read_sst2_rows(split)) for split in ("train", "dev", "test"))
    return Splits(train, valid, test)


def read_sst2_rows(split: str) -> Iterator[Pair]:
    """The sentences of a file with their labels, which stand before them."""
    path = find_data_file("cls", "sentconv", f"stsa.binary.{split}")
    for number, line in enumerate(sources.read_lines(path), 1):
        label, _, text = line.partition(" ")
        if label not in SENTIMENT:
            raise QkvError("{path}:{number}: found {label!r} before the sentence, expected 0 or 1", path=path,
                           number=number, label=label)
        yield text, SENTIMENT[label]


READERS: dict[str, Callable[[], Splits]] = {
    "demo": read_pairs, "demo_text": read_text, "demo_labels": read_labelled, "sst2": read_sst2,
}
