"""A character model of tiny shakespeare at the size of nanoGPT's setting for CPUs (validation loss 1.88 there).

Muon takes a quarter of the steps that AdamW takes (docs/LOG.md). Next: shakespeare_longer, shakespeare_longest.

中文：tiny shakespeare 的字符模型，大小同 nanoGPT 的 CPU 设置（它的验证损失是 1.88）。
"""

from qkv.data import sources
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits, shared, text_splits


def read() -> Splits:
    """Nine tenths to train on, the last tenth to validate."""
    return text_splits(sources.document(shared("lm", "tinyshakespeare", "input.txt")), share=0.1)


def run() -> Run:
    """The run: 4 layers of width 128 over windows of 64 characters."""
    return Run(
        "shakespeare",
        read,
        Shape("gpt2", width=128, layers=4, heads=4, ffn=512, dropout=0.0, context=64),
        Vocabulary("char", 256),
        Settings(
            steps=520, tokens=12 * 64, optimizer="muon", lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1,
            schedule="cosine", warmup=40, floor=0.1, clip=1.0, evaluate_every=260, log_every=50,
        ),
        Check(prompts=("ROMEO:",), longest=200),
    )  # fmt: skip
