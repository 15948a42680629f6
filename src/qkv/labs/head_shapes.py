"""How do four heads become one vector again? Batch 4, heads 4, 16 words, 128 numbers a head: the values are compared."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw

BATCH, HEADS, TOKENS, SIZE = 4, 4, 16, 128


@torch.no_grad()
def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
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
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    count = runs.mean("rows")
    says = (f"{[int(n) for n in runs.curve('z_shape')]} → {[int(n) for n in runs.curve('merged_shape')]}："
            f"先交换头与词再合并，{count:.0f} 行对 {runs.low('swapped'):.0f} 行；直接 reshape 对 {runs.high('plain'):.0f} 行",
            f"{[int(n) for n in runs.curve('z_shape')]} to {[int(n) for n in runs.curve('merged_shape')]}: with heads and "
            f"words swapped first {runs.low('swapped'):.0f} of {count:.0f} rows are right, with a plain reshape "
            f"{runs.high('plain'):.0f}")  # fmt: skip
    right = runs.low("swapped") == count and runs.high("out_gap") < 1e-9 and runs.high("row_sum") < 1e-5
    if not right:
        return runs.verdict("inconclusive", "plain", says)
    return runs.verdict("true only when" if runs.high("plain") < count else "shown", "plain", says)


def plot(runs: Runs) -> Plot:
    ways = ("swapped", "plain", "mixed")
    return Plot("bars", ("合并后与逐头循环一致的行（共 64 行）", "rows equal to a loop over heads, of 64"), ways,
                {"rows": [runs.mean(n) for n in ways]}, y_label=("行", "rows"))  # fmt: skip


LAB = Lab(
    "exact",
    ("[4,4,16,128] 把后面的维度合并，就得到 [4,16,512]。", "[4,4,16,128] becomes [4,16,512] by merging its last axes."),
    ("手把手讲多头形状的课程。", "Courses that walk through the shapes of heads."),
    ("批 4、头 4、词 16、每头 128：三种合并方式与逐头循环的数值相比；再乘 W_O 与模型输出比。",
     "Batch 4, heads 4, 16 words, 128 a head: three ways to merge against a loop over heads, by value; then times W_O "
     "against the model's output."),
    ("64 行中多少行一致；形状对不说明数值对。", "Rows that agree, of 64; the right shape proves nothing."),
    ("先交换头与词：64 行全对。直接 reshape：0 行。", "Heads and words swapped first: all 64. A plain reshape: 0."),
    {"swapped": ("先交换再合并：正确的行", "swapped, then merged: rows right"), "plain": ("直接 reshape：正确的行", "plain reshape"),
     "mixed": ("头放在里面：正确的行", "heads inside"), "row_sum": ("权重每行之和与 1 的差", "|sum of a row of weights - 1|"),
     "out_gap": ("乘 W_O 后与模型的差", "after W_O, against the model")},
    run, judge, plot,
)  # fmt: skip
