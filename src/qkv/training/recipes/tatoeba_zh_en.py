"""Chinese to English on Tatoeba's pairs; no English sentence of the test occurs in training.

中文：Tatoeba 的中译英句对；测试集的英文句子都不在训练数据里。
"""

from qkv.data import sources
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits, held_out, shared


def read() -> Splits:
    """The pairs, split by their English side, because many Chinese sentences share one."""
    pairs = sources.tsv(shared("mt", "tatoeba_cmn_eng", "cmn.txt"), (1, 0))
    rest, test = held_out(pairs, 1000, "target")
    train, valid = held_out(rest, 500, "target")
    return Splits(train, valid, test)


def run() -> Run:
    """The run: a small post-norm Transformer on joint byte-level BPE."""
    return Run(
        "tatoeba_zh_en",
        read,
        Shape("marian", width=192, layers=3, heads=4, ffn=512, dropout=0.2, context=128),
        Vocabulary("bpe", 6000),
        Settings(
            seconds=1200, tokens=1024, lr=1.2e-3, schedule="wsd", warmup=500, decay=0.6, label_smoothing=0.1,
            metric="bleu", average=5, evaluate_every=1000, eps=1e-8,
        ),
        Check(sentences=200, beam=4),
    )  # fmt: skip
