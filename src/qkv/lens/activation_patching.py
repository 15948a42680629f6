"""What a state of one run does in another run: activation patching (Vig et al. 2020; Meng et al. 2022)."""

from dataclasses import dataclass, replace

from qkv.core.model import Transformer
from qkv.lens.edge_ablation import Case, score_answers
from qkv.lens.edit import put
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


def patch_activation(core: Transformer, donor: Case, case: Case, *, name: str, source: int, pos: int) -> Patched:
    """Run `case` with the donor's state of a tap (such as "layers.8.resid_out") at `source` put at `pos`.

    Activation patching (Vig et al. 2020; Meng et al. 2022). The donor's number is how likely the donor itself finds
    the case's target token at its own `at`. For an encoder alone a case's `source` is what it reads, [MASK] and all.
    """
    asked = replace(donor, target=(*donor.target[: donor.at], case.target[case.at]))
    with Recording(core, save=[name]) as t:
        there, _ = score_answers(core, [asked])
    state = t[name][..., source : source + 1, :]
    before, (after, instead) = score_answers(core, [case])[0], score_answers(core, [case], [put(name, state, pos=pos)])
    return Patched(float(before), float(after), float(there), int(instead))
