"""“Hello, I'm Susan … my name is”: who looks at Susan, and whose look does the answer need? Edges cut, one kind at a time."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import random
from itertools import permutations

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, encode_texts, fit, guesses
from qkv.lens.edit import Edit, cut
from qkv.messages import Message

NAMES = ("Susan", "Mary", "Tom", "John", "Alice", "Peter", "Laura", "Bob")
FILLERS = ("it", "rains", "today", "nice", "city", "here")
SELF, OTHER, MY, IS = 3, 6, 10, 12  # slots of “hello , I'm Susan . he's Tom . it rains my name is”
CUTS = {"my": [cut("layers.*.attn", query=MY, key=SELF)], "is": [cut("layers.*.attn", query=IS, key=SELF)],
        "both": [cut("layers.*.attn", query=(MY, MY + 1, IS), key=SELF)], "control": [cut("layers.*.attn", query=IS, key=OTHER)]}
WORDS = sorted({*NAMES, *FILLERS, *["hello", ",", "I'm", ".", "he's", "my", "his", "name", "is"]})


def write_text(me: str, him: str, between: tuple[str, str], first: str, swap: bool) -> str:
    """Two people are introduced, in either order, and both are asked for, `my` or `his` first."""
    intro = [f"I'm {me} .", f"he's {him} ."]
    asked = [f"my name is {me} .", f"his name is {him}"]
    if first == "his":
        asked = [f"his name is {him} .", f"my name is {me}"]
    return " ".join(["hello ,", *(intro[::-1] if swap else intro), *between, *asked])


def draw_batch(seed: int, rows: int = 48) -> tuple[Tensor, Tensor]:
    """Texts, asked for the names after `is` alone."""
    luck, texts = random.Random(seed), list[str]()
    for _ in range(rows):
        me, him = luck.sample(NAMES, 2)
        texts.append(write_text(me, him, (luck.choice(FILLERS), luck.choice(FILLERS)), luck.choice(("my", "his")), luck.random() < 0.5))
    ids, after = encode_texts(texts, WORDS)
    return ids, after.where(ids == WORDS.index("is"), -100)


def questions() -> tuple[Tensor, Tensor, Tensor]:
    """Every pair of people in the layout of the slots, up to `is` [N, 13], and the two names [N] each."""
    pairs = list(permutations(NAMES, 2))
    ids = encode_texts([write_text(me, him, ("it", "rains"), "my", False) for me, him in pairs], WORDS)[0][:, : IS + 1]
    return ids, ids[:, SELF], ids[:, OTHER]


@torch.no_grad()
def answers(model: qkv.Model, edits: list[Edit]) -> tuple[float, float]:
    """The shares of answers that are the speaker's name, and the other's."""
    ids, me, him = questions()
    with model.trace(edit=edits):
        best = guesses(model, ids)[:, -1].argmax(-1)
    return float((best == me).double().mean()), float((best == him).double().mean())


def run(seed: int, *, steps: int = 600, tell: Tell = ignore) -> Numbers:
    model = Tiny(layers=2, width=48, vocabulary=len(WORDS), context=24).model(seed, torch.float32)
    fit(model, lambda step: draw_batch(seed * 10**6 + step), steps=steps, lr=3e-3, tell=tell)
    found: dict[str, float] = {"right": answers(model, [])[0]}
    for way, edits in CUTS.items():
        found[f"cut_{way}"], found[f"other_{way}"] = answers(model, edits)
    with torch.no_grad(), model.trace(save=["patterns"]) as t:
        model(questions()[0])
    weights = torch.stack([t[f"layers.{i}.attn.pattern"].mean(0) for i in range(2)])  # L H T S
    found["look_my"], found["look_is"] = (float(weights[:, :, q, SELF].max()) for q in (MY, IS))
    return found


def judge(runs: Runs) -> Verdict:
    says = Message("the name is right in {right:.0%}. Most weight on the speaker's name: my {look_my:.2f}, is "
                   "{look_is:.2f}; right with the edge from my cut {cut_my:.0%}, from is {cut_is:.0%}, from all three "
                   "words {cut_both:.0%} (the name also comes by way of others), from is to the other name "
                   "{cut_control:.0%}; seeds take different ways", right=runs.mean("right"),
                   look_my=runs.mean("look_my"), look_is=runs.mean("look_is"), cut_my=runs.mean("cut_my"),
                   cut_is=runs.mean("cut_is"), cut_both=runs.mean("cut_both"),
                   cut_control=runs.mean("cut_control"))
    works = runs.min("right") > 0.9 and runs.max("cut_both") < 0.6 and runs.min("cut_control") > 0.8
    if not works:
        return runs.verdict("not shown", "cut_my", says)
    return runs.verdict("shown" if runs.max("cut_my") < 0.6 else "refuted" if runs.min("cut_my") > 0.9 else "true only when", "cut_my", says)


BARS = ("right", "cut_my", "cut_is", "cut_both", "cut_control")


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("the right name after “my name is”"), BARS,
                {"right": [runs.mean(bar) for bar in BARS]}, y_label=Message("share right"))


LAB = Lab(
    "trained",
    Message("At `my` the model asks who speaks, and attention fetches Susan; that is how “Hello, I'm Susan … my name "
            "is” goes on rightly."),
    Message("A book on prompts, and who retells it."),
    Message("A causal model of two layers; two people are introduced in either order, then asked for by my or his. "
            "Cut: the edge from my to the speaker's name, from is, from both (and name); control: from is to the "
            "other name."),
    Message("Chance 1/{names} = 0.13, a guess between the two names 0.50; baseline: nothing cut.",
            names=len(NAMES)),
    Message("Right in 95 % or more. What is needed is the edge from is, not from my: is sees my as well, and writes "
            "the answer."),
    {"right": Message("nothing cut"), "cut_my": Message("my to Susan cut"), "cut_is": Message(
        "is to Susan cut"),
     "cut_both": Message("my, name, is to Susan cut"), "cut_control": Message(
         "is to the other name cut"),
     "other_is": Message("is cut: says the other name"), "look_my": Message(
         "most weight from my on Susan"),
     "look_is": Message("most weight from is on Susan")},
    run, judge, plot, steps=600, enough=400, seeds=3,
)
