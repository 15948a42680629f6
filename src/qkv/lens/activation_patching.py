"""What a state of one run does in another run: activation patching (Vig et al. 2020; Meng et al. 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qkv.core.model import Transformer
from qkv.lens.edge_ablation import Case, score_targets
from qkv.lens.edit import Edit, put
from qkv.lens.recording import Recording


@dataclass(frozen=True)
class Patched:
    """What a state of one run did in another: the log-probability of the target before, after, and in the donor."""

    before: float
    after: float
    donor: float
    instead: int

    @property
    def share(self) -> float:
        """How much of the way from this run to the donor's the state alone brought: 0 nothing, 1 all of it."""
        return (self.after - self.before) / (self.donor - self.before) if self.donor != self.before else 0.0


@torch.no_grad()
def patch_activation(core: Transformer, donor: Case, case: Case, *, name: str, source: int, pos: int) -> Patched:
    """Run `case` with the donor's state of a tap (such as "layers.8.resid_out") at `source` put at `pos`.

    Activation patching (Vig et al. 2020; Meng et al. 2022). The donor's number is how likely the donor itself finds
    the case's target token at its own `at`. For an encoder alone a case's `source` is what it reads, [MASK] and all.
    """
    asked = Case(donor.source, (*donor.target[: donor.at], case.target[case.at]), donor.at)
    with Recording(core, save=[name]) as t:
        there, _ = score_answer(core, asked)
    state = t[name][..., source : source + 1, :]
    after, instead = score_answer(core, case, [put(name, state, pos=pos)])
    return Patched(score_answer(core, case)[0], after, there, instead)


def score_answer(core: Transformer, case: Case, edits: Sequence[Edit] = ()) -> tuple[float, int]:
    """log P(target[at]) and the likeliest token there; for an encoder alone, of the token at that place of `source`."""
    if core.spec.decoder:
        found = score_targets(core, [case], edits)
        return float(found.logprobs[0, case.at]), int(found.best[0, case.at])
    ids = torch.tensor([case.source], device=core.embed.weight.device)
    with Recording(core, edit=edits):
        logits = core(ids, mode="prefill").logits[0, case.at].float()  # V
    return float(logits.log_softmax(-1)[case.target[case.at]]), int(logits.argmax())
