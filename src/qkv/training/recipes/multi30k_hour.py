"""Multi30k in an hour of two cores: read twice, under two dropouts that shall agree, and only German words are said.

中文：Multi30k，两核一小时：每批读两遍，两次 dropout 应当一致，只从德语的词里选。
"""

from dataclasses import replace

from qkv.training.recipes import multi30k_agreed
from qkv.training.run import Run


def run(source: str = "en", target: str = "de") -> Run:
    """The run: multi30k_agreed, whose rate falls so that an hour of training ends it."""
    agreed = multi30k_agreed.run(source, target)
    training = replace(agreed.training, steps=0, seconds=3600.0, outputs="seen", evaluate_every=1125)
    return replace(agreed, name=f"multi30k_hour_{source}_{target}", training=training)
