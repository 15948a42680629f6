"""SST-2 as its makers meant it: the labels of all phrases are learnt, sentences are judged (`qkv data get sst-trees`).

Validation and test are those of sst2; the published 83.5 of a CNN without word vectors learnt from phrases too. What
comes after it: sst2_sentences.

中文：SST-2 的原意：学所有短语的标签，评判整句（先 `qkv data get sst-trees`）。
"""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from qkv.data import treebank
from qkv.training.recipes import sst2
from qkv.training.run import Run, Vocabulary
from qkv.training.shape import Shape
from qkv.training.splits import Pair, Splits, shared

SHORT = -0.3  # a phrase comes as often as its length to this power: a word tells more by itself than among others
NEUTRAL = 2  # of five labels; two below it are negative, two above it positive


def bare(text: str) -> str:
    """The letters and digits of a text: what makes two texts one and the same, whatever stands between them."""
    return "".join(c for c in text if c.isalnum())


def judged(split: str) -> list[Pair]:
    """The sentences of a split, spelt as the trees are."""
    return [(treebank.unescaped(text), label) for text, label in sst2.rows(split)]


def read() -> Splits:
    """Each phrase, in small letters, short ones more often; neutral and judged ones left out, by their words."""
    valid, test = judged("dev"), judged("test")
    known = {bare(text) for text, _ in (*valid, *test)}
    signs = defaultdict[str, Counter[str]](Counter)
    for _, found in treebank.phrases(shared("cls", "sst_trees", "train.txt")):
        for text, label in found:
            if label != NEUTRAL:
                signs[text.lower()][sst2.NAMES[str(int(label > NEUTRAL))]] += 1
    agreed = [(text, next(iter(counts))) for text, counts in signs.items() if len(counts) == 1]
    train = [(text, label) for text, label in agreed if bare(text) not in known]
    train.sort(key=lambda row: row[0].count(" "))  # so that few numbers say how often each comes
    often = np.array([1.0 + text.count(" ") for text, _ in train]) ** SHORT
    note = (f"{len(train):,} phrases; left out: {len(agreed) - len(train)} with the words of a validation or test "
            f"sentence, {len(signs) - len(agreed)} with labels of both signs")  # fmt: skip
    return Splits(train, valid, test, (note,), often=often / often.mean())


def run() -> Run:
    """The run: one layer over whole words, four in ten left out at random (Iyyer et al. 2015), and R-Drop."""
    whole = sst2.run()
    training = replace(
        whole.training, epochs=3, tokens=4096, lr=1e-3, warmup=200, evaluate_every=150, ema=0.99, word_dropout=0.4,
        rdrop=4.0,
    )  # fmt: skip
    return replace(
        whole, name="sst2_phrases", splits=read, tokenizer=Vocabulary("split", 20_000), training=training,
        model=Shape("bert", width=128, layers=1, heads=4, ffn=256, dropout=0.5, context=80),
    )  # fmt: skip
