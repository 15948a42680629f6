"""Two runs side by side: how far apart two prompts are, layer by layer, at the tokens that both have.

Letters: T positions, L layers, V vocabulary, D width.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.messages import Message
from qkv.plots.forms import Bars, Drawn, Form, Grid


@dataclass(frozen=True)
class Diff(Drawn):
    """Two texts: `pairs` of positions that hold the same token, and how far apart the runs are there.

    `distance` [L+1, N]: |a - b| / |b| of the states after each layer, row 0 before the first. `divergence` [N]: the
    Kullback-Leibler divergence of a's next-token distribution from b's, in nats; NaN where no logits were made.
    `read` [N] are the shared tokens.
    """

    pairs: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    distance: Tensor
    divergence: Tensor | None
    read: tuple[str, ...] = ()

    def forms(self) -> tuple[Form, ...]:
        """How far apart the states are, layer by layer, and how far the next words."""
        names = [n.removesuffix(".resid_out") for n in self.names]
        cells = [[f"{x:.2f}" for x in row] for row in self.distance.tolist()]
        title = Message("how far apart the tokens are that both texts have")
        far = Grid(title, names[::-1], self.read, self.distance.flip(0).clamp(max=1.0), cells[::-1])
        if self.divergence is None or not (there := ~self.divergence.isnan()).any():
            return (far,)
        title = Message("how far apart the next words are (KL, nats)")
        words = [self.read[i] for i in there.nonzero().flatten().tolist()]
        return far, Bars(title, words, self.divergence[there].clamp(0).tolist())


def find_differences(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[slice, slice]]:
    """Where two sequences differ: the stretch of each that stands in place of the other's; one of them may be empty."""
    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(slice(i, to), slice(j, end)) for code, i, to, j, end in codes if code != "equal"]


def compare_runs(a: Recording, b: Recording, *, row: int = 0, run: int | None = None) -> Diff:
    """Where two runs of one model differ, over the tokens that both texts have, in their order."""
    if a.core is not b.core and a.core.spec != b.core.spec:
        raise QkvError("diff: the two runs are of different models; compare two texts in one model")
    one, two = (resolve.find_run(t, run=run).ids[row].tolist() for t in (a, b))
    blocks = SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()
    pairs = tuple((m.a + i, m.b + i) for m in blocks for i in range(m.size))
    if not pairs:
        raise QkvError("diff: the two texts have no token in common")
    left, right = ([p[side] for p in pairs] for side in (0, 1))
    (names, x), (_, y) = (resolve.read_states(t, "diff", at, row=row, run=run) for t, at in ((a, left), (b, right)))
    x, y = x.float(), y.float()  # L N D
    distance = (x - y).norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-30)
    read = resolve.tokens_read(a, row=row, run=run)
    return Diff(pairs, names, distance, measure_divergence(a, b, (left, right), row, run), tuple(read[i] for i in left))


def measure_divergence(
    a: Recording, b: Recording, places: tuple[list[int], list[int]], row: int, run: int | None
) -> Tensor | None:
    """The divergence of the next words at paired positions; None without a head."""
    rows: list[Tensor] = []
    for t, at in zip((a, b), places, strict=True):
        if t.core.spec.head is None or "logits" not in t.needed:
            return None
        logits = t.get("logits", run=run)[row].float().log_softmax(-1)  # the last positions of the text
        missing = len(resolve.find_run(t, run=run).ids[row]) - len(logits)
        blank = logits.new_full((missing, logits.shape[-1]), torch.nan)
        rows.append(torch.cat((blank, logits))[at])  # N V
    return F.kl_div(rows[1], rows[0], reduction="none", log_target=True).sum(-1)
