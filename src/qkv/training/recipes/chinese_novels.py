"""A language model on five classical Chinese novels; the last tenth of each novel is held out.

中文：五部中国古典小说的语言模型；每部留出最后十分之一。
"""

from qkv.data import sources
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits, shared, text_splits

NOVELS = ("hongloumeng", "sanguoyanyi", "shuihuzhuan", "rulinwaishi", "liaozhai")


def read() -> Splits:
    """The novels one after the other."""
    parts = [text_splits(sources.document(shared("lm", "chinese_novels", f"{name}.txt")), share=0.1) for name in NOVELS]
    return Splits("\n".join(str(p.train) for p in parts), "\n".join(str(p.valid) for p in parts))


def run() -> Run:
    """The run: a small LLaMA (which has no dropout) over 192 tokens of a byte-level BPE: no character is unknown."""
    return Run(
        "chinese_novels",
        read,
        Shape("llama", width=256, layers=4, heads=4, ffn=768, dropout=0.0, context=192),
        Vocabulary("bpe", 8000),
        Settings(
            steps=1600, tokens=16 * 192, optimizer="muon", lr=8e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1,
            schedule="cosine", warmup=80, floor=0.1, clip=1.0, evaluate_every=200, log_every=20,
        ),
        Check(prompts=("却说", "黛玉", "宋江道："), longest=80),
    )  # fmt: skip
