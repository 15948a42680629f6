"""SST-2 (Socher et al. 2013): is a sentence of a film review positive? An encoder from nothing, on whole sentences.

The published 83.5 of a CNN without word vectors also learnt from the labels of all phrases: see sst2_phrases.
`model.family="openai_gpt" model.ffn=256` trains a decoder instead (GPT-1's way).

中文：SST-2（Socher 等 2013）：影评的一句话是不是好评？从零训练的编码器，只学整句。
"""

from collections.abc import Iterator

from qkv.data import sources
from qkv.errors import QkvError
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Pair, Splits, shared

NAMES = {"0": "negative", "1": "positive"}


def rows(split: str) -> Iterator[Pair]:
    """The sentences of a file with their labels, which stand before them."""
    path = shared("cls", "sentconv", f"stsa.binary.{split}")
    for number, line in enumerate(sources.lines(path), 1):
        label, _, text = line.partition(" ")
        if label not in NAMES:
            raise QkvError(f"{path}:{number}: found {label!r} before the sentence, expected 0 or 1",
                           zh=f"{path}:{number}：句子前是 {label!r}，应是 0 或 1")  # fmt: skip
        yield text, NAMES[label]


def read() -> Splits:
    """Sentences as the set cuts them: 6,920 to train on, 872 to validate, 1,821 to test."""
    return Splits(list(rows("train")), list(rows("dev")), list(rows("test")))


def run() -> Run:
    """The run: one narrow layer over whole words, heavily dropped out, for the texts are few."""
    return Run(
        "sst2",
        read,
        Shape("bert", width=64, layers=1, heads=4, ffn=128, dropout=0.5, context=64),
        Vocabulary("split", 8000),
        Settings(
            epochs=8, tokens=2048, optimizer="adamw", lr=2e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.05,
            schedule="linear", warmup=60, clip=1.0, metric="exact_match",
        ),
        Check(sentences=872),
        objective="labels",
    )  # fmt: skip
