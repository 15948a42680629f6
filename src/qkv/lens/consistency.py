"""What the other readouts must agree with, measured on the run itself; `t.check()` adds these to its own.

lens: the last layer's guess is the model's logits. parts: the pushes sum to the logit. moe: the experts and the shared
one sum to what their layer wrote.
"""

from typing import TYPE_CHECKING

import torch

from qkv.lens import resolve

if TYPE_CHECKING:
    from qkv.lens.trace import Trace


def check_readouts(t: "Trace") -> dict[str, float]:
    """The gap of each readout whose taps were saved and whose stack ran once: the largest absolute difference."""
    found: dict[str, float] = {}
    if t.core.spec.head is None or len([r for r in t.runs if r.stack == resolve.side_of(t)]) != 1:
        return found
    dot, last = resolve.prefix_of(t), len(t.core.spec.stack.blocks) - 1
    if {f"{dot}layers.{last}.resid_out", "logits"} <= t.needed:
        found["lens"] = check_lens(t, f"{dot}layers.{last}.resid_out")
    if {f"{dot}final_norm", f"{dot}layers.{last}.attn.z"} <= t.needed:
        found["parts"] = t.parts().gap
        found.update({f"{dot}layers.{i}.moe": check_experts(t, f"{dot}layers.{i}.moe") for i in moe_layers(t)})
    return found


@torch.no_grad()
def check_lens(t: "Trace", name: str) -> float:
    """How far the last row of the lens is from the logits."""
    stack = t.core.decoder if t.core.spec.decoder else t.core.encoder
    logits = t["logits"].float()  # the last positions of the text
    return float((t.core.head(stack.final_norm(t[name]))[:, -logits.shape[1] :].float() - logits).abs().max())


def moe_layers(t: "Trace") -> list[int]:
    """The layers with experts."""
    return [i for i, b in enumerate(t.core.spec.stack.blocks) if b.moe]


@torch.no_grad()
def check_experts(t: "Trace", path: str) -> float:
    """How far each chosen expert's weighted words and the shared one's, one token at a time, are from the output."""
    from qkv.lens.attribution import Ledger, Spot, add_experts, to_float64
    from qkv.lens.routing import expert_modules

    module = expert_modules(t)[path]
    run, out = resolve.find_run(t), t[f"{path}.out"]
    pos = out.shape[1] - 1
    with torch.enable_grad():
        total = add_experts(Ledger(), module, Spot(t, run, 0, pos)).detach()
    return float((total - to_float64(out[0, pos])).abs().max())
