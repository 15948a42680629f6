"""Multi30k read twice, under two dropouts that shall agree (R-Drop, Liang et al. 2021): 41.2 BLEU on test2016.

中文：Multi30k，每批读两遍，两次 dropout 的结果应当一致（R-Drop，Liang 等 2021）：test2016 上 BLEU 41.2。
"""

from dataclasses import replace

from qkv.training.recipes import multi30k_longer
from qkv.training.run import Run


def run(source: str = "en", target: str = "de") -> Run:
    """The run: half the steps of multi30k_longer, each twice as dear, and less dropout, as agreeing keeps from knowing
    pairs by heart."""
    longer = multi30k_longer.run(source, target)
    model = replace(longer.model, dropout=0.2)
    training = replace(longer.training, steps=12_000, rdrop=5.0)
    return replace(longer, name=f"multi30k_agreed_{source}_{target}", model=model, training=training)
