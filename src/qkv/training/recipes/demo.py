"""The bundled translator: Chinese to English on our own corpus, minutes on two cores.

中文：自带的翻译器：用我们自己的语料学中译英，两核几分钟。
"""

from functools import partial

from qkv.data.corpus import corpus, words_en, words_zh
from qkv.training.probes.recorder import ProbeSettings
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

WATCH = ProbeSettings(
    times=32, texts=("我爱学习。", "书和茶都在桌上，我看完了它。", "书和茶都在桌上，我喝完了它。"),
    words=("小", "苹果", "书"), share=0.04, megabytes=96, longest=20,
)  # fmt: skip


def read(seed: int = 0, size: int = 40_000) -> Splits:
    """The corpus; its test sentences are recombinations that training never saw."""
    found = corpus(seed, size)
    train, valid, test = ([(p.zh, p.en) for p in split] for split in (found.train, found.valid, found.test))
    return Splits(train, valid, test)


def words() -> list[str]:
    """Every word of both languages: the vocabulary is the lexicon, so what it lacks can be named."""
    return [*words_zh(), *words_en()]


def run(
    *, seed: int = 0, size: int = 40_000, width: int = 176, layers: int = 3, epochs: int = 3, seconds: float = 0.0
) -> Run:  # fmt: skip
    """The run: the Transformer of 2017 in small, post-norm with sinusoids, as Marian stores it."""
    return Run(
        "demo",
        partial(read, seed, size),
        Shape("marian", width=width, layers=layers, heads=4, ffn=2 * width, dropout=0.1, context=128),
        Vocabulary("lexicon", 8000),
        Settings(
            epochs=epochs, seconds=seconds, tokens=2048, optimizer="muon", lr=4e-3, schedule="wsd", warmup=50,
            decay=0.4, label_smoothing=0.1, clip=1.0, seed=seed, evaluate_every=50,
        ),
        Check(sentences=60, beam=4, samples=1),
        words,
        WATCH,
    )  # fmt: skip
