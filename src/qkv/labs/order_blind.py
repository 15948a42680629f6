"""Is a Transformer without positions blind to word order? Shuffle the earlier words and see what the last one notices."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, guesses
from qkv.messages import Message

TOKENS = 8


def measure_change(model: qkv.Model, seed: int) -> float:
    """By how much the last position's logits change when the words before it trade places."""
    ids = draw(seed, 1, TOKENS)
    other = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], 1)
    with torch.no_grad():
        a, b = (guesses(model, x)[0, -1] for x in (ids, other))
    return float((a - b).abs().max())


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    found: dict[str, float] = {}
    for mask in ("full", "causal"):
        for layers in (1, 2, 3):
            model = Tiny(mask=mask, layers=layers, positions="none").model(seed)
            found[f"{mask}_{layers}"] = measure_change(model, seed)
    return found | {"with_positions": measure_change(Tiny(mask="full").model(seed), seed)}


def judge(runs: Runs) -> Verdict:
    encoder = max(runs.max(f"full_{n}") for n in (1, 2, 3))
    blind = max(encoder, runs.max("causal_1"))
    sees = min(runs.min("causal_2"), runs.min("causal_3"))
    says = Message("encoders of any depth and causal models of one layer: {blind:.1g}; causal models of two layers or "
                   "more: at least {sees:.2g}, for the mask itself tells the order", blind=blind, sees=sees)
    if blind < 1e-10 and sees > 1e-4 and runs.min("with_positions") > 1e-4:
        return runs.verdict("true only when", "causal_2", says)
    return runs.verdict("shown" if max(blind, sees) < 1e-10 else "refuted", "causal_2", says)


NAMES = ("full_1", "full_2", "full_3", "causal_1", "causal_2", "causal_3", "with_positions")


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("what the last position notices of a shuffle before it"), NAMES,
                {"|Δ logit|": [runs.mean(n) for n in NAMES]}, y_label=Message("change"))


LAB = Lab(
    "exact",
    Message("Without positions a Transformer cannot see word order: 我爱你 = 你爱我."),
    Message("Nearly every introduction says so when it comes to positions."),
    Message("How much the last position's logits change when the words before it are shuffled (fp64)."),
    Message("Blind means 0 (about 1e-15); control: an encoder with positions must differ."),
    Message("Encoders: 0. A causal model of one layer: 0. From two layers on not 0: the mask shows each word a "
            "different past."),
    {"full_1": Message("encoder, 1 layer"), "full_3": Message("encoder, 3 layers"),
     "causal_1": Message("causal, 1 layer"), "causal_2": Message("causal, 2 layers"),
     "causal_3": Message("causal, 3 layers"), "with_positions": Message("control: positions")},
    run, judge, plot,
)
