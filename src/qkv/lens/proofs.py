"""What the other readouts must agree with, measured on the run itself; `t.check()` adds these to its own.

lens: the last layer's guess is the model's logits. parts: the pushes sum to the logit. moe: the experts and the shared
one sum to what their layer wrote.
"""

from typing import TYPE_CHECKING

import torch

from qkv.lens import where

if TYPE_CHECKING:
    from qkv.lens.trace import Trace


def of(t: "Trace") -> dict[str, float]:
    """The gap of each readout whose taps were saved and whose stack ran once: the largest absolute difference."""
    found: dict[str, float] = {}
    if t.core.spec.head is None or len([r for r in t.runs if r.stack == where.side(t)]) != 1:
        return found
    dot, last = where.dot(t), len(t.core.spec.stack.blocks) - 1
    if {f"{dot}layers.{last}.resid_out", "logits"} <= t.needed:
        found["lens"] = lens(t, f"{dot}layers.{last}.resid_out")
    if {f"{dot}final_norm", f"{dot}layers.{last}.attn.z"} <= t.needed:
        found["parts"] = t.parts().gap
        found.update({f"{dot}layers.{i}.moe": moe(t, f"{dot}layers.{i}.moe") for i in mixtures(t)})
    return found


@torch.no_grad()
def lens(t: "Trace", name: str) -> float:
    """How far the last row of the lens is from the logits."""
    stack = t.core.decoder if t.core.spec.decoder else t.core.encoder
    said = t["logits"].float()  # the last positions of the text
    return float((t.core.head(stack.final_norm(t[name]))[:, -said.shape[1] :].float() - said).abs().max())


def mixtures(t: "Trace") -> list[int]:
    """The layers with experts."""
    return [i for i, b in enumerate(t.core.spec.stack.blocks) if b.moe]


@torch.no_grad()
def moe(t: "Trace", path: str) -> float:
    """How far each chosen expert's weighted words and the shared one's, one token at a time, are from the output."""
    from qkv.lens.parts import Book, Spot, expert, wide
    from qkv.lens.routes import modules

    module = modules(t)[path]
    run, out = where.passed(t), t[f"{path}.out"]
    pos = out.shape[1] - 1
    with torch.enable_grad():
        total = expert(Book(), module, Spot(t, run, 0, pos)).detach()
    return float((total - wide(out[0, pos])).abs().max())
