"""A small character model that was never trained, and the text of its characters."""

import torch

from qkv import hub
from qkv.model import Model
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training.shape import Shape

TEXT = "我喜欢苹果。你喜欢茶吗？the cat sat on the mat. 小帅在学校读书，我在家。\n" * 6


def decoder(context: int = 24) -> Model:
    made = train_vocabulary([TEXT], kind="char", size=200, specials=("</s>", "<unk>"), template="none")
    shape = Shape("gpt2", width=32, layers=2, heads=2, ffn=64, dropout=0.0, context=context)
    model = hub.build(shape.spec(len(made)), tokenizer=made)
    with torch.no_grad():
        for p in model.core.parameters():
            p.mul_(3.0 if p.ndim > 1 else 1.0)
    model.core.eval()
    return model
