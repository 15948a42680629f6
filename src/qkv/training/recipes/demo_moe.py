"""The bundled prefix decoder: Chinese is seen freely, English continues it, and experts share the work.

中文：自带的前缀解码器：中文互相看得见，英文接着往下写，由几个专家分工。
"""

from functools import partial

from qkv.training.recipes.demo import read, words
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape


def run(*, seed: int = 0, size: int = 40_000, width: int = 128, layers: int = 4, epochs: int = 4) -> Run:
    """The run: grouped-query attention, rotary positions, RMSNorm, and 8 SwiGLU experts of which 2 read each token.

    A further expert reads all; the bf16 file has about 2.5 MB.
    """
    return Run(
        "demo_moe",
        partial(read, seed, size),
        Shape("prefix", width=width, layers=layers, heads=4, groups=2, ffn=56, experts=8, dropout=0.0, context=96),
        Vocabulary("lexicon", 8000),
        Settings(
            epochs=epochs, tokens=2048, optimizer="adamw", lr=3e-3, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01,
            schedule="wsd", warmup=100, decay=0.4, clip=1.0, seed=seed, metric="exact_match",
            evaluate_every=450, precision="fp32",  # bf16 gains little where experts cut matrices small
        ),
        Check(sentences=100, beam=1),
        words,
    )  # fmt: skip
