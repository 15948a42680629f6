"""Q, K, V: one query meets each key in a dot product; the weights come of it, and the values are added up by them."""

# %% “它”的查询遇到每个词的键 | The query of 它 meets the key of each word
import qkv
from qkv.labs import find_lab

model = qkv.load("demo")
text = "书和茶都在桌上，我看完了它。"
words = model.tokenizer.pieces(model.ids(text))
it, layer, head = words.index("它"), 2, 2
with model.trace(save=["walk", "patterns"]) as t:
    model.translate(text, beam=1)
steps = [t.walk(f"encoder.layers.{layer}.attn", head=head, query=it, key=key) for key in range(len(words))]
dots = [step["sum"].values.item() for step in steps]
scale = steps[0]["scale"].values.item()
scores = [step["scaled sum"].values.item() for step in steps]
weights = [step["weight"].values.item() for step in steps]
best = words[max(range(len(words)), key=weights.__getitem__)]
size = model.spec.encoder.blocks[layer].attn.head_dim
steps[words.index(best)]

# %% 除以根号 d_k | Divided by the root of d_k
numbers = find_lab("scale").run(0, steps=0, tell=print)
numbers["scaled"], numbers["plain"], numbers["absorbed"]

# %% 摆成表 | As tables
tables = [[[f"{d:.2f}"], [f"{s:.2f}"], [f"{100 * w:.1f}%"]] for d, s, w in zip(dots, scores, weights, strict=True)]
at_best = words.index(best)
