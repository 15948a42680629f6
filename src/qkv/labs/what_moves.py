"""What changes when a model reads, when it learns, and what never does? Every parameter before and after each step."""


from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, guesses
from qkv.messages import Message

VOCABULARY = 32


def find_changed(model: qkv.Model, do: Callable[[], object]) -> set[str]:
    """The parameters that are other ones afterwards."""
    before = {n: p.detach().clone() for n, p in model.core.named_parameters()}
    do()
    return {n for n, p in model.core.named_parameters() if not torch.equal(p, before[n])}


def compute_loss(model: qkv.Model, ids: Tensor) -> Tensor:
    logits = guesses(model, ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def rows(seed: int, ids: Tensor, head: str, decay: float) -> int:
    """How many rows of the embedding move in one step."""
    model = Tiny(head="tied" if head == "tied" else "untied").model(seed)
    before = model.core.embed.weight.detach().clone()
    optimiser = torch.optim.AdamW(model.core.parameters(), lr=1e-2, weight_decay=decay)
    compute_loss(model, ids).backward()
    optimiser.step()
    return int((model.core.embed.weight != before).any(1).sum())


def slope_gap(model: qkv.Model, ids: Tensor) -> float:
    """The gradient of one number of W_Q against a finite difference of the loss."""
    weight, small = model.core.get_parameter("decoder.layers.0.attn.q.weight"), 1e-6
    exact = float(torch.autograd.grad(compute_loss(model, ids), weight)[0][0, 0])
    ends = []
    with torch.no_grad():
        for shift in (small, -2 * small):
            weight[0, 0] += shift
            ends.append(float(compute_loss(model, ids)))
        weight[0, 0] += small
    return abs((ends[0] - ends[1]) / (2 * small) - exact) / max(abs(exact), 1e-12)


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    model, ids = Tiny().model(seed), draw(seed, 1, 9, below=VOCABULARY)
    parts = dict(model.core.named_parameters())
    optimiser = torch.optim.SGD(parts.values(), lr=0.1)
    with model.trace(save=["layers.0.attn.q"]) as t:
        forward = find_changed(model, lambda: (model(ids), model(draw(seed + 1, 1, 9))))
    q = t.get("layers.0.attn.q", run=0) - t.get("layers.0.attn.q", run=1)
    count = sum(p.numel() for p in parts.values())
    gap = slope_gap(model, ids)
    backward = find_changed(model, lambda: compute_loss(model, ids).backward())
    step = find_changed(model, optimiser.step)
    return {
        "forward": float(len(forward)), "backward": float(len(backward)), "step": float(len(step)),
        "tensors": float(len(parts)), "q_by_input": float(q.abs().max()), "slope": gap,
        "grown": float(sum(p.numel() for p in model.core.parameters()) - count),
        "words": float(len(set(ids[0, :-1].tolist()))),
        "rows": float(rows(seed, ids, "untied", 0.0)), "rows_tied": float(rows(seed, ids, "tied", 0.0)),
        "rows_decay": float(rows(seed, ids, "untied", 0.1)),
    }


def judge(runs: Runs) -> Verdict:
    says = Message("the forward pass changed {forward:.0f} tensors, the backward pass {backward:.0f}, the step "
                   "{step:.0f} of {tensors:.0f}; of the embedding the {rows:.1f} rows that were read, or all "
                   "{vocabulary} with a tied head or with decay", forward=runs.max("forward"),
                   backward=runs.max("backward"), step=runs.mean("step"), tensors=runs.mean("tensors"),
                   rows=runs.mean("rows"), vocabulary=VOCABULARY)
    still = runs.max("forward") == 0 and runs.max("backward") == 0 and runs.max("grown") == 0
    real = runs.min("step") == runs.mean("tensors") and runs.max("slope") < 1e-3 and runs.min("q_by_input") > 0
    return runs.verdict("refuted" if still and real else "shown" if not still else "inconclusive", "forward", says)


def plot(runs: Runs) -> Plot:
    names = ("forward", "backward", "step")
    return Plot("bars", Message("parameter tensors that changed"), names,
                {"tensors": [runs.mean(n) for n in names]}, y_label=Message("tensors"))


LAB = Lab(
    "exact",
    Message("The forward pass, (QKᵀ)V, updates the word embeddings; Q, K and V are trained matrices."),
    Message("Beginners' courses; “loop tens of thousands of times and get a file of hundreds of billions of "
            "parameters”."),
    Message("Every parameter before and after forward, backward and a step; which rows of the embedding moved; "
            "whether Q differs by input at the same weights; gradients against finite differences."),
    Message("No change is bit for bit: 0 tensors."),
    Message("Forward 0, backward 0, the step all; the count stays; Q is no parameter, it differs by input."),
    {"forward": Message("changed by forward"), "backward": Message("changed by backward"),
     "step": Message("changed by a step"), "tensors": Message("all tensors"),
     "grown": Message("parameters added"), "q_by_input": Message("Q, from one input to another"),
     "slope": Message("gradient against finite difference"), "words": Message("words read"),
     "rows": Message("embedding rows moved"), "rows_tied": Message("the same, tied head"),
     "rows_decay": Message("the same, weight decay")},
    run, judge, plot,
)
