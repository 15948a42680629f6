"""The bundled Chinese-English corpus and the bundled language model's text, as data: tools/corpus generates them."""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

PAIRS, TEXT = "pairs.json.gz", "text.txt.gz"


@dataclass(frozen=True)
class Pair:
    """One sentence in two languages; `kind` names its construction, `label` says in a word what it is."""

    zh: str
    en: str
    kind: str
    label: str


@dataclass(frozen=True)
class Swap:
    """A minimal pair: one Chinese verb differs, and with it the thing that 它 means (zh word, en word) in each."""

    zh_a: str
    en_a: str
    zh_b: str
    en_b: str
    noun_a: tuple[str, str]
    noun_b: tuple[str, str]


@dataclass(frozen=True)
class Corpus:
    """The splits: no Chinese sentence occurs in two of them, but for `showcase`, whose trained half is in `train`.

    Half of valid and test hold a combination of words that training never sees. `small` are 2,000 pairs of `train`, for
    small experiments. The words are every form that occurs, marks included, each once, sorted.
    """

    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]
    longer: tuple[Pair, ...]
    swaps: tuple[Swap, ...]
    showcase: tuple[Pair, ...]
    small: tuple[Pair, ...] = ()
    words_zh: tuple[str, ...] = ()
    words_en: tuple[str, ...] = ()


def read_packed(name: str) -> str:
    """The text of a compressed file of this folder."""
    return gzip.decompress((files(__name__) / name).read_bytes()).decode("utf-8")


@cache
def load_text() -> str:
    """The text of the bundled language model: rhymes, stories, facts and sums, with an empty line between documents."""
    return read_packed(TEXT)


@cache
def load_corpus() -> Corpus:
    """The bundled corpus: 40,000 training pairs and the held-out splits."""
    packed = json.loads(read_packed(PAIRS))
    pairs = {name: build_pairs(packed[name]) for name in ("train", "valid", "test", "longer", "showcase")}
    swaps = [Swap(*texts, noun_a=tuple(a), noun_b=tuple(b)) for *texts, a, b in packed["swaps"]]
    small = tuple(pairs["train"][i] for i in packed["small"])
    words = {name: tuple(packed[name]) for name in ("words_zh", "words_en")}
    return Corpus(**pairs, swaps=tuple(swaps), small=small, **words)


def build_pairs(columns: Mapping[str, Sequence[Any]]) -> tuple[Pair, ...]:
    """Pairs from their columns; `kind` and `label` are numbers of their names."""
    kinds, labels = columns["kinds"], columns["labels"]
    named = ((kinds[kind], labels[label]) for kind, label in zip(columns["kind"], columns["label"], strict=True))
    rows: Iterable[tuple[str, str, tuple[str, str]]] = zip(columns["zh"], columns["en"], named, strict=True)
    return tuple(Pair(zh, en, *names) for zh, en, names in rows)
