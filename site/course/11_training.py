"""Training: what is compared with what, what moves, and what does not."""

# %% 一次前向、一次反向、一步优化：谁动了？ | Forward, backward, one step: what moved?
import math

from qkv.labs import find_lab

moved = find_lab("what-moves").run(0, steps=0, tell=print)
moved["forward"], moved["backward"], moved["step"], moved["tensors"]

# %% 输入、答案、损失：一次算出所有位置 | Input, answer, loss: all positions in one pass
import torch

import qkv

model = qkv.load("demo")
source, answer = "我爱学习。", "I love studying."
ids = torch.tensor([model.ids(source)])
written = model.translate(source, beam=1).tokens
target = torch.tensor([[model.special.start, *written[:-1]]])
with torch.no_grad():
    chances = model(source=ids, target=target).logits[0].softmax(-1)
read = model.tokenizer.pieces(target[0].tolist())
labels = model.tokenizer.pieces(written)
right = [chances[i, token].item() for i, token in enumerate(written)]
losses = [-math.log(p) for p in right]

# %% 标准答案的概率是 0.1，损失是多少？ | The right word has a chance of 0.1: the loss?
loss = -math.log(0.1)

# %% 一次并行与逐词计算，是同样的数 | One parallel pass and word by word give the same numbers
serial = find_lab("parallel-equals-serial").run(0, steps=0, tell=print)
serial["demo"], serial["passes"]

# %% 摆成表 | As tables
steps = [f"{n + 1}" for n in range(len(written))]
tables = [[[word], [label], [f"{100 * p:.1f}%"], [f"{x:.3f}"]]
          for word, label, p, x in zip(read, labels, right, losses, strict=True)]
