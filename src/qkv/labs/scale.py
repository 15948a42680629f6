"""Why divide by the square root of the head dimension? Scores and softmax of one head from 4 to 1024 dimensions."""


import math

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw
from qkv.messages import Message

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


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    scaled = [head(d, None, seed) for d in DIMS]
    plain = [head(d, 1.0, seed) for d in DIMS]
    small = [head(d, 1.0, seed, d**-0.5) for d in DIMS]  # no scaling, but a first W_Q that is smaller
    return {
        "variance_over_dim": plain[-1][0] / DIMS[-1],
        "scaled": scaled[-1][1], "plain": plain[-1][1],
        "gradient_scaled": scaled[-1][2], "gradient_plain": plain[-1][2],
        "absorbed": max(abs(a[1] - b[1]) for a, b in zip(scaled, small, strict=True)),
        "scaled_curve": [s[1] for s in scaled], "plain_curve": [s[1] for s in plain],
    }


def judge(runs: Runs) -> Verdict:
    says = Message("at 1024 dimensions the weights' entropy is {scaled:.2f} scaled, {plain:.2f} not; gradient "
                   "{gradient_scaled:.2f} and {gradient_plain:.2f}; but a first W_Q made as much smaller does the "
                   "same ({absorbed:.1g} apart)", scaled=runs.mean("scaled"), plain=runs.mean("plain"),
                   gradient_scaled=runs.mean("gradient_scaled"), gradient_plain=runs.mean("gradient_plain"),
                   absorbed=runs.max("absorbed"))
    saturates = runs.min("scaled") > 0.8 and runs.max("plain") < 0.5
    word = "true only when" if saturates and runs.max("absorbed") < 1e-9 else "shown" if saturates else "not shown"
    return runs.verdict(word, "plain", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("entropy of the attention weights (1: flat)"), DIMS,
                {"q·k / √d": runs.curve("scaled_curve"), "q·k": runs.curve("plain_curve")},
                Message("head dimension"), Message("entropy"))


LAB = Lab(
    "exact",
    Message("Dot products are divided by √d_k, for softmax would saturate and its gradient vanish."),
    Message("Section 3.2.1 of the paper of 2017, and all who retell it."),
    Message("One head of 4 to 1024 dimensions with its first weights: variance of q·k, entropy of the weights, "
            "gradient that softmax lets through; scaled, not scaled, and not scaled with a smaller W_Q."),
    Message("Entropy 1 is flat, 0 is one word alone; the variance should be d_k."),
    Message("Variance near d_k; without scaling the more dimensions, the more saturated; a smaller first W_Q is the "
            "same as scaling, so it is needed only where q and k begin with unit variance."),
    {"variance_over_dim": Message("variance of q·k over d_k, at 1024"),
     "scaled": Message("entropy, scaled"), "plain": Message("entropy, not scaled"),
     "gradient_scaled": Message("gradient, scaled"), "gradient_plain": Message("gradient, not scaled"),
     "absorbed": Message("smaller W_Q against scaling")},
    run, judge, plot,
)
