"""Why each cell of an attention is masked, from the masks of the run. The rules are in core/masks.py.

Letters: B rows, T queries, S keys, H heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.masks import REASONS
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.lens.taps import open_bias
from qkv.messages import Message, join
from qkv.plots.forms import Drawn, Form, Grid

SIGNS = {"seen": ("■", Message("seen")), "future": ("·", Message("future")), "padding": ("p", Message("padding")),
         "window": ("w", Message("window")), "other document": ("d", Message("other document"))}
LOW = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class MaskReasons(Drawn):
    """One row's grid of an attention: `cells` uint8 [T, S], indices into core.masks.REASONS (0: seen).

    `queries` and `keys` are the tokens of the grid.
    """

    path: str
    kind: str
    cells: Tensor
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def forms(self) -> tuple[Form, ...]:
        """Blue where a query may look, else a letter with its reason."""
        cells = [[SIGNS[r][0] for r in self.row_reasons(i)] for i in range(len(self.cells))]
        there = [SIGNS[REASONS[i]] for i in self.cells.unique().tolist()]
        note = join("  ", [join(" ", sign) for sign in there])
        title = Message("{path} ({kind}): rows look at columns", path=self.path, kind=self.kind)
        return (Grid(title, self.queries, self.keys, (self.cells == 0).float() * 0.7, cells, note),)

    def reason(self, query: int, key: int) -> str:
        """Why a query may not look at a key, or "seen"."""
        return REASONS[int(self.cells[query, key])]

    def row_reasons(self, query: int) -> list[str]:
        """The reason of every key of one query."""
        return [REASONS[i] for i in self.cells[query].tolist()]


def explain_mask(t: Recording, path: str | None = None, *, row: int = 0, run: int | None = None) -> MaskReasons:
    """Why each cell of an attention (default: the first one of the stack that writes) is masked."""
    path = path or f"{resolve.prefix_of(t)}layers.0.attn"
    rule = resolve.find_attention(t, path).spec.mask
    cells = added_bias(t, path, run=run)[:, 0] <= LOW / 2  # B T S
    reasons = classify_hidden(cells[row if len(cells) > 1 else 0], rule.kind, rule.window)
    sides = (path, "encoder." if rule.kind == "memory" else path)
    return MaskReasons(path, rule.kind, reasons, *(resolve.tokens_read(t, at, row=row, run=run) for at in sides))


def classify_hidden(hidden: Tensor, kind: str, window: int | None) -> Tensor:
    """The reason of each hidden cell [T, S], the first of REASONS that applies, from the rule and the grid itself.

    A token that may not look at itself is padding; the memory hides nothing but padding.
    """
    ahead = torch.arange(hidden.shape[1]) - torch.arange(hidden.shape[0])[:, None]  # T S
    padding = torch.ones_like(hidden)
    future = torch.zeros_like(hidden)
    if kind != "memory":
        padding = hidden.diagonal()[None].expand_as(hidden)
    if kind in ("causal", "prefix"):
        opened = ((ahead > 0) & ~hidden).any(0).nonzero()  # keys that an earlier query sees: a free prefix
        future = (ahead > 0) & (torch.arange(hidden.shape[1]) > (int(opened.max()) if len(opened) else -1))
    cells = torch.full_like(hidden, REASONS.index("other document"), dtype=torch.uint8)
    if window is not None:
        cells[(ahead.abs() if kind == "full" else -ahead) >= window] = REASONS.index("window")
    cells[padding] = REASONS.index("padding")
    cells[future] = REASONS.index("future")
    return cells.masked_fill(~hidden, 0)


def added_bias(t: Recording, path: str, *, run: int | None = None) -> Tensor:
    """What was added to an attention's scores, fp32 [B or 1, H or 1, T, S]: the mask and learnt distances.

    Hidden cells hold the lowest finite number; keys that a cached call did not have yet are hidden too.
    """
    rule = resolve.find_attention(t, path).spec.mask
    calls = resolve.find_run(t, path, run).calls
    sizes = [c.across if rule.kind == "memory" else c.end for c in calls]
    rows = [open_bias(c.mask[rule], range(c.ids.shape[1]), size).detach().float().cpu()
            for c, size in zip(calls, sizes, strict=True)]
    keys = sizes[0] if rule.kind == "memory" else max(sizes)
    rows = [torch.nn.functional.pad(r, (0, keys - r.shape[-1]), value=LOW) for r in rows]
    return torch.cat([r.expand(*(max(x.shape[i] for x in rows) for i in (0, 1)), -1, -1) for r in rows], 2)
