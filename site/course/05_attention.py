"""Attention: where each written word looked, and what a cut shows that a look does not."""

# %% 写每个词时看了哪里 | Where each written word looked

import qkv

model = qkv.load("demo")
text = "书和茶都在桌上，我看完了它。"
words = model.tokenizer.pieces(model.ids(text))
with model.trace(save=["patterns"]) as t:
    said = model.translate(text, beam=1).text
found = t.alignment()
written, looks = list(found.target[1:]), found.weight[:-1].tolist()  # what was read last looks, then a word is written
read = list(found.source)
shares = [[round(100 * x, 1) for x in row] for row in looks]
last = len(written) - 1 - written[::-1].index("book")
found

# %% 编码器里的“它”看了谁？ | Whom did 它 look at in the encoder?
it = words.index("它")
looked = {}
for layer in range(3):
    for head in range(4):
        row = t[f"encoder.layers.{layer}.attn.pattern"][0, head, it]
        looked[f"{layer + 1}.{head + 1}"] = row.tolist()
strongest = [words[max(range(len(words)), key=row.__getitem__)] for row in looked.values()]
noun = strongest.count("书")

# %% 剪断一条边，再跑一遍 | One edge is cut, and it runs again
import torch

from qkv.lens import edit

source = torch.tensor([model.ids(text)])
tokens = model.translate(text, beam=1).tokens
target = torch.tensor([[model.special.start, *tokens[:last]]])
book = tokens[last]


def chance_of_book(*cuts: edit.Edit) -> float:
    """P(book) at the last place, where the sentence says which noun 它 is."""
    with torch.no_grad(), model.trace(edit=list(cuts)):
        return model(source=source, target=target).logits[0, -1].softmax(-1)[book].item()


whole = chance_of_book()
without = [chance_of_book(edit.cut("decoder.layers.*.cross", query=last, key=k)) for k in range(len(words))]
needed = words[min(range(len(words)), key=without.__getitem__)]
by_it = [chance_of_book(edit.cut("encoder.layers.*.attn", query=it, key=k)) for k in range(len(words))]
whole, needed, min(by_it)
