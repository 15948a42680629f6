"""Do temperature and top-p do the same? One set of logits, both knobs turned, and what stays the same under each."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from itertools import pairwise

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import guesses, load_fp64
from qkv.messages import Message
from qkv.sampling import Sampling, distribution

PROMPTS = ("One, Two,", "书放在桌上，它很", "今天天气")
TEMPERATURES, MASSES = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0), (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def entropy(p: torch.Tensor) -> float:
    return float(-(p * p.clamp_min(1e-30).log()).sum())


def odds(p: torch.Tensor) -> float:
    """How much likelier the best word is than the second best, as a logarithm."""
    best = p.topk(2).values
    return float((best[0] / best[1]).log())


@torch.no_grad()
def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    model = load_fp64("demo-lm")
    logits = guesses(model, torch.tensor([model.ids(PROMPTS[seed % len(PROMPTS)])]))[:, -1]
    whole = distribution(logits, Sampling(1.0))[0]
    warm = [distribution(logits, Sampling(t))[0] for t in TEMPERATURES]
    cut = [distribution(logits, Sampling(1.0, top_p=p))[0] for p in MASSES]
    inside = [c > 0 for c in cut]
    ratios = [float(((c / whole)[i] / (c / whole)[i].max()).log().abs().max()) for c, i in zip(cut, inside, strict=True)]
    return {
        "rises": float(all(entropy(a) < entropy(b) for a, b in pairwise(warm))),
        "best_stays": float(len({int(p.argmax()) for p in warm}) == 1),
        "ratio_top_p": max(ratios), "ratio_temperature": abs(odds(warm[-1]) - odds(warm[0])),
        "kept_top_p": float(inside[4].sum()), "kept_temperature": float((warm[-1] > 0).sum()),
        "sharpens": float(all(entropy(c) <= entropy(whole) + 1e-6 for c in cut)),
        "shift": float((distribution(logits + 5, Sampling(1.0)) - whole).abs().max()),
        "by_temperature": [entropy(p) for p in warm], "by_mass": [entropy(p) for p in cut],
    }


def judge(runs: Runs) -> Verdict:
    says = Message("temperature changes ratios (by {ratio_temperature:.1f} nats) and keeps every word; top-p 0.9 "
                   "keeps {kept_top_p:.0f} and their ratios ({ratio_top_p:.1g}), and entropy only falls",
                   ratio_temperature=runs.mean("ratio_temperature"), kept_top_p=runs.mean("kept_top_p"),
                   ratio_top_p=runs.max("ratio_top_p"))
    knobs = runs.min("rises") == 1 and runs.min("best_stays") == 1 and runs.min("ratio_temperature") > 0.1
    cuts = runs.max("ratio_top_p") < 1e-4 and runs.min("sharpens") == 1
    return runs.verdict("refuted" if knobs and cuts else "shown" if knobs else "inconclusive", "ratio_top_p", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("entropy: temperature 0.3 to 2, top-p 0.1 to 1"),
                [float(i + 1) for i in range(6)],
                {"temperature": runs.curve("by_temperature"), "top-p": runs.curve("by_mass")},
                Message("notch"), Message("entropy (nats)"))


LAB = Lab(
    "exact",
    Message("Top-p works much like temperature: it smooths the distribution."),
    Message("Texts on sampling knobs for application developers."),
    Message("demo-lm's own logits under both knobs: entropy, the likeliest word, words kept, ratios between "
            "words."),
    Message("Ratios unchanged: 0 nats (about 1e-6 in fp32); a flat distribution: 7 nats."),
    Message("Temperature: entropy rises, the best stays, ratios change. Top-p: the tail goes, ratios stay, entropy "
            "never rises."),
    {"rises": Message("entropy rises with temperature (1: yes)"), "best_stays": Message(
        "the best stays (1: yes)"),
     "ratio_temperature": Message("temperature 0.3 to 2: change of the best two's ratio"),
     "ratio_top_p": Message("ratios changed by top-p"), "kept_top_p": Message(
         "words kept at top-p 0.9"),
     "kept_temperature": Message("words kept at temperature 2"), "sharpens": Message(
         "top-p never raises entropy (1: yes)"),
     "shift": Message("effect of adding 5 to all logits")},
    run, judge, plot,
)
