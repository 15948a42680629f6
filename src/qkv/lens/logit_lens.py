"""The logit lens: what each layer would say next, its states read by the final norm and the head (nostalgebraist 2020).

Letters: T positions, L layers, D width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.arguments import Count
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.messages import Message
from qkv.plots.forms import Drawn, Form, Grid


@dataclass(frozen=True)
class Guesses(Drawn):
    """The likeliest next tokens after each layer: `ids` and `chances` [L+1, T, N], the likeliest first.

    Row 0 is the embedding, the last row is what the model says. `used` is False where the guess was thrown away
    because the next token was given. `read` are the positions' own tokens, `best` [L+1][T] the likeliest ones in words.
    """

    names: tuple[str, ...]
    ids: Tensor
    chances: Tensor
    used: tuple[bool, ...]
    read: tuple[str, ...] = ()
    best: tuple[tuple[str, ...], ...] = ()

    def list_cells(self, tokenizer: Any) -> list[list[list[list[Any]]]]:
        """The guesses [L+1][T][N] as [piece, chance]."""
        return [[[[piece, round(p, 4)] for piece, p in zip(tokenizer.pieces(ids), chances, strict=True)]
                 for ids, chances in zip(*layer, strict=True)]
                for layer in zip(self.ids.tolist(), self.chances.tolist(), strict=True)]

    def forms(self) -> tuple[Form, ...]:
        """The likeliest token in each cell, the last layer first; brackets mark what was thrown away."""
        chances, names = self.chances[..., 0].float().flip(0), [n.removesuffix(".resid_out") for n in self.names]
        cells = [
            [f"{word} {100 * p:.0f}%" if used else f"({word})" for word, p, used in zip(*row, self.used, strict=True)]
            for row in zip(self.best[::-1], chances.tolist(), strict=True)
        ]
        note = Message("brackets: the next token was given, so the guess was thrown away")
        used = torch.tensor(self.used, device=chances.device)
        title = Message("guesses after each layer")
        return (Grid(title, names[::-1], self.read, chances * used, cells, Message() if all(self.used) else note),)


@torch.no_grad()
def layer_logits(
    t: Recording, *, row: int = 0, run: int | None = None, places: slice = slice(None)
) -> tuple[tuple[str, ...], Tensor]:
    """Each layer's own guess: its states through the final norm and the head, [L+1, T, V] (nostalgebraist 2020).

    The final norm is computed anew for each layer, so the last row equals the model's logits. Early layers speak
    another basis than the head reads: their guesses are a picture, not a belief.
    """
    resolve.require_head(t, "lens")
    taps, states = resolve.read_states(t, "lens", places, row=row, run=run)
    return taps, t.core.head(t.core.stack.final_norm(states)).float()


def guess_by_layer(
    t: Recording, pos: int | str | None = None, *, top: Count = 5, row: int = 0, prompt: int | None = None,
    run: int | None = None,
) -> Guesses:
    """The `top` likeliest next tokens after each layer, at each position or at `pos`; `prompt` positions are given.

    Without `prompt`, the guesses that generation could use are those at the last position of each call.
    """
    kept = slice(None)
    if pos is not None:
        slot = resolve.find_position(t, pos, row=row, run=run)
        kept = slice(slot, slot + 1)
    taps, rows = layer_logits(t, row=row, run=run, places=kept)
    best = rows.softmax(-1).topk(min(top, rows.shape[-1]), -1)
    passed = t.run(taps[0], run)
    used = passed.used if prompt is None else [i >= prompt - 1 for i in range(passed.ids.shape[1])]
    words = tuple(tuple(t.tokenizer.pieces(r) if t.tokenizer else map(str, r)) for r in best.indices[..., 0].tolist())
    read = tuple(resolve.show_tokens(t, passed.ids[row].tolist()))
    return Guesses(taps, best.indices, best.values, tuple(used[kept]), read[kept], words)
