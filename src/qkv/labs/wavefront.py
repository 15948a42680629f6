"""Must states be worked out in a triangle, each waiting for its left neighbour? Fill the grid both ways and compare."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch
from torch import Tensor

import qkv
from qkv.core.cache import Cache
from qkv.core.model import build_step
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, influence
from qkv.messages import Message

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
def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
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
    }


def judge(runs: Runs) -> Verdict:
    rows, wave = runs.mean("row_steps"), runs.mean("triangle_steps")
    says = Message("{rows:.0f} steps by rows, {wave:.0f} by the triangle, the same states ({gap:.1g} apart); a state "
                   "depends on its left neighbour of the same layer by {neighbour:g}", rows=rows, wave=wave,
                   gap=runs.max("gap"), neighbour=runs.max("neighbour"))
    needless = runs.max("gap") < 1e-9 and runs.max("neighbour") == 0
    return runs.verdict("refuted" if needless else "shown", "neighbour", says)


def plot(runs: Runs) -> Plot:
    wave = runs.curve("busy")
    rows = [float(TOKENS)] * LAYERS + [0.0] * (len(wave) - LAYERS)
    return Plot("lines", Message("cells worked out at the same time, by step"),
                [float(i + 1) for i in range(len(wave))], {"triangle": wave, "rows": rows},
                Message("step"), Message("cells"))


LAB = Lab(
    "exact",
    Message("States have to be worked out in a triangle: a word's layer waits for the same layer of the word before "
            "it."),
    Message("A figure in a book on prompts."),
    Message("16 words, 12 layers: cell by cell in a triangle and row by row; states and steps compared; the Jacobian "
            "to the left neighbour of the same layer."),
    Message("The same means about 1e-15 (fp64); no dependence means exactly 0."),
    Message("The same states; 27 steps against 12; dependence 0: what is needed is the layer below, left and own. The "
            "triangle is the order of a stacked RNN."),
    {"gap": Message("difference of the states"), "triangle_steps": Message("steps, triangle"),
     "row_steps": Message("steps, rows"), "neighbour": Message("dependence on the left neighbour")},
    run, judge, plot,
)
