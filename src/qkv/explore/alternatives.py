"""What a model could have written instead, walked through with the arrow keys: the end of `qkv look` on a terminal.

Letters: V vocabulary.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import click
import torch

from qkv.explore.question import Question, decoding_setup, kind
from qkv.generation.decoder import Decoder
from qkv.model import Model
from qkv.tasks.types import start_ids

TOP, BAR = 8, 20
KEYS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "up", "P": "down", "M": "right", "K": "left"}
Say = Callable[..., str]


@dataclass
class Branch:
    """A text, the words chosen after it so far, and the one that is marked among the likeliest next ones."""

    model: Model
    ids: list[int]
    written: list[int] = field(default_factory=list)
    marked: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing can follow: an end token was chosen, or the context is full."""
        longest = self.model.spec.context
        read = len(start_ids(self.model)) + len(self.written) + (0 if self.model.encoder_decoder else len(self.ids))
        return bool(set(self.written[-1:]) & set(self.model.special.eos)) or bool(longest and read > longest)

    @torch.inference_mode()
    def list_next(self) -> list[tuple[int, float]]:
        """The likeliest next tokens with their chances, those that the model never writes left out."""
        if self.ended:
            return []
        model = self.model
        ids, options, _ = decoding_setup(model, self.ids, Question("", force=tuple(self.written)))
        chances = Decoder(model.core, options).prefill([ids])[0].float().softmax(-1)  # V
        best = chances.topk(min(TOP + len(model.special.forbid), len(chances)))
        found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(token, p) for token, p in found if token not in model.special.forbid][:TOP]

    def press(self, key: str) -> bool:
        """What a key does; False where it ends the walk."""
        move = KEYS.get(key[-1:]) if key[:1] in ("\x1b", "\xe0", "\x00") and len(key) > 1 else None
        there = self.list_next()
        if move == "right" and there:
            self.written.append(there[self.marked][0])
            self.marked = 0
        elif move == "left" and self.written:
            self.written.pop()
            self.marked = 0
        elif move in ("up", "down") and there:
            self.marked = (self.marked + (1 if move == "down" else -1)) % len(there)
        return move is not None or key not in ("q", "\x1b", "\r", "\n", "\x03", "\x04", "")

    def compose_lines(self, say: Say) -> list[str]:
        """The text as it stands, its next words as bars, and what the keys do."""
        model, room = self.model, max(20, shutil.get_terminal_size().columns // 2 - 4)  # a character may be two wide
        answer = model.text([i for i in self.written if i not in model.special.eos])
        shown = answer if model.encoder_decoder or kind(model) == "prefix" else model.text([*self.ids, *self.written])
        assert model.tokenizer is not None
        there = self.list_next()
        words = model.tokenizer.pieces([token for token, _ in there])
        rows = [
            f"{'▸' if i == self.marked else ' '} {p:6.1%}  {'█' * round(BAR * p):{BAR}}  {word.strip() or '␣'}"
            for i, (word, (_, p)) in enumerate(zip(words, there, strict=True))
        ]
        keys = say("↑↓ choose  → write it  ← take it back  q ends")
        text = " ".join(shown.split())[-room:]
        rows = rows or [say("(it ends here)")]
        return ["", click.style(f"{text}▌", bold=True), *rows, click.style(keys, dim=True)]


def walk_alternatives(model: Model, text: str, say: Say, press: Callable[[], str] = click.getchar) -> Branch:
    """Walk until q, Enter or Ctrl-C; `press` gives one key at a time."""
    branch, drawn = Branch(model, model.ids(text)), 0
    with suppress(KeyboardInterrupt, EOFError):
        while True:
            lines = branch.compose_lines(say)
            click.echo((f"\x1b[{drawn}A\x1b[J" if drawn else "") + "\n".join(lines))
            drawn = len(lines)
            if not branch.press(press()):
                break
    return branch
