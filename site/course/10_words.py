"""From a vector back to a word: logits, softmax, temperature, top-p."""

# %% 最后一个向量 → 整个词表的分数 | The last vector gives a score for each word of the vocabulary
import math

import qkv
from qkv.labs import find_lab

model = qkv.load("demo-lm")
prompt = "One, Two,"
with model.trace(save=["logits"]) as t:
    model.generate(prompt, max_new_tokens=1)
logits = t["logits"][0, -1]
chances = logits.softmax(-1)
order = logits.argsort(descending=True).tolist()
words = [model.tokenizer.decode([i]).strip() or "⏎" for i in order]
values = logits[order].tolist()
size = len(values)
list(zip(words[:5], chances[order[:5]].tolist(), strict=True))

# %% 文章里的数字，重新算一遍 | The numbers of a text, worked out again
given = [15.8, 5.1, -3.2]
top = max(given)
powers = [math.exp(x - top) for x in given]
real = [x / sum(powers) for x in powers]
lab = find_lab("stated-numbers").run(0, steps=0, tell=print)
real, lab["temperature"]

# %% 温度不改变名次 | The temperature never changes the order
ranks = [(logits / temperature).argsort(descending=True).tolist() == order for temperature in (0.1, 0.5, 2.0, 5.0)]
same = all(ranks)
