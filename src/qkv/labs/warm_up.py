"""Does post-norm need a warm-up that pre-norm does not? Xiong et al. 2020 in small, their numbers redrawn beside ours."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs import residual_depth as copying
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, fit
from qkv.messages import Message

LAYERS, HIGH, LOW = 6, 1e-2, 3e-3
LAST = f"decoder.layers.{LAYERS - 1}.ffn.down.weight"  # whose first gradient the paper's theorem is about
ARMS = {"none": (HIGH, 1), "short": (HIGH, 25), "long": (HIGH, 100), "low": (LOW, 1)}  # rate, steps of warm-up
# Xiong et al. 2020: BLEU on IWSLT14 de-en. Post-norm's numbers stand in section 3.2; pre-norm's is read off Figure 4.
PAPER = {"theirs_none": 8.45, "theirs_short": 2.77, "theirs_short_low": 31.16, "theirs_long": 34.0, "theirs_pre": 34.0}
NAMES = {"theirs_none": Message("post, no warm-up"), "theirs_short": Message("post, 500 steps, 1e-3"),
         "theirs_short_low": Message("post, 500 steps, 5e-4"), "theirs_long": Message(
             "post, 4000 steps"),
         "theirs_pre": Message("pre, no warm-up")}


def run(seed: int, *, steps: int = 300, tell: Tell = ignore) -> Numbers:
    found: dict[str, float] = {}
    for norm in ("post", "pre"):
        small = Tiny(norm=norm, layers=LAYERS, ffn=64, vocabulary=copying.SYMBOLS + 1, context=2 * copying.LENGTH)
        model = small.model(seed, torch.float32)
        found[f"{norm}_slope"] = copying.slope(model, seed, dict(model.core.named_parameters())[LAST])
        for arm, (rate, warm) in ARMS.items():
            model, name = small.model(seed, torch.float32), f"{norm}_{arm}"
            fit(model, lambda step: copying.draw_batch(seed * 10**6 + step), steps=steps, lr=rate, warm=warm,
                tell=lambda said, name=name: tell(f"{name}: {said}"))
            found[name] = copying.measure_accuracy(model, -1 - seed)
    return found


def judge(runs: Runs) -> Verdict:
    needs = runs.max("post_none") < 0.5 and runs.min("post_long") > 0.9
    free, low = runs.min("pre_none") > 0.9, runs.min("post_low") > 0.9
    says = Message("at rate {high:g} post-norm reaches {post_none:.2f} without warm-up and {post_long:.2f} with 100 "
                   "steps of it, pre-norm {pre_none:.2f} without; at rate {low:g} post-norm reaches {post_low:.2f} "
                   "without", high=HIGH, post_none=runs.mean("post_none"), post_long=runs.mean("post_long"),
                   pre_none=runs.mean("pre_none"), low=LOW, post_low=runs.mean("post_low"))
    word = "not shown" if not (needs and free) else "true only when" if low else "shown"
    return runs.verdict(word, "post_none", says)


def plot(runs: Runs) -> Plot:
    bars = [f"{norm}_{arm}" for norm in ("post", "pre") for arm in ARMS]
    theirs = Plot("bars", Message("the paper: IWSLT14 German to English"), list(PAPER),
                  {"BLEU": list(PAPER.values())}, y_label=Message("BLEU"), names=NAMES,
                  source=Message('Xiong et al. 2020, text of section 3.2 (34 is "around"); pre-norm approximate, from '
                                 "Figure 4"))
    return Plot("bars", Message("eight symbols copied: accuracy"), bars,
                {"accuracy": [runs.mean(bar) for bar in bars]}, y_label=Message("accuracy"), beside=theirs)


LAB = Lab(
    "trained",
    Message("A post-norm Transformer cannot do without learning-rate warm-up; a pre-norm one can."),
    Message("Xiong et al. 2020, On Layer Normalization in the Transformer Architecture; tutorials ever "
            "since."),
    Message("A decoder of {layers} layers copies eight symbols, 300 steps of AdamW: post- and pre-norm with 1, 25 and "
            "100 steps of warm-up at rate {high:g}, and without at {low:g}; and the last FFN's first gradient. Unlike "
            "the paper: copying, not translation; accuracy, not BLEU; gradients clipped at 1; a straight line to 0 "
            "after warm-up, not an inverse root.", layers=LAYERS, high=HIGH, low=LOW),
    Message("Chance 1/16 = 0.06; baseline: the same model with 100 steps of warm-up."),
    Message("At the high rate post-norm is near chance without warm-up and above 0.9 with it; pre-norm above 0.9 "
            "always. At the low rate the difference should shrink."),
    {f"{norm}_{arm}": Message("{norm}, {text}", norm=norm, text=text) for norm in ("post", "pre") for arm, text in {
        "none": Message("no warm-up"), "short": Message("25 steps"), "long": Message("100 steps"),
        "low": Message("no warm-up, low rate")}.items()}
    | {"post_slope": Message("last FFN's first gradient, post"),
       "pre_slope": Message("last FFN's first gradient, pre")},
    run, judge, plot, steps=300, enough=200, seeds=3,
)
