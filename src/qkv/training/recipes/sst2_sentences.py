"""SST-2's second part: an encoder of phrases (`qkv train sst2_phrases`, which comes first) learns whole sentences.

`base=DIR` names another first part. Of validation and test nothing is learnt in either.

中文：SST-2 的第二步：学过短语的编码器（先 `qkv train sst2_phrases`）再学整句。
"""

from dataclasses import replace

from qkv.training.recipes import sst2, sst2_phrases
from qkv.training.run import Run
from qkv.training.splits import Splits


def read() -> Splits:
    """The sentences of sst2, spelt as the trees are."""
    train, valid, test = (sst2_phrases.judged(split) for split in ("train", "dev", "test"))
    return Splits(train, valid, test)


def run() -> Run:
    """The run: two epochs at a small rate, as gently forgotten as in the first part."""
    first = sst2_phrases.run().training
    training = replace(
        sst2.run().training, epochs=2, lr=3e-4, word_dropout=first.word_dropout, rdrop=first.rdrop
    )  # fmt: skip
    return replace(sst2.run(), name="sst2_sentences", splits=read, training=training, base="./runs/sst2_phrases")
