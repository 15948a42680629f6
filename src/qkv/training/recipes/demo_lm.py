"""The bundled language model: nursery rhymes, stories, facts and sums of ours, in under a million parameters.

中文：自带的语言模型：我们写的童谣、故事、常识和算式，不到一百万参数。
"""

from functools import partial

from qkv.data.corpus import lm_text
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits, text_splits


def read(seed: int = 0, size: int = 1_500_000) -> Splits:
    """The text; rhymes and stories return in it, so its last part is validation enough."""
    return text_splits(lm_text(seed, size), share=0.03)


def run(*, seed: int = 0, size: int = 1_500_000, width: int = 128, layers: int = 4) -> Run:
    """The run: pre-norm, rotary positions, gated FFN; at width 128 its bf16 file has about 1.8 MB."""
    return Run(
        "demo_lm",
        partial(read, seed, size),
        Shape("llama", width=width, layers=layers, heads=4, ffn=5 * width // 2, dropout=0.0, context=192),
        Vocabulary("bpe", 1000),
        Settings(
            epochs=5, tokens=4096, optimizer="adamw", lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.05,
            schedule="wsd", warmup=50, decay=0.4, clip=1.0, seed=seed, evaluate_every=100,
        ),
        Check(prompts=("One, Two,", "书放在桌上，它很"), longest=24),
    )  # fmt: skip
