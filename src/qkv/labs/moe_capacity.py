"""Do experts hold more facts at the same computing? 4096 of them, with all but the feed-forward part frozen, and free."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from dataclasses import replace

import torch
from torch import Tensor

import qkv
from qkv import spec as parts
from qkv.cost import count
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, fit, guesses
from qkv.messages import Message

THINGS, HIDDEN, COUNT = 64, 32, 8  # every pair of two of 64 things is a fact, and its answer one of 64
ARMS = ("small", "experts", "learned", "large", "free_small", "free_experts")


def spec(arm: str) -> qkv.Spec:
    """One layer: a feed-forward part of 32, eight experts of 32 of which one reads each token, or a part of 256."""
    whole = Tiny(layers=1, width=64, ffn=HIDDEN * (COUNT if arm == "large" else 1), vocabulary=THINGS, context=2).spec
    if arm in ("small", "large", "free_small"):
        return whole
    stack, fixed = whole.stack, arm == "experts"
    weights = "sum to one" if fixed else "as scored"  # a router learns from the weight that it gives its choice
    experts = parts.Experts(COUNT, 1, parts.Ffn(HIDDEN, "gelu"), weights=weights)
    return replace(whole, decoder=replace(stack, blocks=(replace(stack.blocks[0], ffn=None, moe=experts),)))


def facts(seed: int) -> Tensor:
    """The answer to every pair [64, 64], drawn at random: nothing to understand, only to keep."""
    return torch.randint(0, THINGS, (THINGS, THINGS), generator=torch.Generator().manual_seed(seed))


def draw_batch(table: Tensor, seed: int, rows: int = 256) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, THINGS, (rows, 2), generator=torch.Generator().manual_seed(seed))
    return ids, torch.stack((torch.full((rows,), -100), table[ids[:, 0], ids[:, 1]]), 1)


def everything() -> Tensor:
    """All 4096 pairs [4096, 2]."""
    return torch.cartesian_prod(torch.arange(THINGS), torch.arange(THINGS))


@torch.no_grad()
def measure_busiest(model: qkv.Model) -> float:
    """The share of facts that the busiest expert reads."""
    with model.trace(save=["layers.0.moe.index"]) as t:
        model(everything())
    return float(torch.bincount(t["layers.0.moe.index"][:, 1].flatten(), minlength=COUNT).max() / THINGS**2)


def run(seed: int, *, steps: int = 800, tell: Tell = ignore) -> Numbers:
    found, table, pairs = dict[str, float](), facts(seed), everything()
    for arm in ARMS:
        model = qkv.build(spec(arm), seed=seed)
        for name, weight in model.core.named_parameters():
            routes = ".router." in name and arm == "experts"  # fixed at random, as in Roller et al. 2021
            weight.requires_grad_(arm.startswith("free") or ".ffn." in name or (".moe." in name and not routes))
        fit(model, lambda step: draw_batch(table, seed * 10**6 + step), steps=steps, lr=1e-2,
            tell=lambda said, arm=arm: tell(f"{arm}: {said}"))
        with torch.no_grad():
            best = guesses(model, pairs)[:, -1].argmax(-1)
        found[arm] = float((best == table[pairs[:, 0], pairs[:, 1]]).double().mean())
        if arm in ("small", "experts", "large"):
            cost = count(spec(arm))
            found[f"held_{arm}"], found[f"met_{arm}"] = float(cost.parameters), float(cost.active_parameters)
        if arm in ("experts", "learned"):
            found[f"busiest_{arm}"] = measure_busiest(model)
    return found


def judge(runs: Runs) -> Verdict:
    says = Message("only the feed-forward part trained: small {small:.2f}, one of 8 experts {experts:.2f} (router "
                   "learnt without balancing: {learned:.2f}, the busiest reads {busiest_learned:.0%}), 8 times the "
                   "computing {large:.2f} (chance 0.02); all trained: {free_small:.2f} and {free_experts:.2f}",
                   small=runs.mean("small"), experts=runs.mean("experts"), learned=runs.mean("learned"),
                   busiest_learned=runs.mean("busiest_learned"), large=runs.mean("large"),
                   free_small=runs.mean("free_small"), free_experts=runs.mean("free_experts"))
    gain = runs.min("experts") - runs.max("small")
    if gain < 0.1:
        return runs.verdict("not shown", "experts", says)
    always = min(runs.min("learned") - runs.max("small"), runs.min("free_experts") - runs.max("free_small")) > gain / 2
    return runs.verdict("shown" if always else "true only when", "experts", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("4096 facts: share recalled"), ARMS,
                {"recalled": [runs.mean(arm) for arm in ARMS]}, y_label=Message("share recalled"))


LAB = Lab(
    "trained",
    Message("A mixture of experts holds more knowledge at about the same computing."),
    Message("Shazeer et al. 2017, Fedus et al. 2021 and all since; “as cheap” counts operations only."),
    Message("4096 random facts (two words to one), one layer. Embeddings, attention and head stay random, the "
            "feed-forward part is trained: 32 wide; one of 8 experts of 32, by a router fixed at random or learnt "
            "without balancing; 256 wide. Then the same with everything trained."),
    Message("Chance 1/{things} = 0.02; baselines: 32 wide (the same computing) and 256 wide (8 times). Frozen, to "
            "measure that part alone.", things=THINGS),
    Message("Frozen: small 0.1 to 0.2, experts about 0.5, large over 0.7; a learnt router crowds onto one or two "
            "experts (so it did in a pilot) and loses most of it."),
    {"small": Message("32 wide"), "experts": Message("one of 8 experts"), "learned": Message(
        "the same, router learnt"), "large": Message(
        "256 wide"),
     "free_small": Message("32 wide, all trained"), "free_experts": Message(
         "one of 8 experts, all trained"),
     "busiest_experts": Message("share of the busiest expert"), "busiest_learned": Message(
         "the same, router learnt"),
     "held_small": Message("parameters: 32 wide"), "held_experts": Message("parameters: experts"), "held_large": Message(
         "parameters: 256 wide"),
     "met_experts": Message("parameters that a token meets: experts")},
    run, judge, plot, steps=800, enough=400, seeds=3,
)
