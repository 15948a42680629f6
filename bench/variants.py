"""Recipes with other settings, whose numbers README and docs/training.md give, and SST-2 from the labels of phrases."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

LONGER = (
    "model.width=128", "model.layers=4", "model.ffn=256", "model.dropout=0.3", "training.steps=24000",
    "training.seconds=0", "training.tokens=2048", "training.optimizer=muon", "training.lr=0.004",
    "training.warmup=400", "training.evaluate_every=1200", "training.average=8", "training.ema=0.9995",
    "training.metric=loss", "check.sentences=300",
)  # fmt: skip
AGREED = (*LONGER, "model.dropout=0.2", "training.steps=12000", "training.rdrop=5")
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {  # the recipe and its overrides; of two of one key the later counts
    "multi30k_longer": ("multi30k", LONGER),
    "multi30k_agreed": ("multi30k", AGREED),
    # the measured hour also had training.outputs=seen, which commit 5e76374 still knows
    "multi30k_hour": ("multi30k", (
        *AGREED, "training.steps=0", "training.seconds=3600", "training.evaluate_every=1125")),
    "shakespeare_longer": ("shakespeare", (
        "model.context=128", "training.steps=1600", "training.tokens=1536", "training.evaluate_every=400")),
    "shakespeare_longest": ("shakespeare", (
        "model.width=192", "model.layers=5", "model.heads=6", "model.ffn=768", "model.dropout=0.2", "model.context=256",
        "training.steps=4000", "training.tokens=3072", "training.lr=0.008", "training.ema=0.995",
        "training.evaluate_every=400")),
    "sst2_phrases": ("sst2", (
        "model.width=128", "model.ffn=256", "model.context=80", "tokenizer.size=20000", "training.epochs=3",
        "training.tokens=4096", "training.lr=0.001", "training.warmup=200", "training.evaluate_every=150",
        "training.ema=0.99", "training.word_dropout=0.4", "training.rdrop=4")),
    "sst2_sentences": ("sst2", (
        "training.epochs=2", "training.lr=0.0003", "training.word_dropout=0.4", "training.rdrop=4",
        "base=./runs/sst2_phrases")),
}  # fmt: skip
SHORT = -0.3  # a phrase comes as often as its length to this power: a word tells more by itself than among others
NEUTRAL = 2  # of five labels; two below it are negative, two above it positive
ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "\\/": "/", "\\*": "*"
}  # fmt: skip
ESCAPED = re.compile("|".join(map(re.escape, ESCAPES)), re.IGNORECASE)
PARTS = re.compile(r"\((\d)|\)|[^\s()]+")


def configure(name: str, overrides: Iterable[str] = (), *, smoke: bool = False) -> Any:
    """The run of a recipe or of a variant of one, under its own name."""
    from qkv.training import recipes

    recipe, settings = VARIANTS.get(name, (name, ()))
    run = recipes.configure(recipe, [*shorten(settings), *overrides])
    read = {"sst2_phrases": read_phrases, "sst2_sentences": read_sentences}.get(name, run.splits)
    return recipes.configure(replace(run, name=name, splits=read), smoke=smoke)


def shorten(overrides: Iterable[str]) -> list[str]:
    """The overrides without those that a later one of the same key replaces."""
    return [f"{key}={value}" for key, value in dict(word.split("=", 1) for word in overrides).items()]


def read_phrases() -> Any:
    """Each phrase, in small letters, short ones more often; neutral and judged ones left out, by their words."""
    from qkv.training.splits import SENTIMENT, Splits, find_data_file

    valid, test = spell_rows("dev"), spell_rows("test")
    known = {join_letters(text) for text, _ in (*valid, *test)}
    signs = defaultdict[str, Counter[str]](Counter)
    for tree in find_data_file("cls", "sst_trees", "train.txt").read_text(encoding="utf-8").splitlines():
        for text, label in split_tree(tree):
            if label != NEUTRAL:
                signs[text.lower()][SENTIMENT[str(int(label > NEUTRAL))]] += 1
    agreed = [(text, next(iter(counts))) for text, counts in signs.items() if len(counts) == 1]
    train = [(text, label) for text, label in agreed if join_letters(text) not in known]
    train.sort(key=lambda row: row[0].count(" "))  # so that few numbers say how often each comes
    often = np.array([1.0 + text.count(" ") for text, _ in train]) ** SHORT
    note = (f"{len(train):,} phrases; left out: {len(agreed) - len(train)} with the words of a validation or test "
            f"sentence, {len(signs) - len(agreed)} with labels of both signs")  # fmt: skip
    return Splits(train, valid, test, (note,), often=often / often.mean())


def read_sentences() -> Any:
    """The sentences of sst2, spelt as the trees are."""
    from qkv.training.splits import Splits

    return Splits(*(spell_rows(split) for split in ("train", "dev", "test")))


def spell_rows(split: str) -> list[tuple[str, str]]:
    """The labelled sentences of a split, spelt as the trees are."""
    from qkv.training.splits import read_sst2_rows

    return [(unescape(text), label) for text, label in read_sst2_rows(split)]


def split_tree(tree: str) -> list[tuple[str, int]]:
    """The phrases of a tree such as `(3 (2 a) (4 (3 fine) (2 film)))`, inner ones first, each with its label."""
    done: list[tuple[str, int]] = []
    nodes: list[tuple[int, list[str]]] = []  # those that are open: their labels, and what they hold so far
    for part in PARTS.finditer(tree):
        if part[1]:
            nodes.append((int(part[1]), []))
        elif part[0] == ")":
            label, words = nodes.pop()
            done.append((" ".join(words), label))
            if nodes:
                nodes[-1][1].append(done[-1][0])
        else:
            nodes[-1][1].append(unescape(part[0]))
    return done


def unescape(text: str) -> str:
    """A text whose brackets, slashes and stars are written as themselves; trees have -LRB- for ( and so on."""
    return ESCAPED.sub(lambda found: ESCAPES[found[0].upper()], text)


def join_letters(text: str) -> str:
    """The letters and digits of a text: what makes two texts one and the same, whatever stands between them."""
    return "".join(c for c in text if c.isalnum())
