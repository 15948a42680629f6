"""What the readouts must agree with, measured on the run itself: `t.check()`.

lens: the last layer's guess is the model's logits. parts: the pushes sum to the logit. moe: the experts and the shared
one sum to what their layer wrote. Letters: B rows, T queries, S keys, H heads, K head dim.
"""

import torch
from torch import Tensor

from qkv.core.masks import AttentionBias
from qkv.errors import QkvError
from qkv.lens import attribution, resolve
from qkv.lens.attribution import Ledger, Spot, to_float64
from qkv.lens.recording import Recording
from qkv.lens.routing import expert_modules


def check_trace(t: Recording) -> dict[str, float]:
    """The largest |pattern @ v - z| of each attention: how far the rebuilt maps are from what really ran.

    Queries that see nothing (padding) are left out. Where the readouts `lens` and `parts` were saved they are held
    to the model as well. Raises QkvError where v and z were not saved.
    """
    paths = [path for path in t.attentions if f"{path}.pattern" in t.wanted]
    if not paths:
        raise QkvError('check: no pattern was saved; add them: save=["check"]')
    return {**{path: check_pattern(t, path) for path in paths}, **check_readouts(t)}


def check_pattern(t: Recording, path: str) -> float:
    """How far the patterns of an attention, times its values, are from what it gathered."""
    resolve.require_saved(t, "check", f"{path}.v", f"{path}.z")
    p, v, z = t[f"{path}.pattern"].float(), t[f"{path}.v"].float(), t[f"{path}.z"].float()
    v = v.repeat_interleave(p.shape[0] // v.shape[0], 0).repeat_interleave(p.shape[1] // v.shape[1], 1)  # B H S K
    gap = (p @ v - z).abs().amax((1, 3))  # B T
    calls, rule = t.run(f"{path}.pattern").calls, t.attentions[path].spec.mask
    return float(gap[torch.cat([sees_any_key(c.mask[rule], c.ids) for c in calls], 1)].max())


def sees_any_key(seen: AttentionBias, ids: Tensor) -> Tensor:
    """Which queries [B, T] see any key."""
    if seen.bias is None:
        return torch.ones_like(ids, dtype=torch.bool)
    some = (seen.bias > torch.finfo(torch.float32).min / 2).any(-1)[:, 0]  # B T
    return some.repeat_interleave(len(ids) // len(some), 0).expand(ids.shape)


def check_readouts(t: Recording) -> dict[str, float]:
    """The gap of each readout whose taps were saved and whose stack ran once: the largest absolute difference."""
    found: dict[str, float] = {}
    if t.core.spec.head is None or len([r for r in t.runs if r.stack == resolve.side_of(t)]) != 1:
        return found
    dot, last = resolve.prefix_of(t), len(t.core.spec.stack.blocks) - 1
    if {f"{dot}layers.{last}.resid_out", "logits"} <= t.needed:
        found["lens"] = check_lens(t, f"{dot}layers.{last}.resid_out")
    if {f"{dot}final_norm", f"{dot}layers.{last}.attn.z"} <= t.needed:
        found["parts"] = attribution.attribute_logit(t).gap
        found.update({path: check_experts(t, path) for path in expert_modules(t)})
    return found


@torch.no_grad()
def check_lens(t: Recording, name: str) -> float:
    """How far the last row of the lens is from the logits."""
    logits = t["logits"].float()  # the last positions of the text
    guessed = t.core.head(t.core.stack.final_norm(t[name]))[:, -logits.shape[1] :]
    return float((guessed.float() - logits).abs().max())


def check_experts(t: Recording, path: str) -> float:
    """How far each chosen expert's weighted words and the shared one's, of the last token, are from the output."""
    out = t[f"{path}.out"][0]
    spot = Spot(t, resolve.find_run(t), 0, len(out) - 1)
    total = attribution.add_experts(Ledger(), expert_modules(t)[path], spot).detach()
    return float((total - to_float64(out[-1])).abs().max())
