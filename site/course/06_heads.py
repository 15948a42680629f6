"""Heads: several attentions side by side, joined, and mixed by W_O."""

# %% 十二个头，各看各的 | Twelve heads, each with its own look
import qkv

model = qkv.load("demo")
text = "书和茶都在桌上，我看完了它。"
words = model.tokenizer.pieces(model.ids(text))
with model.trace(save=["patterns"]) as t:
    model.translate(text, beam=1)
layers, heads = len(model.spec.encoder.blocks), model.spec.encoder.blocks[0].attn.heads
patterns = {
    f"{layer + 1}.{head + 1}": t[f"encoder.layers.{layer}.attn.pattern"][0, head]
    for layer in range(layers)
    for head in range(heads)
}
size, width = model.spec.encoder.blocks[0].attn.head_dim, model.spec.encoder.width

# %% 拼接，再乘 W_O：等于逐头相加 | Joining and W_O are a sum over heads
from qkv.labs import find_lab

joined = find_lab("wo-sum").run(0, steps=0, tell=print)
joined["gap"], joined["average"]

# %% 先交换再合并 | Swap first, then merge
shapes = find_lab("head-shapes").run(0, steps=0, tell=print)
shapes["swapped"], shapes["plain"], shapes["rows"]

# %% 摆成表 | As tables
grids = [(words, words, pattern.tolist()) for pattern in patterns.values()]
