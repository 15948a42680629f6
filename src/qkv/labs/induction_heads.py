"""Do induction heads form as the loss drops, and only with two layers? Olsson et al. 2022 in small, redrawn beside ours."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, fit, guesses
from qkv.messages import Message

SYMBOLS, LENGTH, ROWS, LOOKS = 32, 64, 32, 12
# Olsson et al. 2022, argument 1: "less than 0.15 nats" before, "roughly 0.4" after 2.5 to 5 billion tokens stand in the
# text; the rest is read off Figures 3 (score) and 5 (prefix matching), two-layer and one-layer attention-only models.
TOKENS = [0.0, 2.5, 3.75, 5.0, 7.5, 10.0]  # billions
PAPER = {"score_1": [0.0, -0.1, -0.1, -0.1, -0.1, -0.1], "score_2": [0.0, -0.12, -0.25, -0.4, -0.4, -0.4],
         "prefix_1": [0.0, 0.02, 0.02, 0.02, 0.02, 0.02], "prefix_2": [0.0, 0.02, 0.4, 0.8, 0.85, 0.85]}


def draw_batch(seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Rows of 10 to 24 distinct symbols, over and over [B, T + 1], and how many each row has [B, 1]."""
    chance = torch.Generator().manual_seed(seed)
    order = torch.rand(rows, SYMBOLS, generator=chance).argsort(1)
    count = torch.randint(10, 25, (rows, 1), generator=chance)
    return order.gather(1, torch.arange(LENGTH + 1) % count), count


def build_attention_only(layers: int, seed: int) -> qkv.Model:
    """Attention alone: the FFN is one neuron whose output is frozen at 0."""
    model = Tiny(layers=layers, width=64, ffn=1, vocabulary=SYMBOLS, context=LENGTH).model(seed, torch.float32)
    for name, weight in model.core.named_parameters():
        if ".ffn." in name:
            weight.requires_grad_(False).zero_()
    return model


