"""How far do more layers get without writing anything down? Li et al. 2024 in small, their figure redrawn beside ours."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs import cot_serial as serial
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, fit, guesses
from qkv.messages import Message

DEPTHS, ALOUD, COUNT = (1, 2, 4, 8), (1, 2), 8
# Li et al. 2024, Figure 3 (permutations of five composed): approximate, not checked against the figure's data.
PAPER = {"aloud": [1.0, 1.0, 1.0], "silent": [0.2, 0.2, 0.2]}


@torch.no_grad()
def measure_silent(layers: int, seed: int, steps: int, tell: Tell) -> list[float]:
    """Silent: how often the product of the first n permutations is right, by n, when each is asked for in place."""
    model = Tiny(layers=layers, ffn=64, vocabulary=8, context=COUNT).model(seed, torch.float32)
    with torch.enable_grad():
        fit(model, lambda step: serial.draw_products(seed * 10**6 + step, 32, COUNT), steps=steps, lr=3e-3, tell=tell)
    ids, so_far = serial.draw_products(-1 - seed, 500, COUNT)
    return (guesses(model, ids).argmax(-1) == so_far).double().mean(0).tolist()


def measure_aloud(layers: int, seed: int, steps: int, tell: Tell) -> list[float]:
    """Aloud: the same when the model reads the steps that it wrote."""
    model = Tiny(layers=layers, ffn=64, vocabulary=8, context=2 * COUNT).model(seed, torch.float32)
    fit(
        model,
        lambda step: serial.example("aloud", *serial.draw_products(seed * 10**6 + step, 32, COUNT)),
        steps=steps,
        lr=3e-3,
        tell=tell,
    )
    ids, so_far = serial.draw_products(-1 - seed, 500, COUNT)
    return (serial.write_products(model, ids) == so_far).double().mean(0).tolist()


def run(seed: int, *, steps: int = 600, tell: Tell = ignore) -> Numbers:
    found: dict[str, float | list[float]] = {}
    for layers in DEPTHS:
        shares = measure_silent(layers, seed, steps, lambda said, n=layers: tell(f"silent, {n} layers: {said}"))
        found |= {f"silent_{layers}": shares, f"silent4_{layers}": shares[3], f"silent8_{layers}": shares[-1]}
        if layers in ALOUD:
            shares = measure_aloud(layers, seed, steps, lambda said, n=layers: tell(f"aloud, {n} layers: {said}"))
            found |= {f"aloud_{layers}": shares, f"aloud8_{layers}": shares[-1]}
    return found


def judge(runs: Runs) -> Verdict:
    shallow, deep = runs.mean("silent4_1"), runs.mean("silent4_8")
    says = Message("silently, four permutations: {shallow:.2f} with 1 layer, {deep:.2f} with 8; eight: "
                   "{silent8_8:.2f} even with 8 layers (chance 0.17). Aloud, eight: {aloud8_1:.2f} with 1 layer",
                   shallow=shallow, deep=deep, silent8_8=runs.mean("silent8_8"),
                   aloud8_1=runs.mean("aloud8_1"))
    deeper = runs.min("silent4_8") > runs.max("silent4_1") + 0.2
    beyond = runs.min("aloud8_1") >= 0.95 and runs.max("silent8_8") <= 0.35
    return runs.verdict(
        "shown" if deeper and beyond else "true only when" if deeper or beyond else "not shown", "aloud8_1", says
    )


NAMES = {**{f"silent{n}": Message("silent, {n} permutations", n=n) for n in (3, 4, 5, 8)}, "aloud8": Message(
    "aloud, 8 permutations"),
         "aloud": Message("said aloud"), "silent": Message("silent")}


def plot(runs: Runs) -> Plot:
    silent = {f"silent{n}": [runs.curve(f"silent_{layers}")[n - 1] for layers in DEPTHS] for n in (3, 4, 5, 8)}
    spoken = [runs.mean(f"aloud8_{layers}") if layers in ALOUD else float("nan") for layers in DEPTHS]  # not tried
    theirs = Plot("lines", Message("the paper: S5 composed, accuracy of the answer"), DEPTHS[:-1],
                  PAPER, Message("layers"), Message("accuracy"), names=NAMES,
                  source=Message("Li et al. 2024, approximate, from Figure 3, unchecked; silent is a guess "
                                 "(1/5)"))
    return Plot("lines", Message("n permutations of S3 composed: accuracy"), DEPTHS, silent | {"aloud8": spoken},
                Message("layers"), Message("accuracy"), names=NAMES, beside=theirs)


LAB = Lab(
    "trained",
    Message("Depth does not replace thinking aloud: silently, layers limit how many steps can be chained; aloud, even "
            "a shallow model goes on."),
    Message("Li et al. 2024, Chain of Thought Empowers Transformers to Solve Inherently Serial Problems."),
    Message("Models of 1, 2, 4 and 8 layers compose eight permutations of three things. Silent: each position answers "
            "with the product so far (the paper's \"hint\"); aloud: it reads the steps it wrote. Unlike the paper: "
            "S3, not S5; width 32; 600 steps; eight permutations."),
    Message("Chance 1/6 = 0.17; baseline: one layer, silent."),
    Message("Silent: the deeper the longer, but eight are near chance for all; aloud: at least 0.95 with one "
            "layer."),
    {**{f"silent4_{n}": Message("silent, four, layers: {n}", n=n) for n in DEPTHS},
     "silent8_8": Message("silent, eight, layers: 8"),
     **{f"aloud8_{n}": Message("aloud, eight, layers: {n}", n=n) for n in ALOUD}},
    run, judge, plot, steps=600, enough=300, seeds=3,
)
