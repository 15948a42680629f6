"""Why each cell of an attention is masked, from the masks of the run. The rules are in core/masks.py.

Letters: B rows, T queries, S keys, H heads.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.core.masks import REASONS, AttentionBias
from qkv.errors import QkvError, nearest
from qkv.lens import resolve
from qkv.messages import Message
from qkv.plots.forms import Drawn, Form, Grid

if TYPE_CHECKING:
    from qkv.lens.trace import Call, Trace

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
        letters: dict[str, str] = dict(zip(REASONS, "■·pwd", strict=True))
        cells = [[letters[r] for r in self.row_reasons(i)] for i in range(len(self.cells))]
        there = {REASONS[i] for i in self.cells.unique().tolist()}
        note = "  ".join(f"{letter} {reason}" for reason, letter in letters.items() if reason in there)
        title = Message("{path} ({kind}): rows look at columns", path=self.path, kind=self.kind)
        return (Grid(title, self.queries, self.keys, (self.cells == 0).float() * 0.7, cells, Message(note)),)

    def reason(self, query: int, key: int) -> str:
        """Why a query may not look at a key, or "seen"."""
        return REASONS[int(self.cells[query, key])]

    def row_reasons(self, query: int) -> list[str]:
        """The reason of every key of one query."""
        return [REASONS[i] for i in self.cells[query].tolist()]


def explain_mask(t: "Trace", path: str | None = None, *, row: int = 0, run: int | None = None) -> MaskReasons:
    """Every cell of an attention (default: the first one of the stack that writes) with its reason."""
    path = path or f"{resolve.prefix_of(t)}layers.0.attn"
    kind = mask_rule(t, path).kind
    cells = added_bias(t, path, run=run)[:, 0] <= LOW / 2  # B T S
    hidden = cells[row if len(cells) > 1 else 0]
    keys = resolve.tokens_read(t, "encoder." if kind == "memory" else path, row=row, run=run)
    reasons = classify_hidden(hidden, kind, mask_rule(t, path).window)
    return MaskReasons(path, kind, reasons, resolve.tokens_read(t, path, row=row, run=run), keys)


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
        cells[ahead <= -window] = REASONS.index("window")
    cells[padding] = REASONS.index("padding")
    cells[future] = REASONS.index("future")
    return cells.masked_fill(~hidden, 0)


def added_bias(t: "Trace", path: str, *, run: int | None = None) -> Tensor:
    """What was added to an attention's scores, fp32 [B or 1, H or 1, T, S]: the mask and learnt distances.

    Hidden cells hold the lowest finite number; keys that a cached call did not have yet are hidden too.
    """
    rule_of = mask_rule(t, path)
    calls = calls_of(t, path, run)
    keys = calls[0].across if rule_of.kind == "memory" else max(c.start + c.ids.shape[1] for c in calls)
    memory = rule_of.kind == "memory"
    seen = [c.across if memory else c.start + c.ids.shape[1] for c in calls]
    rows = [bias_of_call(c.mask[rule_of], c.ids.shape[1], n) for c, n in zip(calls, seen, strict=True)]
    rows = [torch.nn.functional.pad(r, (0, keys - r.shape[-1]), value=LOW) for r in rows]
    sizes = [max(r.shape[axis] for r in rows) for axis in (0, 1)]
    return torch.cat([r.expand(*sizes, -1, -1) for r in rows], 2)


def bias_of_call(seen: AttentionBias, queries: int, keys: int) -> Tensor:
    """One call's share of that, over the keys that it had: [B or 1, H or 1, T, S]."""
    if seen.bias is not None:
        return seen.bias.detach().float().cpu()
    cells = torch.zeros(1, 1, queries, keys)
    if seen.causal:
        return cells.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), LOW)
    return cells


def calls_of(t: "Trace", path: str, run: int | None) -> "list[Call]":
    """The calls of an attention's stack."""
    return resolve.find_run(t, path, run).calls


def mask_rule(t: "Trace", path: str):
    """The rule by which an attention looks; a QkvError where there is no such attention."""
    if path not in t.attentions:
        raise QkvError("no attention is called {path!r}{hint}", path=path, hint=nearest(path, t.attentions))
    return t.attentions[path].spec.mask
