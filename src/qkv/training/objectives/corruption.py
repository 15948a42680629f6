"""Windows of one long text or of token shards in which something is hidden; what is hidden is an objective's own.

A draw is a function of (seed, step, row), so that a resumed run repeats it. text.py learns windows as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkv.data import collate, corrupt
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.model import Model
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.objectives.base import HELD_OUT, Batches, HoldOut, tokenizer_for
from qkv.training.objectives.text import Windows, read_ids, shortest_shard
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits

LEAST = 8  # ids of a window that can lack some


@dataclass(frozen=True)
class Corruption:
    """How a window of `length` ids becomes a row that lacks something, and rows a batch."""

    length: int
    corrupt_row: Callable[[list[int], corrupt.Draw], Any]
    collate_rows: Callable[[list[Any]], collate.Batch]

    def plan(self, run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
        """The batches of a long text; an epoch is as many windows as cover the text once."""
        tokenizer, seed = tokenizer_for(model), run.training.seed
        ids, who = read_ids(run, splits, model)
        size = shortest_shard(splits) if isinstance(ids, Mixture) else len(ids)
        length = min(self.length, size)
        if length < LEAST:
            raise QkvError("{name}: windows of {length} ids are too short to hide some; found {size} ids of text and "
                           "model.context {context}, expected at least 12 of both", name=run.name, length=length,
                           size=size, context=run.model.context)
        w = Windows(ids, length, max(1, run.training.tokens // length), seed)

        def corrupt_rows(rows: list[list[int]], seed: int, key: int) -> list[Any]:
            return [self.corrupt_row(row, corrupt.Draw(seed, key, i)) for i, row in enumerate(rows)]

        def make_batch(key: int) -> collate.Batch:
            return self.collate_rows(corrupt_rows(w.draw_step(key, length).tolist(), seed, key))

        def hold_out(part: str | Mixture) -> Batches:
            if isinstance(part, Mixture):
                cut: list[list[int]] = part.held_windows(length=length - 1, most=64 * w.rows).tolist()
            else:
                found = tokenizer.encode(part, special=False)[: 64 * w.rows * length]
                cut = [found[at : at + length] for at in range(0, len(found) - LEAST + 1, length)]
            rows = corrupt_rows(cut, 0, HELD_OUT)
            return tuple(self.collate_rows(rows[at : at + w.rows]) for at in range(0, len(rows), w.rows))

        return Plan(w.order, make_batch, who), hold_out


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """The end symbol, if there is one."""
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


def collate_seq2seq(tokenizer: Tokenizer) -> Callable[[list[Any]], collate.Batch]:
    """Rows of (source, target) as a batch for teacher forcing."""
    pad = tokenizer.pad_id or 0
    return lambda rows: collate.collate_pairs(rows, pad=pad, start=pad)
