"""Positions: attention itself does not count places; what tells the order, and where the mask alone does."""

# %% 三个字的各种顺序 | Three words in every order
import qkv
from qkv.labs import find_lab

model = qkv.load("demo")
orders = ["我爱你。", "你爱我。", "我你爱。", "爱我你。"]
said = [model.translate(text, beam=1).text for text in orders]
said

# %% 没有位置信息，换顺序还看得出吗？ | Without positions, does the order still show?
numbers = find_lab("order-blind").run(0, steps=0, tell=print)  # the lab itself, run again: no training, a second
moved = {name: numbers[name] for name in ("full_1", "full_2", "full_3", "causal_1", "causal_2", "causal_3")}
sees = numbers["causal_2"] > 1e-6
moved

# %% 位置向量：每个位置一行 | The vector of each position
with model.trace(save=["walk"]) as t:
    model.translate("我爱你。", beam=1)
positions = [t.walk("encoder.layers.0.attn", query=i)["position"].values for i in range(4)]
first = [[row[k].item() for k in range(16)] for row in positions]

# %% 摆成表 | As tables
translations = [[[text]] for text in said]
dims = [str(k + 1) for k in range(16)]
shown = [[f"{x:.2f}" for x in row] for row in first]
