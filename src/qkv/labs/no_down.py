"""Can what a high layer found come down again within one pass? Jacobians upwards, sideways and down; then the one way."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw, exact, influence
from qkv.lens.edit import add

TOKENS, LAYERS = 6, 4
PROMPT = "One, Two,"


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
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
    model = exact("demo-lm")
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
    says = (f"向下或同层：{runs.high('down'):g}；向上：至少 {runs.low('up'):.2g}；推动顶层，下一列的第 0 层变了 "
            f"{runs.low('through_token'):.2g}，只因写出的词变了",
            f"down or sideways {runs.high('down'):g}; up at least {runs.low('up'):.2g}; with the top layer pushed, the "
            f"next column's layer 0 moved by {runs.low('through_token'):.2g}, by way of the written token alone")  # fmt: skip
    shown = runs.high("down") == 0 and runs.low("up") > 0 and runs.low("through_token") > 0
    return runs.verdict("shown" if shown else "refuted", "down", says)


def plot(runs: Runs) -> Plot:
    grid, size = runs.curve("grid"), LAYERS + 1
    rows = {f"L{i}": grid[i * size : (i + 1) * size] for i in range(size)}
    return Plot("grid", ("哪一层（行）依赖哪一层（列）；自身不画", "which layer (row) depends on which (column); itself not drawn"),
                list(rows), rows, ("被依赖的层", "layer depended on"), ("层", "layer"))  # fmt: skip


LAB = Lab(
    "exact",
    ("一次前向中，高层的发现下不来；唯一的下行通道是写出来的词。",
     "Within one pass nothing that a high layer found comes down; the only way down is the token that is written."),
    ("讲思维链为何有效的书。", "Books on why thinking aloud works."),
    ("每个（层，词）状态对每个（层，词）状态的 Jacobian；再推动 demo-lm 顶层，看下一列的底层。",
     "The Jacobian of each (layer, token) state to each; then demo-lm's top layer is pushed and the next column's bottom "
     "is watched."),
    ("向下与同层：正好 0；向上：不为 0。", "Down and sideways: exactly 0; up: not 0."),
    ("向下 0，向上不为 0，经过写出的词不为 0。它仍能向上、向右传：31 层能用 30 层的结果。",
     "Down 0, up not 0, through the token not 0. Up and right it still moves: layer 31 can use what layer 30 found."),
    {"down": ("向下或同层的最大值", "largest, down or sideways"), "up": ("向上的最小值", "least, upwards"),
     "through_token": ("经写出的词，下一列第 0 层的变化", "through the token: change of the next layer 0")},
    run, judge, plot,
)  # fmt: skip
