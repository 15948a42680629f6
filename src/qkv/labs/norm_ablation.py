"""Does normalisation make training work? Eight layers copy, with pre-norm, post-norm and none, at several rates."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

from typing import Literal

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, fit, guesses

SYMBOLS, LENGTH, LAYERS = 16, 8, 8
Kind = Literal["pre", "post", "none"]
ARMS: dict[str, tuple[Kind, float]] = {
    "pre_fast": ("pre", 3e-3), "pre_slow": ("pre", 1e-3), "post_fast": ("post", 3e-3), "post_slow": ("post", 1e-3),
    "none_fast": ("none", 3e-3), "none_slow": ("none", 1e-3),
}  # fmt: skip
KINDS: tuple[Kind, ...] = ("pre", "post", "none")


def batch(seed: int, rows: int = 24) -> tuple[Tensor, Tensor]:
    """Eight symbols, a mark, the same eight again; asked for the second eight."""
    ids = torch.randint(0, SYMBOLS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    read = torch.cat((ids, torch.full((rows, 1), SYMBOLS), ids[:, :-1]), 1)
    return read, torch.cat((torch.full_like(ids, -100), ids), 1)


@torch.no_grad()
def right(model: qkv.Model, seed: int) -> float:
    """The share of the second eight that is right."""
    read, asked = batch(seed, 200)
    return float((guesses(model, read).argmax(-1) == asked)[:, LENGTH:].double().mean())


@torch.no_grad()
def growth(model: qkv.Model, seed: int) -> float:
    """How much longer a state is after the last layer than at the embedding, before training."""
    first, last = "embed", f"layers.{LAYERS - 1}.resid_out"
    with model.trace(save=[first, last]) as t:
        model(batch(seed)[0])
    return float(t[last].norm(dim=-1).mean() / t[first].norm(dim=-1).mean())


def run(seed: int, *, steps: int = 300, tell: Tell = quiet) -> Numbers:
    found: dict[str, float] = {}
    for arm, (kind, lr) in ARMS.items():
        small = Tiny(norm=kind, layers=LAYERS, vocabulary=SYMBOLS + 1, context=2 * LENGTH)
        model = small.model(seed, torch.float32)
        found.setdefault(f"growth_{kind}", growth(model, seed))
        fit(model, lambda step: batch(seed * 10**6 + step), steps=steps, lr=lr,
            tell=lambda said, arm=arm: tell(f"{arm}: {said}"))  # fmt: skip
        found[arm] = right(model, -1 - seed)
    for kind in KINDS:
        found[kind] = max(found[f"{kind}_fast"], found[f"{kind}_slow"])
    return found


def judge(runs: Runs) -> Verdict:
    rates = ", ".join(f"{kind} {runs.mean(f'{kind}_fast'):.2f}/{runs.mean(f'{kind}_slow'):.2f}" for kind in KINDS)
    says = (f"{LAYERS} 层，各取较好的学习率：pre {runs.mean('pre'):.2f}，post {runs.mean('post'):.2f}，无 {runs.mean('none'):.2f}（随机 0.06）；"
            f"两种学习率分别：{rates}",
            f"{LAYERS} layers at the better rate of two: pre {runs.mean('pre'):.2f}, post {runs.mean('post'):.2f}, none "
            f"{runs.mean('none'):.2f} (chance 0.06); at 3e-3 and 1e-3: {rates}")  # fmt: skip
    if min(runs.low("pre"), runs.low("post")) > runs.high("none") + 0.2:
        return runs.verdict("shown", "pre", says)
    some = [k for k in ("pre", "post") if runs.low(k) > runs.high("none") + 0.05 or runs.low(f"{k}_fast") > runs.high("none_fast") + 0.2]
    return runs.verdict("true only when" if some else "not shown", "pre", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", ("抄写 8 个符号的正确率", "eight symbols copied: accuracy"), tuple(ARMS),
                {"accuracy": [runs.mean(arm) for arm in ARMS]}, y_label=("正确率", "accuracy"))  # fmt: skip


LAB = Lab(
    "trained",
    ("没有归一化，深层网络就训练不起来。", "Without normalisation deep stacks do not train."),
    ("所有入门文章；Ba 2016、Xiong 2020。De & Smith 2020 与 Zhang 2019 表明仔细的初始化可以代替它。",
     "All introductions; Ba et al. 2016, Xiong et al. 2020. Zhang et al. 2019 (Fixup) and De and Smith 2020 show that careful first weights can stand in."),
    ("8 层抄写任务：pre-norm、post-norm、没有；学习率 0.003 与 0.001，各取较好的一个；训练前状态长了多少。",
     "A copying task in 8 layers: pre-norm, post-norm and none, at the rates 0.003 and 0.001, the better one taken; how much states grow before training."),
    ("随机 1/16 = 0.06；基线：没有归一化时也挑学习率。", "Chance 1/16 = 0.06; baseline: the net without norms gets its choice of rate too."),
    ("pre 与 post 到 1.00；没有归一化 0.2 到 0.7，比随机好得多：会慢，不是训练不动。",
     "Pre and post reach 1.00; without norms 0.2 to 0.7, far above chance: slower, not stuck."),
    {"pre_fast": ("pre，0.003", "pre, 3e-3"), "pre_slow": ("pre，0.001", "pre, 1e-3"), "post_fast": ("post，0.003", "post, 3e-3"),
     "post_slow": ("post，0.001", "post, 1e-3"), "none_fast": ("无，0.003", "none, 3e-3"), "none_slow": ("无，0.001", "none, 1e-3"),
     "growth_pre": ("训练前状态变长：pre", "states grow before training: pre"), "growth_post": ("同上，post", "the same, post"),
     "growth_none": ("同上，无", "the same, none")},
    run, judge, plot, steps=300, enough=200, seeds=3,
)  # fmt: skip
