"""Embeddings: each token has a row of the table, and its neighbours there; context moves it only later."""

# %% 表里的邻居 | Neighbours in the table
import qkv
from qkv import labs

model = qkv.load("demo")
words = ["书", "茶", "苹果", "猫", "学习"]
with model.trace(save=["walk"]) as t:
    model.translate("我爱学习。", beam=1)
near = {word: t.neighbours(word, n=8, side="source") for word in words}
near["书"]

# %% 同一个“苹果”，两句话里 | The same 苹果 in two sentences
import torch

texts = ["苹果会生产新手机。", "我爱吃苹果。"]  # a company, a fruit
states = []
for text in texts:
    with model.trace(save=["encoder.layers.*.resid_in", "encoder.layers.2.resid_out"]) as t:
        model.translate(text, beam=1)
    at = model.tokenizer.pieces(model.ids(text)).index("苹果")
    names = [*(f"encoder.layers.{i}.resid_in" for i in range(3)), "encoder.layers.2.resid_out"]
    states.append([t[name][0, at] for name in names])
rows = [model.ids(text)[model.tokenizer.pieces(model.ids(text)).index("苹果")] for text in texts]
alike = [torch.cosine_similarity(a, b, dim=0).item() for a, b in zip(*states, strict=True)]
width, vocabulary = model.spec.encoder.width, model.spec.vocabulary
alike

# %% 词向量会算术吗？ | Do word vectors do arithmetic?
lab = labs.load_result("analogy")
lab["says"]

# %% 摆成表 | As tables
near_tables = [[[n.piece for n in near[word]], [f"{n.cosine:.2f}" for n in near[word]]] for word in words]
