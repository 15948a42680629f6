"""What changes when a model reads, when it learns, and what never does? Every parameter before and after each step."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw, guesses

VOCABULARY = 32


def moved(model: qkv.Model, do: Callable[[], object]) -> set[str]:
    """The parameters that are other ones afterwards."""
    before = {n: p.detach().clone() for n, p in model.core.named_parameters()}
    do()
    return {n for n, p in model.core.named_parameters() if not torch.equal(p, before[n])}


def loss(model: qkv.Model, ids: Tensor) -> Tensor:
    logits = guesses(model, ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def rows(seed: int, ids: Tensor, head: str, decay: float) -> int:
    """How many rows of the embedding move in one step."""
    model = Tiny(head="tied" if head == "tied" else "untied").model(seed)
    before = model.core.embed.weight.detach().clone()
    optimiser = torch.optim.AdamW(model.core.parameters(), lr=1e-2, weight_decay=decay)
    loss(model, ids).backward()
    optimiser.step()
    return int((model.core.embed.weight != before).any(1).sum())


def slope_gap(model: qkv.Model, ids: Tensor) -> float:
    """The gradient of one number of W_Q against a finite difference of the loss."""
    weight, small = model.core.get_parameter("decoder.layers.0.attn.q.weight"), 1e-6
    exact = float(torch.autograd.grad(loss(model, ids), weight)[0][0, 0])
    ends = []
    with torch.no_grad():
        for shift in (small, -2 * small):
            weight[0, 0] += shift
            ends.append(float(loss(model, ids)))
        weight[0, 0] += small
    return abs((ends[0] - ends[1]) / (2 * small) - exact) / max(abs(exact), 1e-12)


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    model, ids = Tiny().model(seed), draw(seed, 1, 9, below=VOCABULARY)
    parts = dict(model.core.named_parameters())
    optimiser = torch.optim.SGD(parts.values(), lr=0.1)
    with model.trace(save=["layers.0.attn.q"]) as t:
        forward = moved(model, lambda: (model(ids), model(draw(seed + 1, 1, 9))))
    q = t.get("layers.0.attn.q", run=0) - t.get("layers.0.attn.q", run=1)
    count = sum(p.numel() for p in parts.values())
    gap = slope_gap(model, ids)
    backward = moved(model, lambda: loss(model, ids).backward())
    step = moved(model, optimiser.step)
    return {
        "forward": float(len(forward)), "backward": float(len(backward)), "step": float(len(step)),
        "tensors": float(len(parts)), "q_by_input": float(q.abs().max()), "slope": gap,
        "grown": float(sum(p.numel() for p in model.core.parameters()) - count),
        "words": float(len(set(ids[0, :-1].tolist()))),
        "rows": float(rows(seed, ids, "untied", 0.0)), "rows_tied": float(rows(seed, ids, "tied", 0.0)),
        "rows_decay": float(rows(seed, ids, "untied", 0.1)),
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    says = (f"前向改变 {runs.high('forward'):.0f} 个、反向 {runs.high('backward'):.0f} 个、优化一步 {runs.mean('step'):.0f} 个张量"
            f"（共 {runs.mean('tensors'):.0f}）；嵌入表只动了读到的 {runs.mean('rows'):.1f} 行，权重共享或衰减时全部 {VOCABULARY} 行",
            f"the forward pass changed {runs.high('forward'):.0f} tensors, the backward pass {runs.high('backward'):.0f}, "
            f"the step {runs.mean('step'):.0f} of {runs.mean('tensors'):.0f}; of the embedding the {runs.mean('rows'):.1f} "
            f"rows that were read, or all {VOCABULARY} with a tied head or with decay")  # fmt: skip
    still = runs.high("forward") == 0 and runs.high("backward") == 0 and runs.high("grown") == 0
    real = runs.low("step") == runs.mean("tensors") and runs.high("slope") < 1e-3 and runs.low("q_by_input") > 0
    return runs.verdict("refuted" if still and real else "shown" if not still else "inconclusive", "forward", says)


def plot(runs: Runs) -> Plot:
    names = ("forward", "backward", "step")
    return Plot("bars", ("改变了的参数张量", "parameter tensors that changed"), names,
                {"tensors": [runs.mean(n) for n in names]}, y_label=("张量", "tensors"))  # fmt: skip


LAB = Lab(
    "exact",
    ("前向计算 (QKᵀ)V 会更新词嵌入；Q、K、V 是训练出来的矩阵。",
     "The forward pass, (QKᵀ)V, updates the word embeddings; Q, K and V are trained matrices."),
    ("入门课程；“循环几万次，就得到几千亿参数的文件”。",
     "Beginners' courses; “loop tens of thousands of times and get a file of hundreds of billions of parameters”."),
    ("前向、反向、优化一步前后的每个参数；嵌入表动了几行；同一组权重下 Q 是否随输入变；梯度与有限差分。",
     "Every parameter before and after forward, backward and a step; which rows of the embedding moved; whether Q differs "
     "by input at the same weights; gradients against finite differences."),
    ("不变就是逐位相等：0 个张量。", "No change is bit for bit: 0 tensors."),
    ("前向 0，反向 0，一步全部；参数个数不变；Q 不在参数里，它随输入变。",
     "Forward 0, backward 0, the step all; the count stays; Q is no parameter, it differs by input."),
    {"forward": ("前向改变的张量", "changed by forward"), "backward": ("反向改变的张量", "changed by backward"),
     "step": ("一步改变的张量", "changed by a step"), "tensors": ("全部张量", "all tensors"),
     "grown": ("新增的参数", "parameters added"), "q_by_input": ("输入不同，Q 之差", "Q, from one input to another"),
     "slope": ("梯度与有限差分的相对差", "gradient against finite difference"), "words": ("读到的不同词", "words read"),
     "rows": ("动了的嵌入行", "embedding rows moved"), "rows_tied": ("同上，权重共享", "the same, tied head"),
     "rows_decay": ("同上，权重衰减", "the same, weight decay")},
    run, judge, plot,
)  # fmt: skip
