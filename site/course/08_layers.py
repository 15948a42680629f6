"""Layers: each adds to what it read; the sum of what all added is the last state, and the guesses grow with it."""

# %% 每一层会猜什么 | What each layer would guess
import qkv

model = qkv.load("demo-lm")
prompt = "One, Two,"
with model.trace(save=["lens", "parts"]) as t:
    said = model.generate(prompt, max_new_tokens=1)
guesses = t.lens(-1, top=5)
names = [name.removesuffix(".resid_out") for name in guesses.names]
tops = [[(model.tokenizer.decode([i]).strip() or "⏎", p) for i, p in zip(row[0], chances[0], strict=True)]
        for row, chances in zip(guesses.ids.tolist(), guesses.chances.tolist(), strict=True)]
first = [row[0][0] for row in tops]
guesses

# %% 谁推高了它：各部分相加正好等于 logit | Who pushed it: the parts add up to the logit
parts = t.parts(-1)
pushes = [(part.name, part.push) for part in parts.sublayers]
logit, gap = parts.logit, parts.gap
parts

# %% 残差、归一化：实验 | Residuals and norms: the labs
from qkv import labs

deep = labs.load_result("residual-depth")
ledger = labs.find_lab("revision-ledger").run(0, steps=0, tell=print)
deep["says"]

# %% 摆成表 | As tables
tables = [[[word for word, _ in row], [f"{100 * p:.0f}%" for _, p in row]] for row in tops]
pushed, amounts = [name for name, _ in pushes], [push for _, push in pushes]
