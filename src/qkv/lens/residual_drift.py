"""How the residual stream of a word moves towards other words, layer by layer.

Letters: D width, L layers, N anchors.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.messages import Message
from qkv.plots.forms import Drawn, Form, Lines


@dataclass(frozen=True)
class Drift(Drawn):
    """A word's way: `cosine` [L+1, N] to each anchor after each layer, row 0 before the first one.

    With two anchors `between` [L+1] says where on the line from the first (0) to the second (1) the word's state lies.
    """

    word: str
    anchors: tuple[str, ...]
    names: tuple[str, ...]
    cosine: Tensor
    between: Tensor | None

    def forms(self) -> tuple[Form, ...]:
        """A line for each anchor, and with two of them the place between."""
        names = [n.removesuffix(".resid_out") for n in self.names]
        series = {f"cos {a}": self.cosine[:, i].tolist() for i, a in enumerate(self.anchors)}
        if self.between is not None:
            series[f"{self.anchors[0]} 0 … 1 {self.anchors[1]}"] = self.between.tolist()
        ends = list(zip(self.anchors, self.cosine[0].tolist(), self.cosine[-1].tolist(), strict=True))
        note = Message("from the embedding to the last layer: {moves}; in the end nearest to {anchor} (cosine 1: the "
                       "direction that the anchor has when it is read alone)",
                       anchor=max(ends, key=lambda end: end[2])[0],
                       moves=", ".join(f"{a} {x:+.2f} → {y:+.2f}" for a, x, y in ends))
        return (Lines(Message("where {word} moves, layer by layer", word=self.word), names, series, note),)


def measure_drift(
    t: Recording, pos: int | str, anchors: list[str], *, row: int = 0, run: int | None = None, side: str = ""
) -> Drift:
    """How the state of a word moves towards anchors, layer by layer; `side="encoder."` looks at the source.

    Each anchor is read by the same stack as a text of its own, and compared layer by layer: states of different layers
    have no common axes. The state of a word is that of its last piece.
    """
    if not anchors:
        raise QkvError("shift: name at least one anchor, such as a word that the meaning might move to")
    prefix = side if side and t.core.spec.decoder and t.core.spec.encoder else resolve.prefix_of(t)
    slot = resolve.find_position(t, pos, path=prefix, row=row, run=run)
    names, states = resolve.read_states(t, "shift", slot, prefix=prefix, row=row, run=run)
    states = states.float()  # L D
    goals = torch.stack([read_word_alone(t, word, names) for word in anchors], 1)  # L N D
    cosine = F.cosine_similarity(states[:, None], goals, dim=-1)
    between = None
    if len(anchors) == 2:
        way = goals[:, 1] - goals[:, 0]  # L D
        between = ((states - goals[:, 0]) * way).sum(-1) / way.square().sum(-1).clamp_min(1e-30)
    token = int(resolve.find_run(t, prefix, run).ids[row, slot])
    word = pos if isinstance(pos, str) else resolve.show_tokens(t, [token])[0]
    return Drift(word, tuple(anchors), names, cosine, between)


@torch.no_grad()
def read_word_alone(t: Recording, word: str, names: tuple[str, ...]) -> Tensor:
    """The states [L+1, D] of a word's last piece where the word is the whole text."""
    core, encoder = t.core, resolve.side_of(t, names[0]) == "encoder"
    ids = resolve.encode_word(resolve.require_tokenizer(t), word, "source" if encoder else "target")
    if resolve.stack_of(t, names[0]).spec.blocks[0].cross:
        raise QkvError("shift: a decoder that reads a source cannot read a word alone; look at side='encoder.'")
    with Recording(core, save=list(names)) as alone:
        (core.encode if encoder else core.hidden)(torch.tensor([ids], device=core.embed.weight.device), mode="prefill")
    return torch.stack([alone[name][0, -1].float() for name in names])
