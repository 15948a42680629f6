"""Do residual connections make deep stacks trainable, and is it the vanishing gradient that they cure? 16 layers copy."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from typing import Literal

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, fit, guesses
from qkv.messages import Message

SYMBOLS, LENGTH, LAYERS = 16, 8, 16
RATES = (1e-3, 3e-3, 1e-2)  # the plain stack of 16 layers gets the best of these
ARMS: dict[str, tuple[Literal["serial", "none"], int]] = {
    "with_2": ("serial", 2),
    "with": ("serial", LAYERS),
    "without_2": ("none", 2),
    "without": ("none", LAYERS),
}


def draw_batch(seed: int, rows: int = 16) -> tuple[Tensor, Tensor]:
    """Eight symbols, a mark, the same eight again; asked for the second eight."""
    ids = torch.randint(0, SYMBOLS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    mark = torch.full((rows, 1), SYMBOLS)
    read = torch.cat((ids, mark, ids[:, :-1]), 1)
    return read, torch.cat((torch.full_like(ids, -100), ids), 1)


@torch.no_grad()
def measure_accuracy(model: qkv.Model, seed: int) -> float:
    """The share of the second eight symbols that is right."""
    read, asked = draw_batch(seed, 200)
    return float((guesses(model, read).argmax(-1) == asked)[:, LENGTH:].double().mean())


def slope(model: qkv.Model, seed: int, weight: Tensor) -> float:
    """The length of the loss's gradient at a parameter, before any step."""
    read, asked = draw_batch(seed, 32)
    loss = torch.nn.functional.cross_entropy(guesses(model, read).flatten(0, 1), asked.flatten())
    return float(torch.autograd.grad(loss, weight)[0].norm())


def run(seed: int, *, steps: int = 300, tell: Tell = ignore) -> Numbers:
    found: dict[str, float] = {}
    for arm, (residual, layers) in ARMS.items():
        small = Tiny(residual=residual, layers=layers, ffn=64, vocabulary=SYMBOLS + 1, context=2 * LENGTH)
        model = small.model(seed, torch.float32)
        found[f"slope_{arm}"] = slope(model, seed, model.core.embed.weight)
        for rate in RATES if arm == "without" else (3e-3,):
            model = small.model(seed, torch.float32)
            fit(model, lambda step: draw_batch(seed * 10**6 + step), steps=steps, lr=rate,
                tell=lambda said, arm=arm, rate=rate: tell(f"{arm}, rate {rate:g}: {said}"))
            found[arm] = max(found.get(arm, 0.0), measure_accuracy(model, -1 - seed))
    return found


def judge(runs: Runs) -> Verdict:
    fades = runs.max("slope_without") < 0.1 * runs.min("slope_with")
    says = Message("{layers} layers: with {with_:.2f}, without {without:.2f} (the best of three rates; chance 0.06); "
                   "the first gradient {slope_with:.2g} against {slope_without:.2g}: it {what}", layers=LAYERS,
                   with_=runs.mean("with"), without=runs.mean("without"), slope_with=runs.mean("slope_with"),
                   slope_without=runs.mean("slope_without"),
                   what=Message("vanishes") if fades else Message("does not vanish"))
    helps = runs.min("with") >= 0.95 and runs.max("without") < 0.2
    return runs.verdict("shown" if helps else "not shown", "with", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("eight symbols copied: accuracy"), tuple(ARMS),
                {"accuracy": [runs.mean(arm) for arm in ARMS]}, y_label=Message("accuracy"))


LAB = Lab(
    "trained",
    Message("Residual connections make deep stacks trainable."),
    Message("All introductions; some say that it cures vanishing gradients, which He et al. 2015 call "
            "unlikely."),
    Message("A copying task at 2 and 16 layers, with and without residuals (pre-norm all); and the loss's first "
            "gradient at the embedding."),
    Message("Chance 1/16 = 0.06; baseline: without residuals two layers still learn. Sixteen without get the best of "
            "three rates."),
    Message("16 layers: with at least 0.95, without near chance; the first gradient does not vanish."),
    {"with_2": Message("with, 2 layers"), "with": Message("with, 16 layers"),
     "without_2": Message("without, 2 layers"), "without": Message("without, 16 layers"),
     "slope_with": Message("first gradient, with, 16 layers"),
     "slope_without": Message("first gradient, without, 16 layers")},
    run, judge, plot, steps=300, enough=200, seeds=3,
)
