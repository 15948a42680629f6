"""The cache: keys and values of past words are kept; what that saves, and what it takes."""

# %% 逐词生成：每步算几个位置 | Word by word: how many positions each step computes
import qkv
from qkv import labs

model = qkv.load("demo-lm")
with model.trace(save=["cache"]) as t:
    said = model.generate("One, Two, buckle my shoe;", max_new_tokens=12)
steps = t.cache().steps
fresh, again = [step.fresh for step in steps], [step.again for step in steps]
kept = [step.bytes for step in steps]
t.cache()

# %% 有没有缓存，写出的都一样 | With or without a cache the text is the same
exact = labs.find_lab("cache-exact").run(0, steps=0, tell=print)
exact["same"], exact["gap"]

# %% 一个词元占多少 KV？ | How much do the keys and values of one token take?
layers, width = 96, 12288  # GPT-3
bytes_a_token = 2 * layers * width * 2  # K and V, 16 bits
mib = bytes_a_token / 2**20
mib

# %% 共用 K、V：上下文越长，差得越多 | Shared K and V: the longer the context, the more it matters
shapes = {"MHA, 64": 64, "GQA, 8": 8, "MQA, 1": 1}  # key-value heads of a model of 80 layers with heads of 128
lengths = [1024, 4096, 16384, 131072]
gib = [[2 * 80 * groups * 128 * 2 * length / 2**30 for groups in shapes.values()] for length in lengths]
contexts = [f"{length:,}" for length in lengths]
gib

# %% 摆成表 | As tables
reads = [f"+{n}" for n in range(len(fresh))]
total_fresh, total_again = sum(fresh), sum(again)
