"""Causal language modelling: the next token of one long text, or of token shards."""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from qkv.data import collate
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.model import Model
from qkv.training.objectives import base
from qkv.training.objectives.augment import recut_text
from qkv.training.objectives.base import Batches, HoldOut, Objective
from qkv.training.objectives.windows import Windows, check_shards, shortest_shard
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits


def plan_text(
    run: Run, splits: Splits, model: Model, *,
    collate_rows: Callable[[torch.Tensor], collate.Batch] = collate.collate_windows,
) -> tuple[Plan, HoldOut]:
    """Windows of one long text or of token shards, drawn again for each step; an epoch is as many as cover it once.

    With dropout of merges each epoch has a text with cuts of its own, of which it draws as many windows.
    """
    tokenizer, context = base.tokenizer_for(model), run.model.context
    if isinstance(splits.train, Mixture):
        ids, size = check_shards(run, splits, model), shortest_shard(splits)
        lacking = Message("{name}: the shards leave {length} tokens for a window, expected two or more", name=run.name,
                          length=min(context + 1, size))
        who = base.identify(run) | ids.identity
    else:
        ids, last = (np.array(tokenizer.encode(str(part), special=False), dtype=np.int32)
                     for part in (splits.train, splits.valid))
        size, who = min(len(ids), len(last)), base.identify(run, ids)
        lacking = Message("{name}: the text has {ids} tokens to train on and {last} to validate; give more",
                          name=run.name, ids=len(ids), last=len(last))
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


TEXT = Objective("text", base.TEXTS, ("</s>", "<unk>"), "none", plan_text, base.continue_sources, ("causal decoder",),
                 measure=base.measure_perplexity, bpe_dropout=True)
