"""Windows of one long text or of token shards, drawn again for each step; what an objective hides in them is its own.

A draw is a function of (seed, step, row), so that a resumed run repeats it. text.py learns them as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qkv.data import collate, corrupt, packing
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.model import Model
from qkv.tokenizers.tokenizer import Tokenizer, load
from qkv.training.objectives.base import HELD_OUT, Batches, HoldOut, identify, tokenizer_for
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits

LEAST = 8  # ids of a window that can lack some


@dataclass(frozen=True)
class Windows:
    """Windows of one long text or of token shards, `rows` to a batch; an epoch has as many as cover all of it once."""

    ids: np.ndarray | Mixture
    length: int
    rows: int
    seed: int

    def order(self, epoch: int) -> range:
        """The steps of an epoch, which number its windows."""
        each = max(1, len(self.ids) // (self.rows * self.length))
        return range(epoch * each, (epoch + 1) * each)

    def draw_step(self, step: int, width: int) -> torch.Tensor:
        """The windows of a step, `width` ids each: [rows, width]."""
        how = {"length": width - 1, "rows": self.rows, "seed": self.seed, "step": step}
        return self.ids.windows(**how) if isinstance(self.ids, Mixture) else packing.draw_windows(self.ids, **how)


def check_shards(run: Run, splits: Splits, model: Model) -> Mixture:
    """The shards that are trained on; QkvError where their ids are not the model's."""
    assert isinstance(splits.train, Mixture)
    known, first = tokenizer_for(model), splits.train.shards[0]
    own, size = load(first.folder), first.index["vocabulary"]
    alike = size == len(known) if own is None else own.vocabulary.items() <= known.vocabulary.items()
    if not alike:
        raise QkvError("{folder}: these ids belong to another vocabulary ({size:,} tokens) than the model's "
                       "({known:,}); pack the text with --model "
                       "{base}", folder=first.folder, size=size, known=len(known),
                       base=run.base)
    return splits.train


def shortest_shard(splits: Splits) -> int:
    """The most tokens that each window of shards may have: all of training give such ones, one of validation does."""
    assert isinstance(splits.train, Mixture)
    assert isinstance(splits.valid, Mixture)
    return min(splits.train.shortest, max(map(len, splits.valid.shards)))


@dataclass(frozen=True)
class Corruption:
    """How a window of `length` ids becomes a row that lacks something, and rows a batch."""

    length: int
    corrupt_row: Callable[[list[int], corrupt.Draw], Any]
    collate_rows: Callable[[list[Any]], collate.Batch]

    def plan(self, run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
        """The batches of a long text; an epoch is as many windows as cover the text once."""
        tokenizer, seed = tokenizer_for(model), run.training.seed
        if isinstance(splits.train, Mixture):
            ids, size = check_shards(run, splits, model), shortest_shard(splits)
            who = identify(run) | ids.identity
        else:
            ids = np.array(tokenizer.encode(str(splits.train), special=False), dtype=np.int32)
            who, size = identify(run, ids), len(ids)
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
