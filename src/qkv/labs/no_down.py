"""Can what a high layer found come down again within one pass? Jacobians upwards, sideways and down; then the one way."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, influence, load_fp64
from qkv.lens.edit import add
from qkv.messages import Message

TOKENS, LAYERS = 6, 4
PROMPT = "One, Two,"


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    reach = influence(Tiny(layers=LAYERS).model(seed), draw(seed, 1, TOKENS), seed)  # L T L T, the reader first
    levels = torch.arange(LAYERS + 1)
    above = (levels[None, :] >= levels[:, None])[:, None, :, None].expand(reach.shape).clone()
    same = torch.eye((LAYERS + 1) * TOKENS, dtype=torch.bool).view(reach.shape)
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()[None, :, None, :].expand(reach.shape)
    return {
        "down": float(reach[above & ~same].max()),
        "up": float(reach[~above & seen].min()),
        "through_token": through_token(seed),
        "grid": reach.amax((1, 3)).masked_fill(torch.eye(LAYERS + 1, dtype=torch.bool), 0.0).flatten().tolist(),
    }


def through_token(seed: int) -> float:
    """Push the top layer's state before the first written word: by how much the next column's embedding changes."""
    model = load_fp64("demo-lm")
    ids = model.ids(PROMPT)
    push = torch.randn(model.spec.stack.width, generator=torch.Generator().manual_seed(seed)) * 1e3
    top = f"layers.{len(model.spec.stack.blocks) - 1}.resid_out"
    states: list[torch.Tensor] = []
    for edits in ([], [add(top, push, pos=len(ids) - 1)]):
        with model.trace(save=["embed"], edit=edits) as t:
            model.generate(ids, max_new_tokens=2)
        states.append(t["embed"][0])
    before = float((states[0] - states[1])[: len(ids)].abs().max())
    return float((states[0] - states[1])[len(ids)].abs().max()) if before == 0 else 0.0


def judge(runs: Runs) -> Verdict:
    says = Message("down or sideways {down:g}; up at least {up:.2g}; with the top layer pushed, the next column's "
                   "layer 0 moved by {through_token:.2g}, by way of the written token alone", down=runs.max("down"),
                   up=runs.min("up"), through_token=runs.min("through_token"))
    shown = runs.max("down") == 0 and runs.min("up") > 0 and runs.min("through_token") > 0
    return runs.verdict("shown" if shown else "refuted", "down", says)


def plot(runs: Runs) -> Plot:
    grid, size = runs.curve("grid"), LAYERS + 1
    rows = {f"L{i}": grid[i * size : (i + 1) * size] for i in range(size)}
    return Plot("grid", Message("which layer (row) depends on which (column); itself not drawn"),
                list(rows), rows, Message("layer depended on"), Message("layer"))


LAB = Lab(
    "exact",
    Message("Within one pass nothing that a high layer found comes down; the only way down is the token that is "
            "written."),
    Message("Books on why thinking aloud works."),
    Message("The Jacobian of each (layer, token) state to each; then demo-lm's top layer is pushed and the next "
            "column's bottom is watched."),
    Message("Down and sideways: exactly 0; up: not 0."),
    Message("Down 0, up not 0, through the token not 0. Up and right it still moves: layer 31 can use what layer 30 "
            "found."),
    {"down": Message("largest, down or sideways"), "up": Message("least, upwards"),
     "through_token": Message("through the token: change of the next layer 0")},
    run, judge, plot,
)
