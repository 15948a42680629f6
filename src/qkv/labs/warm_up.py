"""Does post-norm need a warm-up that pre-norm does not? Xiong et al. 2020 in small, their numbers redrawn beside ours."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs import residual_depth as copying
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, fit

LAYERS, HIGH, LOW = 6, 1e-2, 3e-3
LAST = f"decoder.layers.{LAYERS - 1}.ffn.down.weight"  # whose first gradient the paper's theorem is about
ARMS = {"none": (HIGH, 1), "short": (HIGH, 25), "long": (HIGH, 100), "low": (LOW, 1)}  # rate, steps of warm-up
# Xiong et al. 2020: BLEU on IWSLT14 de-en. Post-norm's numbers stand in section 3.2; pre-norm's is read off Figure 4.
PAPER = {"theirs_none": 8.45, "theirs_short": 2.77, "theirs_short_low": 31.16, "theirs_long": 34.0, "theirs_pre": 34.0}
NAMES = {"theirs_none": ("post，不预热", "post, no warm-up"), "theirs_short": ("post，500 步，1e-3", "post, 500 steps, 1e-3"),
         "theirs_short_low": ("post，500 步，5e-4", "post, 500 steps, 5e-4"), "theirs_long": ("post，4000 步", "post, 4000 steps"),
         "theirs_pre": ("pre，不预热", "pre, no warm-up")}  # fmt: skip


def run(seed: int, *, steps: int = 300, tell: Tell = quiet) -> Numbers:
    found: dict[str, float] = {}
    for norm in ("post", "pre"):
        small = Tiny(norm=norm, layers=LAYERS, ffn=64, vocabulary=copying.SYMBOLS + 1, context=2 * copying.LENGTH)
        model = small.model(seed, torch.float32)
        found[f"{norm}_slope"] = copying.slope(model, seed, dict(model.core.named_parameters())[LAST])
        for arm, (rate, warm) in ARMS.items():
            model, name = small.model(seed, torch.float32), f"{norm}_{arm}"
            fit(model, lambda step: copying.batch(seed * 10**6 + step), steps=steps, lr=rate, warm=warm,
                tell=lambda said, name=name: tell(f"{name}: {said}"))  # fmt: skip
            found[name] = copying.right(model, -1 - seed)
    return found


def judge(runs: Runs) -> Verdict:
    needs = runs.high("post_none") < 0.5 and runs.low("post_long") > 0.9
    free, low = runs.low("pre_none") > 0.9, runs.low("post_low") > 0.9
    says = (f"学习率 {HIGH:g}：post-norm 不预热 {runs.mean('post_none'):.2f}，预热 100 步 {runs.mean('post_long'):.2f}；pre-norm 不预热 "
            f"{runs.mean('pre_none'):.2f}。学习率 {LOW:g}：post-norm 不预热 {runs.mean('post_low'):.2f}",
            f"at rate {HIGH:g} post-norm reaches {runs.mean('post_none'):.2f} without warm-up and {runs.mean('post_long'):.2f} "
            f"with 100 steps of it, pre-norm {runs.mean('pre_none'):.2f} without; at rate {LOW:g} post-norm reaches "
            f"{runs.mean('post_low'):.2f} without")  # fmt: skip
    word = "not shown" if not (needs and free) else "true only when" if low else "shown"
    return runs.verdict(word, "post_none", says)


def plot(runs: Runs) -> Plot:
    bars = [f"{norm}_{arm}" for norm in ("post", "pre") for arm in ARMS]
    theirs = Plot("bars", ("论文：IWSLT14 德英翻译", "the paper: IWSLT14 German to English"), list(PAPER),
                  {"BLEU": list(PAPER.values())}, y_label=Message("BLEU"), names=NAMES,
                  source=("Xiong 等 2020，3.2 节的文字；34 为“约”；pre-norm 读自图 4，约数",
                          "Xiong et al. 2020, text of section 3.2 (34 is \"around\"); pre-norm approximate, from Figure 4"))  # fmt: skip
    return Plot("bars", ("抄写 8 个符号的正确率", "eight symbols copied: accuracy"), bars,
                {"accuracy": [runs.mean(bar) for bar in bars]}, y_label=("正确率", "accuracy"), beside=theirs)  # fmt: skip


LAB = Lab(
    "trained",
    ("post-norm 的 Transformer 离不开学习率预热，pre-norm 不需要。",
     "A post-norm Transformer cannot do without learning-rate warm-up; a pre-norm one can."),
    ("Xiong 等 2020《On Layer Normalization in the Transformer Architecture》；此后的教程。",
     "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture; tutorials ever since."),
    (f"{LAYERS} 层解码器抄写 8 个符号，300 步 AdamW：post-norm 与 pre-norm，预热 1、25、100 步，学习率 {HIGH:g}；另加 {LOW:g} 不预热。还有"
     "初始时末层 FFN 的梯度。与论文不同：抄写而非翻译，正确率而非 BLEU，梯度裁剪到 1，预热后直线降到 0 而非平方根倒数。",
     f"A decoder of {LAYERS} layers copies eight symbols, 300 steps of AdamW: post- and pre-norm with 1, 25 and 100 steps of "
     f"warm-up at rate {HIGH:g}, and without at {LOW:g}; and the last FFN's first gradient. Unlike the paper: copying, not "
     "translation; accuracy, not BLEU; gradients clipped at 1; a straight line to 0 after warm-up, not an inverse root."),
    ("随机 1/16 = 0.06；基线：同样的模型，预热 100 步。", "Chance 1/16 = 0.06; baseline: the same model with 100 steps of warm-up."),
    ("高学习率下 post-norm 不预热接近随机，预热后 > 0.9；pre-norm 都 > 0.9。学习率低时差别应当变小。",
     "At the high rate post-norm is near chance without warm-up and above 0.9 with it; pre-norm above 0.9 always. At the low "
     "rate the difference should shrink."),
    {f"{norm}_{arm}": (f"{norm}，{zh}", f"{norm}, {en}") for norm in ("post", "pre") for arm, (zh, en) in {
        "none": ("不预热", "no warm-up"), "short": ("预热 25 步", "25 steps"), "long": ("预热 100 步", "100 steps"),
        "low": ("不预热，低学习率", "no warm-up, low rate")}.items()}
    | {"post_slope": ("末层 FFN 初始梯度，post", "last FFN's first gradient, post"),
       "pre_slope": ("末层 FFN 初始梯度，pre", "last FFN's first gradient, pre")},
    run, judge, plot, steps=300, enough=200, seeds=3,
)  # fmt: skip
