"""Does normalisation make training work? Eight layers copy, with pre-norm, post-norm and none, at several rates."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from typing import Literal

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, fit, guesses
from qkv.messages import Message

SYMBOLS, LENGTH, LAYERS = 16, 8, 8
Kind = Literal["pre", "post", "none"]
ARMS: dict[str, tuple[Kind, float]] = {
    "pre_fast": ("pre", 3e-3), "pre_slow": ("pre", 1e-3), "post_fast": ("post", 3e-3), "post_slow": ("post", 1e-3),
    "none_fast": ("none", 3e-3), "none_slow": ("none", 1e-3),
}
KINDS: tuple[Kind, ...] = ("pre", "post", "none")


def draw_batch(seed: int, rows: int = 24) -> tuple[Tensor, Tensor]:
    """Eight symbols, a mark, the same eight again; asked for the second eight."""
    ids = torch.randint(0, SYMBOLS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    read = torch.cat((ids, torch.full((rows, 1), SYMBOLS), ids[:, :-1]), 1)
    return read, torch.cat((torch.full_like(ids, -100), ids), 1)


@torch.no_grad()
def measure_accuracy(model: qkv.Model, seed: int) -> float:
    """The share of the second eight that is right."""
    read, asked = draw_batch(seed, 200)
    return float((guesses(model, read).argmax(-1) == asked)[:, LENGTH:].double().mean())


@torch.no_grad()
def growth(model: qkv.Model, seed: int) -> float:
    """How much longer a state is after the last layer than at the embedding, before training."""
    first, last = "embed", f"layers.{LAYERS - 1}.resid_out"
    with model.trace(save=[first, last]) as t:
        model(draw_batch(seed)[0])
    return float(t[last].norm(dim=-1).mean() / t[first].norm(dim=-1).mean())


def run(seed: int, *, steps: int = 300, tell: Tell = ignore) -> Numbers:
    found: dict[str, float] = {}
    for arm, (kind, lr) in ARMS.items():
        small = Tiny(norm=kind, layers=LAYERS, vocabulary=SYMBOLS + 1, context=2 * LENGTH)
        model = small.model(seed, torch.float32)
        found.setdefault(f"growth_{kind}", growth(model, seed))
        fit(model, lambda step: draw_batch(seed * 10**6 + step), steps=steps, lr=lr,
            tell=lambda said, arm=arm: tell(f"{arm}: {said}"))
        found[arm] = measure_accuracy(model, -1 - seed)
    for kind in KINDS:
        found[kind] = max(found[f"{kind}_fast"], found[f"{kind}_slow"])
    return found


def judge(runs: Runs) -> Verdict:
    rates = ", ".join(f"{kind} {runs.mean(f'{kind}_fast'):.2f}/{runs.mean(f'{kind}_slow'):.2f}" for kind in KINDS)
    says = Message("{layers} layers at the better rate of two: pre {pre:.2f}, post {post:.2f}, none {none:.2f} "
                   "(chance 0.06); at 3e-3 and 1e-3: {rates}", layers=LAYERS, pre=runs.mean("pre"),
                   post=runs.mean("post"), none=runs.mean("none"), rates=rates)
    if min(runs.min("pre"), runs.min("post")) > runs.max("none") + 0.2:
        return runs.verdict("shown", "pre", says)
    some = [k for k in ("pre", "post") if runs.min(k) > runs.max("none") + 0.05 or runs.min(f"{k}_fast") > runs.max("none_fast") + 0.2]
    return runs.verdict("true only when" if some else "not shown", "pre", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("eight symbols copied: accuracy"), tuple(ARMS),
                {"accuracy": [runs.mean(arm) for arm in ARMS]}, y_label=Message("accuracy"))


LAB = Lab(
    "trained",
    Message("Without normalisation deep stacks do not train."),
    Message("All introductions; Ba et al. 2016, Xiong et al. 2020. Zhang et al. 2019 (Fixup) and De and Smith 2020 "
            "show that careful first weights can stand in."),
    Message("A copying task in 8 layers: pre-norm, post-norm and none, at the rates 0.003 and 0.001, the better one "
            "taken; how much states grow before training."),
    Message("Chance 1/16 = 0.06; baseline: the net without norms gets its choice of rate too."),
    Message("Pre and post reach 1.00; without norms 0.2 to 0.7, far above chance: slower, not stuck."),
    {"pre_fast": Message("pre, 3e-3"), "pre_slow": Message("pre, 1e-3"), "post_fast": Message(
        "post, 3e-3"),
     "post_slow": Message("post, 1e-3"), "none_fast": Message("none, 3e-3"), "none_slow": Message(
         "none, 1e-3"),
     "growth_pre": Message("states grow before training: pre"), "growth_post": Message(
         "the same, post"),
     "growth_none": Message("the same, none")},
    run, judge, plot, steps=300, enough=200, seeds=3,
)
