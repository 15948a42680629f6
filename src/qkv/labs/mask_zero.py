"""Does nothing to the right ever influence the left? Every Jacobian of every layer, and the masked weights themselves."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, guesses, influence, load_fp64
from qkv.messages import Message

TOKENS = 8


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    model, ids = Tiny(layers=3).model(seed), draw(seed, 1, TOKENS)
    ahead = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)  # (reader, read): read stands to the right
    reach = influence(model, ids, seed).amax((0, 2))
    free = influence(Tiny(mask="full", layers=3).model(seed), ids, seed).amax((0, 2))
    trained = load_fp64("demo-lm")
    learnt = influence(trained, trained_ids := torch.tensor([trained.ids("One, Two,")]), seed).amax((0, 2))
    count = trained_ids.shape[1]
    with model.trace(save=["*.pattern"]) as t, torch.no_grad():
        changed, plain = ids.clone(), guesses(model, ids)
    changed[0, TOKENS // 2] = (changed[0, TOKENS // 2] + 1) % 32
    with torch.no_grad():
        moved = (guesses(model, changed) - plain)[0].abs().amax(-1)
    return {
        "leak": float(reach[ahead].max()),
        "weight": max(float(t[n][0, :, ahead].max()) for n in t.wanted),
        "change": float(moved[: TOKENS // 2].max()),
        "change_right": float(moved[TOKENS // 2 :].min()),
        "trained": float(learnt[torch.ones(count, count, dtype=torch.bool).triu(1)].max()),
        "itself": float(reach.diagonal().min()),
        "control": float(free[ahead].min()),
        "grid": reach.flatten().tolist(),
    }


def judge(runs: Runs) -> Verdict:
    leak = max(runs.max(n) for n in ("leak", "weight", "change", "trained"))
    says = Message("from right to left at most {leak:g}, without the mask at least {control:.2g}; each word sees "
                   "itself too", leak=leak, control=runs.min("control"))
    if leak == 0 and runs.min("control") > 0 and runs.min("itself") > 0:
        return runs.verdict("shown", "leak", says)
    return runs.verdict("refuted" if leak > 0 else "inconclusive", "leak", says)


def plot(runs: Runs) -> Plot:
    grid, names = runs.curve("grid"), [f"{i + 1}" for i in range(TOKENS)]
    rows = {n: grid[i * TOKENS : (i + 1) * TOKENS] for i, n in enumerate(names)}
    return Plot("grid", Message("who influences whom: rows read, columns are read"), names, rows,
                Message("position read"), Message("reader"))


LAB = Lab(
    "exact",
    Message("A causal mask keeps what stands right from influencing what stands left: the weight is exactly "
            "0."),
    Message("Texts on decoders; often as “answers come only from the left”, which forgets the word itself."),
    Message("The Jacobians of all pairs of positions in all layers; the masked weights; the left's logits after one "
            "word is changed. A random model, and demo-lm."),
    Message("Exactly 0, not small; control: the same model unmasked is not 0."),
    Message("0, 0 and 0; each word sees itself."),
    {"leak": Message("largest Jacobian, right to left"),
     "weight": Message("largest masked weight"), "change": Message("a word changed: its left"),
     "change_right": Message("a word changed: itself and its right"),
     "trained": Message("demo-lm's largest Jacobian, right to left"),
     "itself": Message("least Jacobian to itself"),
     "control": Message("control: the least without a mask")},
    run, judge, plot,
)
