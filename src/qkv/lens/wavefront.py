"""The grid of layers and tokens: which states need which, the triangle of a serial reader, and what the machine ran.

Letters: L layers, T tokens. Row 0 of a grid is the first layer; the embeddings below it are given or written.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.lens import resolve
from qkv.lens.mask_reasons import explain_mask
from qkv.lens.recording import Recording
from qkv.messages import Message
from qkv.plots.forms import Drawn, Form, Grid


@dataclass(frozen=True)
class Wavefront(Drawn):
    """When each state could be and was computed, in ticks from 0, all [L, T].

    `triangle`: one token after another, one layer a tick, as in a pipeline. `earliest`: as soon as what it depends on
    is there, on a machine wide enough; a written token depends on the last state of the one before it. `ran`: the
    order of the run that was traced, a tick for each layer of each call. `read` [T] are the tokens. An encoder
    reads its source in one pass before: its ticks count from 0 too, and those of the decoder begin anew.
    """

    sees: Tensor  # L T T: does layer l's state of token t read layer l-1's state of token s
    triangle: Tensor
    earliest: Tensor
    ran: Tensor
    read: tuple[str, ...] = ()
    encoder: Tensor | None = None  # L S, of an encoder-decoder: when its encoder's states were made
    source: tuple[str, ...] = ()

    def forms(self) -> tuple[Form, ...]:
        """The three orders, and an encoder's before them, the last layer on top; the later, the darker."""
        note = Message("one pass for all words, before the first word is written: the decoder's ticks start after it")
        rows = [(Message("the encoder: every word of a layer at once"), self.encoder, self.source, note),
                (Message("one token, one layer at a time: the triangle"), self.triangle, self.read, ""),
                (Message("as early as what it needs is there"), self.earliest, self.read, ""),
                (Message("what the machine ran: row by row"), self.ran, self.read, "")]
        made: list[Form] = []
        for title, ticks, read, below in rows:
            if ticks is None:
                continue
            names, ticks = [f"layer {i}" for i in range(len(ticks), 0, -1)], ticks.flip(0)
            cells = [[str(x) for x in row] for row in ticks.tolist()]
            made.append(Grid(title, names, read, ticks / max(1, int(ticks.max())), cells, below))
        return tuple(made)

    def needs(self, layer: int, token: int) -> list[tuple[int, int]]:
        """The states (layer, token) that a state reads directly; layer -1 is the embedding."""
        return [(layer - 1, s) for s in self.sees[layer, token].nonzero().flatten().tolist()]

    def find_ancestors(self, layer: int, token: int) -> Tensor:
        """All states of lower layers on which a state rests, directly or not: bool [L, T]."""
        rests = torch.zeros(self.sees.shape[:2], dtype=torch.bool)
        front = self.sees[layer, token]
        for under in reversed(range(layer)):
            rests[under] = front
            front = self.sees[under][front].any(0)
        return rests


def build_wavefront(t: Recording, *, row: int = 0, run: int | None = None) -> Wavefront:
    """The grid of the stack that writes, for the run that was traced."""
    calls = resolve.find_run(t, run=run).calls
    paths = [f"{resolve.prefix_of(t)}layers.{i}.attn" for i in range(len(t.core.stack.layers))]
    cells = torch.stack([explain_mask(t, p, row=row, run=run).cells == 0 for p in paths])  # L T T
    sees = cells | torch.eye(cells.shape[1], dtype=torch.bool)  # the residual: a state always reads its own
    layers, size = sees.shape[:2]
    triangle = torch.arange(layers)[:, None] + torch.arange(size)
    rows = torch.arange(layers)[:, None]  # a call computes a whole row of its tokens at once
    ran = torch.cat([rows.expand(-1, c.ids.shape[1]) + layers * n for n, c in enumerate(calls)], 1)
    earliest = earliest_ticks(sees, calls[0].ids.shape[1])
    sources = next((r for r in t.runs if r.stack == "encoder" and t.core.spec.decoder), None)
    made = Wavefront(sees, triangle, earliest, ran, resolve.tokens_read(t, row=row, run=run))
    if sources is None:
        return made
    encoder = torch.arange(len(t.core.encoder.layers))[:, None].expand(-1, sources.calls[0].ids.shape[1])
    return replace(made, encoder=encoder, source=tuple(resolve.show_tokens(t, sources.ids[row].tolist())))


def earliest_ticks(sees: Tensor, prompt: int) -> Tensor:
    """The first tick at which each state [L, T] can be made; tokens from `prompt` on are written one by one."""
    layers, size = sees.shape[:2]
    ticks = torch.zeros(layers, size, dtype=torch.long)
    for columns in ([*range(prompt)], *([token] for token in range(prompt, size))):
        ticks[0, columns] = 0 if columns[0] == 0 else ticks[-1, columns[0] - 1] + 1
        for layer in range(1, layers):
            for token in columns:
                ticks[layer, token] = ticks[layer - 1][sees[layer, token]].max() + 1
    return ticks