@torch.no_grad()
def look(model: qkv.Model, seed: int) -> tuple[float, float, float]:
    """The loss; the in-context score (loss of the last 8 symbols minus that of the 5th to 8th); the best head's match."""
    ids, count = draw_batch(seed, 64)
    with model.trace(save=["*.pattern"]) as t:
        logits = guesses(model, ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(-1, LENGTH)
    query, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    follows = (key <= query) & ((query - key + 1) % count[:, :, None] == 0)  # B T S: keys after the same symbol as here
    again = (torch.arange(LENGTH) >= count).float()  # B T: the symbol here was seen before
    heads = [((t[n] * follows[:, None]).sum(-1) * again[:, None]).sum((0, 2)) / again.sum() for n in t.wanted]  # H each
    return float(loss.mean()), float(loss[:, -8:].mean() - loss[:, 4:8].mean()), float(torch.stack(heads).max())


def run(seed: int, *, steps: int = 600, tell: Tell = ignore) -> Numbers:
    every = max(1, steps // LOOKS)
    found: dict[str, float | list[float]] = {"at": [float(step) for step in (*range(0, steps, every), steps)]}
    for layers in (1, 2):
        model, seen = build_attention_only(layers, seed), list[tuple[float, float, float]]()

        def draw_and_watch(
            step: int, model: qkv.Model = model, seen: list[tuple[float, float, float]] = seen
        ) -> tuple[Tensor, Tensor]:
            if step % every == 0:
                seen.append(look(model, -1 - seed))
            ids = draw_batch(seed * 10**6 + step)[0]
            return ids[:, :-1], ids[:, 1:]

        fit(model, draw_and_watch, steps=steps, lr=3e-3,
            tell=lambda said, layers=layers: tell(f"{layers} layers: {said}"))
        seen.append(look(model, -1 - seed))
        losses, scores, prefixes = (list(column) for column in zip(*seen, strict=True))
        found |= {f"curve_loss_{layers}": losses, f"curve_score_{layers}": scores, f"curve_prefix_{layers}": prefixes}
        found |= {f"loss_{layers}": losses[-1], f"score_{layers}": scores[-1], f"prefix_{layers}": prefixes[-1]}
        found |= {f"loss_drop_{layers}": find_steepest(losses, -every),
                  f"prefix_rise_{layers}": find_steepest(prefixes, every)}
    return found


def find_steepest(values: list[float], every: int) -> float:
    """The step before which a curve changes most: falls for a negative `every`, rises for a positive one."""
    sign = 1 if every > 0 else -1
    gains = [sign * (b - a) for a, b in pairwise(values[1:])]  # the fall before that is the start's
    return float((gains.index(max(gains)) + 2) * abs(every))


def judge(runs: Runs) -> Verdict:
    apart = max(abs(a - b) for a, b in zip(runs.values("loss_drop_2"), runs.values("prefix_rise_2"), strict=True))
    says = Message("two layers: the best head matches {prefix_2:.2f}, in-context score {score_2:.1f}; one layer: "
                   "{prefix_1:.2f} and {score_1:.1f}. With two, the head forms within {apart:.0f} steps of the "
                   "steepest fall of the loss", prefix_2=runs.mean("prefix_2"), score_2=runs.mean("score_2"),
                   prefix_1=runs.mean("prefix_1"), score_1=runs.mean("score_1"), apart=apart)
    forms = runs.min("prefix_2") > 0.5 and runs.max("prefix_1") < 0.2
    helps = runs.max("score_2") < runs.min("score_1") - 0.5
    return runs.verdict(
        "shown" if forms and helps and apart <= 100 else "true only when" if forms else "not shown", "prefix_2", says
    )


def plot(runs: Runs) -> Plot:
    ours = {name: runs.curve(f"curve_{name}") for name in PAPER}
    theirs = Plot("lines", Message("the paper: attention-only models of text"), TOKENS, PAPER,
                  Message("billion tokens of training"), Message("score (nats) and match"),
                  source=Message("Olsson et al. 2022, argument 1: 0.15, 0.4, 2.5 to 5 from the text, the rest "
                                 "approximate, Figures 3, 5"))
    return Plot("lines", Message("in training: in-context score and best head's match"), runs.curve("at"), ours,
                Message("step"), Message("score (nats) and match"), beside=theirs)


LAB = Lab(
    "trained",
    Message("Induction heads (A B seen before, A again: guess B) form abruptly in training, as the loss drops; one "
            "layer has none."),
    Message("Olsson et al. 2022, In-context Learning and Induction Heads."),
    Message("Attention-only models of 1 and 2 layers read 10 to 24 distinct symbols over and over. Every 50 steps: "
            "the loss; the in-context score (the last 8 symbols' loss minus that of the 5th to 8th); the best head's "
            "weight on what followed the same symbol before. Unlike the paper: made-up symbols, not text; 64 "
            "positions, not 512; 1.2 million tokens, not 10 billion; and as all is repetition, a far larger "
            "score."),
    Message("Guessing: loss ln 32 = 3.47, match about 1/17 = 0.06; baseline: one layer, which can only note which "
            "symbols are about."),
    Message("Two layers: match above 0.5, within 100 steps of the loss's fall, score lower than one layer's by 0.5; "
            "one layer: below 0.2."),
    {"prefix_2": Message("best head's match, 2 layers"), "prefix_1": Message(
        "best head's match, 1 layer"),
     "score_2": Message("in-context score, 2 layers"), "score_1": Message("in-context score, 1 layer"),
     "loss_2": Message("loss, 2 layers"), "loss_1": Message("loss, 1 layer"),
     "loss_drop_2": Message("step of the loss's steepest fall, 2"),
     "prefix_rise_2": Message("step of the match's steepest rise, 2")},
    run, judge, plot, steps=600, enough=400, seeds=3,
)
