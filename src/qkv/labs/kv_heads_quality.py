"""Do fewer key/value heads cost quality? MHA, GQA and MQA learn to repeat, with the same parameters, beside the seeds' own spread."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.cost import count
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw_repeats, fit, guesses
from qkv.messages import Message

HEADS, WIDTH, LAYERS = 4, 32, 2
ARMS = {"mha": 4, "gqa": 2, "mqa": 1}


def shape_model(groups: int) -> Tiny:
    """The model of so many key/value heads; its feed-forward part is wider by what they save, as in Shazeer 2019."""
    saved = 2 * WIDTH * (HEADS - groups) * (WIDTH // HEADS)
    return Tiny(layers=LAYERS, width=WIDTH, heads=HEADS, groups=groups, ffn=4 * WIDTH + saved // (2 * WIDTH), vocabulary=16)


@torch.no_grad()
def evaluate_model(model: qkv.Model, seed: int) -> tuple[float, float]:
    """The share of asked symbols that are right, and the loss, on texts that were not trained on."""
    ids, asked = draw_repeats(seed, 400)
    logits, ask = guesses(model, ids), asked >= 0
    loss = torch.nn.functional.cross_entropy(logits[ask], asked[ask])
    return float((logits.argmax(-1) == asked)[ask].double().mean()), float(loss)


def run(seed: int, *, steps: int = 1000, tell: Tell = ignore) -> Numbers:
    found: dict[str, float] = {}
    for arm, groups in ARMS.items():
        model = shape_model(groups).model(seed, torch.float32)
        fit(model, lambda step: draw_repeats(seed * 10**6 + step), steps=steps, lr=4e-3,
            tell=lambda said, arm=arm: tell(f"{arm}: {said}"))
        found[arm], found[f"loss_{arm}"] = evaluate_model(model, -1 - seed)
        found[f"parameters_{arm}"] = float(count(shape_model(groups).spec).parameters)
    found["gap"] = found["mha"] - found["mqa"]
    return found


def judge(runs: Runs) -> Verdict:
    spread = max(runs.max(arm) - runs.min(arm) for arm in ARMS)
    said = ", ".join(f"{arm.upper()} {runs.mean(arm):.2f} ({runs.min(arm):.2f} … {runs.max(arm):.2f})" for arm in ARMS)
    says = Message("{said}; MHA over MQA {gap:+.2f}, while seeds of one kind differ by {spread:.2f}", said=said,
                   gap=runs.mean("gap"), spread=spread)
    if runs.min("mha") > runs.max("mqa") and runs.mean("gap") > spread:
        between = runs.mean("mqa") <= runs.mean("gqa") <= runs.mean("mha")
        return runs.verdict("shown" if between else "true only when", "gap", says)
    backwards = runs.min("mqa") > runs.max("mha") and -runs.mean("gap") > spread
    return runs.verdict("refuted" if backwards else "not shown", "gap", says)


def plot(runs: Runs) -> Plot:
    series = {f"seed {n}": [each[n] for each in map(runs.values, ARMS)] for n in range(len(runs.rows))}
    names = {seed: Message("seed {n}", n=n) for n, seed in enumerate(series)}
    return Plot("bars", Message("a segment repeated: accuracy by seed"), tuple(ARMS), series,
                y_label=Message("accuracy"), names=names)


LAB = Lab(
    "trained",
    Message("Fewer key/value heads cost a little quality: MQA some, GQA between."),
    Message("Shazeer 2019, Ainslie et al. 2023, and all who retell them."),
    Message("Models of two layers and four heads learn to repeat a random segment, with 4, 2 or 1 key/value heads; "
            "the parameters saved widen the feed-forward part, so all have as many."),
    Message("Chance 1/16 = 0.06; baseline: how much seeds of the same kind differ. A head has 8 dimensions, far "
            "tighter than the 64 to 128 of large models."),
    Message("No order at this size: seeds differ more than kinds of heads do."),
    {"mha": Message("MHA (4 key/value heads)"), "gqa": Message("GQA (2)"), "mqa": Message(
        "MQA (1)"),
     "loss_mha": Message("loss: MHA"), "loss_gqa": Message("loss: GQA"), "loss_mqa": Message(
         "loss: MQA"),
     "gap": Message("MHA minus MQA"), "parameters_mha": Message("parameters: MHA"), "parameters_mqa": Message(
         "parameters: MQA")},
    run, judge, plot, steps=1000, enough=500, seeds=3,
)
