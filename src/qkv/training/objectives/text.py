"""Causal language modelling: the next token in windows of one long text, or of token shards, drawn for each step."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qkv.data import collate, packing
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.model import Model
from qkv.tokenizers.tokenizer import load
from qkv.training.objectives import base
from qkv.training.objectives.augment import recut_text
from qkv.training.objectives.base import Batches, HoldOut, Objective
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits


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


def plan_text(
    run: Run, splits: Splits, model: Model, *,
    collate_rows: Callable[[torch.Tensor], collate.Batch] = collate.collate_windows,
) -> tuple[Plan, HoldOut]:
    """Windows of one long text or of token shards, drawn again for each step; an epoch is as many as cover it once.

    With dropout of merges each epoch has a text with cuts of its own, of which it draws as many windows.
    """
    tokenizer, context = base.tokenizer_for(model), run.model.context
    ids, who = read_ids(run, splits, model)
    if isinstance(ids, Mixture):
        size = shortest_shard(splits)
        lacking = Message("{name}: the shards leave {length} tokens for a window, expected two or more", name=run.name,
                          length=min(context + 1, size))
    else:
        last = len(tokenizer.encode(str(splits.valid), special=False))
        size = min(len(ids), last)
        lacking = Message("{name}: the text has {ids} tokens to train on and {last} to validate; give more",
                          name=run.name, ids=len(ids), last=last)
    length = min(context, size - 1)
    if length < 1:
        raise QkvError(lacking)
    w = Windows(ids, length, max(1, run.training.tokens // length), run.training.seed)
    each = len(w.order(0))
    cuts = recut_text(run, tokenizer, str(splits.train)) if run.tokenizer.bpe_dropout else None

    def make_batch(key: int) -> collate.Batch:
        now = dataclasses.replace(w, ids=cuts(key // each)) if cuts else w
        return collate_rows(now.draw_step(key, length + 1))

    def hold_out(part: str | Mixture) -> Batches:
        if isinstance(part, Mixture):
            return tuple(map(collate_rows, part.held_windows(length=length, most=64 * w.rows).split(w.rows)))
        found = np.array(tokenizer.encode(part, special=False), dtype=np.int64)
        if len(found) <= length:  # a test shorter than a window is one
            return (collate_rows(torch.from_numpy(found)[None]),) if len(found) > 1 else ()
        count = min(len(found) // (length + 1), 64 * w.rows)
        fixed = torch.from_numpy(found[: count * (length + 1)]).view(count, length + 1)
        return tuple(map(collate_rows, fixed.split(w.rows)))

    return Plan(w.order, make_batch, who), hold_out


def read_ids(run: Run, splits: Splits, model: Model) -> tuple[np.ndarray | Mixture, dict[str, Any]]:
    """The ids that are trained on, of a long text or of token shards, and what identifies them.

    Raises:
        QkvError: the ids of the shards are not the model's.
    """
    known = base.tokenizer_for(model)
    if not isinstance(splits.train, Mixture):
        ids = np.array(known.encode(str(splits.train), special=False), dtype=np.int32)
        return ids, base.identify(run, ids)
    first = splits.train.shards[0]
    own, size = load(first.folder), first.index["vocabulary"]
    if not (size == len(known) if own is None else own.vocabulary.items() <= known.vocabulary.items()):
        raise QkvError("{folder}: these ids belong to another vocabulary ({size:,} tokens) than the model's "
                       "({known:,}); pack the text with --model "
                       "{base}", folder=first.folder, size=size, known=len(known), base=run.base)
    return splits.train, base.identify(run) | splits.train.identity


def shortest_shard(splits: Splits) -> int:
    """The most tokens that each window of shards may have: all of training give such ones, one of validation does."""
    assert isinstance(splits.train, Mixture)
    assert isinstance(splits.valid, Mixture)
    return min(splits.train.shortest, max(map(len, splits.valid.shards)))


TEXT = Objective("text", base.TEXTS, ("</s>", "<unk>"), "none", plan_text, base.continue_sources, ("causal decoder",),
                 measure=base.measure_perplexity, bpe_dropout=True)
