"""Windows of one long text or of token shards, drawn again for each step; what an objective hides in them is its own.

A draw is a function of (seed, step, row), so that a resumed run repeats it. text.py learns them as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


class Windows:
    """How many windows of `length` ids a batch has, and which steps an epoch: as many as cover `total` ids once."""

    def __init__(self, run: Run, total: int, length: int) -> None:
        self.length, self.rows = length, max(1, run.training.tokens // length)
        self.each = max(1, total // (self.rows * length))

    def order(self, epoch: int) -> range:
        """The steps of an epoch, which number its windows."""
        return range(epoch * self.each, (epoch + 1) * self.each)


def plan_shards(
    run: Run,
    splits: Splits,
    model: Model,
    collate_rows: Callable[[torch.Tensor], collate.Batch] = collate.collate_windows,
) -> tuple[Plan, HoldOut]:
    """Windows of token shards, as of one long text; an epoch is as many as cover all shards once."""
    data, s = check_shards(run, splits, model), run.training
    length = min(run.model.context, shortest_shard(splits) - 1)
    if length < 1:
        raise QkvError("{name}: the shards leave {length} tokens for a window, expected two or more", name=run.name,
                       length=length + 1)
    w = Windows(run, len(data), length)

    def make_batch(key: int) -> collate.Batch:
        return collate_rows(data.windows(length=length, rows=w.rows, seed=s.seed, step=key))

    def hold_out(part: Mixture) -> Batches:
        return tuple(map(collate_rows, part.held_windows(length=length, most=64 * w.rows).split(w.rows)))

    return Plan(w.order, make_batch, identify(run) | data.identity), hold_out


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
        tokenizer, s = tokenizer_for(model), run.training
        if isinstance(splits.train, Mixture):
            ids, size = check_shards(run, splits, model), shortest_shard(splits)
            windows, who = ids.windows, identify(run) | ids.identity
        else:
            ids = np.array(tokenizer.encode(str(splits.train), special=False), dtype=np.int32)
            windows, who, size = partial(packing.draw_windows, ids), identify(run, ids), len(ids)
        length = min(self.length, size)
        if length < LEAST:
            raise QkvError("{name}: windows of {length} ids are too short to hide some; found {size} ids of text and "
                           "model.context {context}, expected at least 12 of both", name=run.name, length=length,
                           size=size, context=run.model.context)
        w = Windows(run, len(ids), length)

        def make_batch(key: int) -> collate.Batch:
            cut = windows(length=length - 1, rows=w.rows, seed=s.seed, step=key).tolist()
            return self.collate_rows([self.corrupt_row(row, corrupt.Draw(s.seed, key, i)) for i, row in enumerate(cut)])

        def hold_out(part: str | Mixture) -> Batches:
            if isinstance(part, Mixture):
                cut: list[list[int]] = part.held_windows(length=length - 1, most=64 * w.rows).tolist()
            else:
                found = tokenizer.encode(part, special=False)[: 64 * w.rows * length]
                cut = [found[at : at + length] for at in range(0, len(found) - LEAST + 1, length)]
            rows = [self.corrupt_row(row, corrupt.Draw(0, HELD_OUT, i)) for i, row in enumerate(cut)]
            return tuple(self.collate_rows(rows[at : at + w.rows]) for at in range(0, len(rows), w.rows))

        return Plan(w.order, make_batch, who), hold_out


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """The end symbol, if there is one."""
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


def collate_seq2seq(tokenizer: Tokenizer) -> Callable[[list[Any]], collate.Batch]:
    """Rows of (source, target) as a batch for teacher forcing."""
    pad = tokenizer.pad_id or 0
    return lambda rows: collate.collate_pairs(rows, pad=pad, start=pad)
