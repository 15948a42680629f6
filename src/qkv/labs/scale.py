"""Why divide by the square root of the head dimension? Scores and softmax of one head from 4 to 1024 dimensions."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import math

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw

DIMS, TOKENS = (4, 16, 64, 256, 1024), 32


@torch.no_grad()
def head(dim: int, scale: float | None, seed: int, shrink: float = 1.0) -> tuple[float, float, float]:
    """Variance of q·k, entropy of the weights (1: flat), and how much gradient softmax lets through (trace of it)."""
    model = Tiny(mask="full", layers=1, width=dim, heads=1, ffn=8, scale=scale, context=TOKENS).model(seed)
    model.core.get_parameter("encoder.layers.0.attn.q.weight").mul_(shrink)
    with model.trace(save=["layers.0.attn.pattern"]) as t:
        model(draw(seed, 4, TOKENS))
    q, k, p = t["layers.0.attn.q"], t["layers.0.attn.k"], t["layers.0.attn.pattern"]
    entropy = -(p * p.clamp_min(1e-30).log()).sum(-1).mean() / math.log(TOKENS)
    return float((q @ k.mT).var()), float(entropy), float((p * (1 - p)).sum(-1).mean())


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    scaled = [head(d, None, seed) for d in DIMS]
    plain = [head(d, 1.0, seed) for d in DIMS]
    small = [head(d, 1.0, seed, d**-0.5) for d in DIMS]  # no scaling, but a first W_Q that is smaller
    return {
        "variance_over_dim": plain[-1][0] / DIMS[-1],
        "scaled": scaled[-1][1], "plain": plain[-1][1],
        "gradient_scaled": scaled[-1][2], "gradient_plain": plain[-1][2],
        "absorbed": max(abs(a[1] - b[1]) for a, b in zip(scaled, small, strict=True)),
        "scaled_curve": [s[1] for s in scaled], "plain_curve": [s[1] for s in plain],
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    says = (f"1024 维：权重的熵 {runs.mean('scaled'):.2f}（缩放）对 {runs.mean('plain'):.2f}（不缩放），梯度 "
            f"{runs.mean('gradient_scaled'):.2f} 对 {runs.mean('gradient_plain'):.2f}；但把初始 W_Q 缩小同样倍数，"
            f"结果一样（差 {runs.high('absorbed'):.1g}）",
            f"at 1024 dimensions the weights' entropy is {runs.mean('scaled'):.2f} scaled, {runs.mean('plain'):.2f} not; "
            f"gradient {runs.mean('gradient_scaled'):.2f} and {runs.mean('gradient_plain'):.2f}; but a first W_Q made as "
            f"much smaller does the same ({runs.high('absorbed'):.1g} apart)")  # fmt: skip
    saturates = runs.low("scaled") > 0.8 and runs.high("plain") < 0.5
    word = "true only when" if saturates and runs.high("absorbed") < 1e-9 else "shown" if saturates else "not shown"
    return runs.verdict(word, "plain", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", ("注意力权重的熵（1 为均匀）", "entropy of the attention weights (1: flat)"), DIMS,
                {"q·k / √d": runs.curve("scaled_curve"), "q·k": runs.curve("plain_curve")},
                ("每头维数", "head dimension"), ("熵", "entropy"))  # fmt: skip


LAB = Lab(
    "exact",
    ("点积要除以 √d_k，否则 softmax 饱和、梯度消失。",
     "Dot products are divided by √d_k, for softmax would saturate and its gradient vanish."),
    ("2017 年论文的 3.2.1 节，及所有转述。", "Section 3.2.1 of the paper of 2017, and all who retell it."),
    ("一个头，4 到 1024 维，刚初始化：q·k 的方差、权重的熵、softmax 放过的梯度；缩放、不缩放、不缩放但 W_Q 更小。",
     "One head of 4 to 1024 dimensions with its first weights: variance of q·k, entropy of the weights, gradient that "
     "softmax lets through; scaled, not scaled, and not scaled with a smaller W_Q."),
    ("熵 1 = 均匀，0 = 只看一个词；方差应为 d_k。", "Entropy 1 is flat, 0 is one word alone; the variance should be d_k."),
    ("方差约为 d_k；不缩放时维数越大越饱和；更小的初始 W_Q 与缩放完全等价，所以只在 q、k 方差为 1 时必要。",
     "Variance near d_k; without scaling the more dimensions, the more saturated; a smaller first W_Q is the same as "
     "scaling, so it is needed only where q and k begin with unit variance."),
    {"variance_over_dim": ("q·k 的方差 / d_k（1024 维）", "variance of q·k over d_k, at 1024"),
     "scaled": ("熵，缩放", "entropy, scaled"), "plain": ("熵，不缩放", "entropy, not scaled"),
     "gradient_scaled": ("梯度，缩放", "gradient, scaled"), "gradient_plain": ("梯度，不缩放", "gradient, not scaled"),
     "absorbed": ("更小的 W_Q 与缩放之差", "smaller W_Q against scaling")},
    run, judge, plot,
)  # fmt: skip
