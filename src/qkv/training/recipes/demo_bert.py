"""The bundled encoder: hidden words of our own sentences, Chinese and English, and ten labels for what they say.

中文：自带的编码器：猜出我们自己的中英文句子里盖住的词，并有十种句意标签。
"""

from functools import partial

from qkv.data.corpus import Pair, corpus
from qkv.training.recipes.demo import words
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Pair as Row
from qkv.training.splits import Splits

# What the constructions of the corpus (data/corpus/grammar.py) have in common; see `label` for the others.
GROUPS = {
    "command": ("command",),
    "linked": ("because", "but", "chained", "joined", "left"),
    "description": ("describe", "compare", "feel", "manner", "job", "age", "capital", "belong", "relative"),
    "place": ("exist", "locate"),
    "present": ("modal", "skill", "activity", "social", "habit", "often", "progressive", "state"),
    "past": ("give", "past"),
    "future": ("future",),
}
KINDS = {kind: name for name, kinds in GROUPS.items() for kind in kinds}


def label(pair: Pair) -> str:
    """What a sentence says, in a word: a question, a negation, one with 它, two linked clauses, …, or when it happens.

    A question is asked in any construction; elsewhere 不 and 没 negate a single clause.
    """
    group = KINDS.get(pair.kind)
    if pair.zh.endswith("？"):
        return "question"
    if pair.kind.startswith("it"):
        return "it"
    if group in ("linked", "command"):
        return group
    if "不" in pair.zh or "没" in pair.zh:
        return "negation"
    if group:
        return group
    return "future" if " will " in pair.en else "past" if "了" in pair.zh or "过" in pair.zh else "present"


def rows(pairs: tuple[Pair, ...]) -> list[Row]:
    """Each sentence in both languages with its label."""
    return [(text, label(p)) for p in pairs for text in (p.zh, p.en)]


def read(seed: int = 0, size: int = 40_000) -> Splits:
    """The corpus; half of it is also read in both languages side by side, so that they share their meanings.

    Conneau & Lample 2019, section 3.3, call it translation language modelling.
    """
    found = corpus(seed, size)
    both = [(f"{p.zh}[SEP]{p.en}", label(p)) for p in found.train[::2]]
    return Splits(rows(found.train) + both, rows(found.valid), rows(found.test))


def run(*, seed: int = 0, size: int = 40_000, width: int = 144, layers: int = 4, epochs: int = 4) -> Run:
    """The run: BERT in small, post-norm with learned positions and GELU; its bf16 file has about 2.4 MB."""
    return Run(
        "demo_bert",
        partial(read, seed, size),
        Shape("bert", width=width, layers=layers, heads=4, ffn=4 * width, dropout=0.0, context=64),
        Vocabulary("lexicon", 8000),
        Settings(
            epochs=epochs, tokens=4096, optimizer="adamw", lr=2e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01,
            schedule="wsd", warmup=100, decay=0.4, clip=1.0, seed=seed, evaluate_every=200,
        ),
        Check(sentences=200),
        words,
    )  # fmt: skip
