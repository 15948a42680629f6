"""How do four heads become one vector again? Batch 4, heads 4, 16 words, 128 numbers a head: the values are compared."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw
from qkv.messages import Message

BATCH, HEADS, TOKENS, SIZE = 4, 4, 16, 128


@torch.no_grad()
def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    model = Tiny(layers=1, width=HEADS * SIZE, heads=HEADS, ffn=64).model(seed)
    with model.trace(save=["layers.0.attn.*"]) as t:
        model(draw(seed, BATCH, TOKENS))
    name = "layers.0.attn"
    z, out, w = t[f"{name}.z"], t[f"{name}.out"], model.core.get_parameter("decoder.layers.0.attn.out.weight")
    q, k, v = (t[f"{name}.{part}"] for part in "qkv")
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    scores = [(q[:, h] @ k[:, h].mT * SIZE**-0.5).masked_fill(future, -torch.inf).softmax(-1) for h in range(HEADS)]
    alone = [score @ v[:, h] for h, score in enumerate(scores)]  # a loop over heads, no 4-D array
    right = torch.cat(alone, -1)
    ways = {
        "swapped": z.transpose(1, 2).reshape(BATCH, TOKENS, -1),
        "plain": z.reshape(BATCH, TOKENS, -1),
        "mixed": z.permute(0, 2, 3, 1).reshape(BATCH, TOKENS, -1),  # the right axes, but heads inside
    }
    found = {n: float((x - right).abs().amax(-1).lt(1e-10).sum()) for n, x in ways.items()}
    pattern = t[f"{name}.pattern"]
    return found | {
        "z_shape": [float(n) for n in z.shape], "merged_shape": [float(n) for n in ways["swapped"].shape],
        "pattern_shape": [float(n) for n in pattern.shape], "rows": float(BATCH * TOKENS),
        "row_sum": float((pattern.sum(-1) - 1).abs().max()), "out_gap": float((right @ w.T - out).abs().max()),
    }


def judge(runs: Runs) -> Verdict:
    count = runs.mean("rows")
    says = Message("{z_shape} to {merged_shape}: with heads and words swapped first {swapped:.0f} of {count:.0f} rows "
                   "are right, with a plain reshape {plain:.0f}", z_shape=[int(n) for n in runs.curve("z_shape")],
                   merged_shape=[int(n) for n in runs.curve("merged_shape")], swapped=runs.min("swapped"), count=count,
                   plain=runs.max("plain"))
    right = runs.min("swapped") == count and runs.max("out_gap") < 1e-9 and runs.max("row_sum") < 1e-5
    if not right:
        return runs.verdict("inconclusive", "plain", says)
    return runs.verdict("true only when" if runs.max("plain") < count else "shown", "plain", says)


def plot(runs: Runs) -> Plot:
    ways = ("swapped", "plain", "mixed")
    return Plot("bars", Message("rows equal to a loop over heads, of 64"), ways,
                {"rows": [runs.mean(n) for n in ways]}, y_label=Message("rows"))


LAB = Lab(
    "exact",
    Message("[4,4,16,128] becomes [4,16,512] by merging its last axes."),
    Message("Courses that walk through the shapes of heads."),
    Message("Batch 4, heads 4, 16 words, 128 a head: three ways to merge against a loop over heads, by value; then "
            "times W_O against the model's output."),
    Message("Rows that agree, of 64; the right shape proves nothing."),
    Message("Heads and words swapped first: all 64. A plain reshape: 0."),
    {"swapped": Message("swapped, then merged: rows right"), "plain": Message("plain reshape"),
     "mixed": Message("heads inside"), "row_sum": Message("|sum of a row of weights - 1|"),
     "out_gap": Message("after W_O, against the model")},
    run, judge, plot,
)
