"""Data sets that a TOML file names by `corpus`: the corpus that comes with the package, and SST-2's own file form."""

from collections.abc import Callable, Iterator

from qkv.data import sources
from qkv.data.corpus import Pair, load_corpus, load_text
from qkv.errors import QkvError
from qkv.training.splits import Pair as Row
from qkv.training.splits import Splits, find_data_file, text_splits

SENTIMENT = {"0": "negative", "1": "positive"}


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


def label_sides(pairs: tuple[Pair, ...]) -> list[Row]:
    """Each sentence in both languages with its label."""
    return [(text, p.label) for p in pairs for text in (p.zh, p.en)]


def list_words() -> list[str]:
    """Every word of both languages: a vocabulary of them alone can name what it lacks."""
    return [*load_corpus().words_zh, *load_corpus().words_en]


def read_sst2() -> Splits:
    """Sentences as the set cuts them: 6,920 to train on, 872 to validate, 1,821 to test."""
    train, valid, test = (list(read_sst2_rows(split)) for split in ("train", "dev", "test"))
    return Splits(train, valid, test)


def read_sst2_rows(split: str) -> Iterator[Row]:
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
