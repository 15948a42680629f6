"""Must states be worked out in a triangle, each waiting for its left neighbour? Fill the grid both ways and compare."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch
from torch import Tensor

import qkv
from qkv.core.cache import Cache
from qkv.core.model import build_step
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw, influence

TOKENS, LAYERS = 16, 12


class Row(Cache):
    """The keys and values of one layer, one token after another."""

    def __init__(self) -> None:
        self.length, self.pair = 0, tuple[Tensor, ...]()

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.pair = tuple(torch.cat(p, 2) for p in zip(self.pair, (k, v), strict=True)) if self.pair else (k, v)
        self.length += k.shape[2]
        return self.pair[0], self.pair[1]


def triangle(model: qkv.Model, ids: Tensor, bottom: Tensor) -> tuple[Tensor, list[int]]:
    """The top states [1, T, D] cell by cell in the order of a triangle, and how many cells each time step worked out."""
    stack, rows = model.core.decoder, [Row() for _ in range(LAYERS)]
    states, busy = {(t, -1): bottom[:, t : t + 1] for t in range(TOKENS)}, list[int]()
    for time in range(TOKENS + LAYERS - 1):
        cells = [(time - layer, layer) for layer in range(LAYERS) if 0 <= time - layer < TOKENS]
        for t, layer in cells:
            step = build_step(stack, ids[:, t : t + 1], cache=rows[layer], mode="decode")
            states[t, layer] = stack.layers[layer](states[t, layer - 1], step)
        busy.append(len(cells))
    return torch.cat([states[t, LAYERS - 1] for t in range(TOKENS)], 1), busy


@torch.no_grad()
def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    model, ids = Tiny(layers=LAYERS).model(seed), draw(seed, 1, TOKENS)
    with model.trace(save=["layers.*.resid_in", "layers.*.resid_out"]) as t:
        model(ids)
    top, busy = triangle(model, ids, t["layers.0.resid_in"])
    with torch.enable_grad():
        small = influence(Tiny(layers=3).model(seed), ids[:, :5], seed)
    beside = torch.stack([small[n, :, n] for n in range(1, 4)]).masked_fill(torch.eye(5, dtype=torch.bool), 0.0)
    return {
        "gap": float((top - t[f"layers.{LAYERS - 1}.resid_out"]).abs().max()),
        "triangle_steps": float(len(busy)), "row_steps": float(LAYERS),
        "neighbour": float(beside.max()),
        "busy": [float(n) for n in busy],
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    rows, wave = runs.mean("row_steps"), runs.mean("triangle_steps")
    says = (f"整行计算 {rows:.0f} 步，三角形 {wave:.0f} 步，状态相同（差 {runs.high('gap'):.1g}）；"
            f"对同层左邻的依赖：{runs.high('neighbour'):g}",
            f"{rows:.0f} steps by rows, {wave:.0f} by the triangle, the same states ({runs.high('gap'):.1g} apart); a "
            f"state depends on its left neighbour of the same layer by {runs.high('neighbour'):g}")  # fmt: skip
    needless = runs.high("gap") < 1e-9 and runs.high("neighbour") == 0
    return runs.verdict("refuted" if needless else "shown", "neighbour", says)


def plot(runs: Runs) -> Plot:
    wave = runs.curve("busy")
    rows = [float(TOKENS)] * LAYERS + [0.0] * (len(wave) - LAYERS)
    return Plot("lines", ("每一步同时算出多少个格子", "cells worked out at the same time, by step"),
                [float(i + 1) for i in range(len(wave))], {"triangle": wave, "rows": rows},
                ("步", "step"), ("格子", "cells"))  # fmt: skip


LAB = Lab(
    "exact",
    ("状态必须按三角形逐格算出：一个词的某层要等左边词的同一层。",
     "States have to be worked out in a triangle: a word's layer waits for the same layer of the word before it."),
    ("讲提示词工程的书里的插图。", "A figure in a book on prompts."),
    ("16 个词、12 层：按三角形逐格算与整行算，比较状态与步数；同层左邻的 Jacobian。",
     "16 words, 12 layers: cell by cell in a triangle and row by row; states and steps compared; the Jacobian to the left "
     "neighbour of the same layer."),
    ("相同则差约 1e-15（fp64）；依赖不存在则正好 0。", "The same means about 1e-15 (fp64); no dependence means exactly 0."),
    ("状态相同；27 步对 12 步；对同层左邻的依赖为 0：需要的是下一层的左边和自己。三角形是多层 RNN 的顺序。",
     "The same states; 27 steps against 12; dependence 0: what is needed is the layer below, left and own. The triangle is "
     "the order of a stacked RNN."),
    {"gap": ("两种算法的状态之差", "difference of the states"), "triangle_steps": ("三角形的步数", "steps, triangle"),
     "row_steps": ("整行的步数", "steps, rows"), "neighbour": ("对同层左邻的依赖", "dependence on the left neighbour")},
    run, judge, plot,
)  # fmt: skip
