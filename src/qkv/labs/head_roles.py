"""Do heads specialise? Repeat a random segment, silence each head in turn, and compare with where each head looks."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import statistics
from typing import Literal

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw_repeats, fit, guesses
from qkv.lens.edit import Edit, ablate
from qkv.messages import Message, join

LAYERS, HEADS, SYMBOLS, ROWS = 2, 4, 16, 200
POSITIONS: dict[Literal["learned", "sinusoid"], Message] = {"learned": Message("learned positions"), "sinusoid": Message(
    "sinusoids")}
NAMES = {"right": Message("accuracy"), "worst": Message("head needed most: lost"), "median": Message(
    "median head: lost"),
         "before": Message("most weight on the symbol before, layer 0"), "induction": Message(
             "most weight of induction, layer 1"),
         "named": Message("looks the part and is needed most")}


@torch.no_grad()
def measure_accuracy(model: qkv.Model, ids: Tensor, asked: Tensor, edits: list[Edit]) -> float:
    """The share of the asked symbols that are right, with edits."""
    with model.trace(edit=edits):
        best = guesses(model, ids).argmax(-1)
    return float((best == asked)[asked >= 0].double().mean())


@torch.no_grad()
def looks(model: qkv.Model, ids: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Weight on the symbol before, and on those that followed the same symbol in earlier segments: [L, H] each."""
    with model.trace(save=["patterns"]) as t:
        model(ids)
    pattern = torch.stack([t[f"layers.{i}.attn.pattern"] for i in range(LAYERS)])  # L B H T S
    before = pattern.diagonal(-1, -2, -1).mean((1, -1))  # L H
    ask, at = asked >= 0, torch.arange(ids.shape[1])  # B T, T
    size = ask.double().argmax(1) + 1  # B: the first asked one ends the first segment
    past = at[:, None] - at[None]  # T S
    followed = ((past[None] + 1) % size[:, None, None] == 0) & (past >= 0) & ask[..., None]  # B T S
    return before, (pattern * followed[None, :, None]).sum((1, 3, 4)) / ask.sum()  # L H


def run(seed: int, *, steps: int = 800, tell: Tell = ignore) -> Numbers:
    found: dict[str, float | list[float]] = {}
    for kind in POSITIONS:
        model = Tiny(layers=LAYERS, heads=HEADS, width=64, positions=kind, vocabulary=SYMBOLS).model(seed, torch.float32)
        fit(model, lambda step: draw_repeats(seed * 10**6 + step), steps=steps, lr=4e-3, tell=tell)
        ids, asked = draw_repeats(-1 - seed, ROWS)
        base = measure_accuracy(model, ids, asked, [])
        silent = [[ablate(f"layers.{i}.attn.z", heads=h)] for i in range(LAYERS) for h in range(HEADS)]
        drops = [base - measure_accuracy(model, ids, asked, edits) for edits in silent]
        before, induction = looks(model, ids, asked)
        needed = [max(range(HEADS), key=lambda h, i=i: drops[i * HEADS + h]) for i in range(LAYERS)]
        named = (int(before[0].argmax()) == needed[0]) + (int(induction[1].argmax()) == needed[1])
        numbers = (base, max(drops), statistics.median(drops), float(before[0].max()), float(induction[1].max()), named / 2)
        found |= {f"{name}_{kind}": x for name, x in zip(NAMES, numbers, strict=True)}
        found[f"drops_{kind}"] = drops
    return found


def has_special_head(runs: Runs, kind: str) -> bool:
    """Whether in every seed one head is needed far more than the median one."""
    pairs = zip(runs.values(f"worst_{kind}"), runs.values(f"median_{kind}"), strict=True)
    return all(worst >= max(0.2, 2 * median) for worst, median in pairs)


def judge(runs: Runs) -> Verdict:
    found = list[Message]()
    for kind, in_text in POSITIONS.items():
        worst, median, induction = (runs.mean(f"{name}_{kind}") for name in ("worst", "median", "induction"))
        share = runs.mean(f"named_{kind}")
        found.append(Message("{in_text}: silencing the head needed most costs {worst:.2f} (the median one "
                             "{median:.2f}), the most weight of induction is {induction:.2f}, and the head that looks "
                             "the part is the one needed most in {share:.0%}", in_text=in_text, worst=worst,
                             median=median, induction=induction, share=share))
    apart = [has_special_head(runs, kind) for kind in POSITIONS]
    named = all(runs.min(f"named_{kind}") == 1 for kind in POSITIONS)
    word = "shown" if all(apart) and named else "true only when" if any(apart) else "not shown"
    return runs.verdict(word, "worst_learned", join("; ", found))


def plot(runs: Runs) -> Plot:
    series, names = dict[str, list[float]](), {f"h{h}": Message("head {h}", h=h) for h in range(HEADS)}
    for kind, in_text in POSITIONS.items():
        for n, row in enumerate(runs.rows):
            drops = row[f"drops_{kind}"]
            assert isinstance(drops, list)
            for i in range(LAYERS):
                series[f"{kind}.{n}.{i}"] = drops[i * HEADS : (i + 1) * HEADS]
                names[f"{kind}.{n}.{i}"] = Message("{in_text}, seed {n}, layer {i}", in_text=in_text, n=n,
                                                   i=i)
    return Plot("grid", Message("one head silenced: accuracy lost"), [f"h{h}" for h in range(HEADS)], series, names=names)


LAB = Lab(
    "trained",
    Message("Heads specialise: one looks at the word before, one finds repeats; the pattern tells what a head is "
            "for."),
    Message("All texts on many heads (“one for grammar, one for reference”); induction heads: Olsson et al. "
            "2022."),
    Message("A model of two layers with four heads each learns to repeat a random segment (of 5 to 12). Each of the "
            "eight heads is silenced; the weight that each head puts on the symbol before, and on what followed the "
            "same symbol earlier. With two kinds of positions."),
    Message("Chance 1/16 = 0.06; baseline: none silenced. To specialise: the head needed most costs at least 0.2 and "
            "twice the median."),
    Message("Learned positions (a pilot): the head needed most costs 0.3 or more, most much less, and the pattern "
            "does not tell which. Sinusoids: heads look like induction, three share that work, none is needed "
            "much."),
    {f"{name}_{kind}": Message("{text} ({in_text})", text=text, in_text=in_text) for kind, in_text in POSITIONS.items() for name, text in NAMES.items()},
    run, judge, plot, steps=800, enough=500, seeds=3,
)
