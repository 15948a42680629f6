"""Multi30k English-German (Elliott et al. 2016), joint BPE; the files of Wu et al. 2021 (BLEU 41.02, text only).

A small step of 1,024 tokens learns far more from the same seconds than one of 4,096 (docs/LOG.md).

中文：Multi30k 英德翻译（Elliott 等 2016），两种语言共用 BPE；用 Wu 等 2021 的文件（BLEU 41.02，只用文本）。
"""

from functools import partial

from qkv.data import sources
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits, shared


def read(source: str = "en", target: str = "de") -> Splits:
    """Lower-cased, tokenised, cut by BPE with @@ as the joint."""
    train, valid, test = (
        sources.pairs(*(shared("mt", "multi30k_bpe_en_de", f"{split}.{side}") for side in (source, target)))
        for split in ("train", "valid", "test.2016")
    )
    return Splits(train, valid, test)


def run(source: str = "en", target: str = "de") -> Run:
    """The run; its test is test2016, tokenised and lower-cased BLEU with beam 5."""
    return Run(
        f"multi30k_{source}_{target}",
        partial(read, source, target),
        Shape("marian", width=192, layers=3, heads=4, ffn=512, dropout=0.25, context=128),
        Vocabulary("split", 20_000, merges="mt/multi30k_bpe_en_de/code"),
        Settings(
            seconds=1440, tokens=1024, lr=1.2e-3, schedule="wsd", warmup=800, decay=0.6, label_smoothing=0.1,
            metric="bleu", average=5, evaluate_every=1000, eps=1e-8,
        ),
        Check(sentences=400, beam=5, length_penalty=1.0, tokenize="none", joint="@@ "),
    )  # fmt: skip
