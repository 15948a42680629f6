"""Causal language modelling: the next token of one long text, or of token shards."""

import numpy as np
import torch

from qkv.data import collate, packing
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.model import Model
from qkv.training.objectives import base
from qkv.training.objectives.augment import recut_text
from qkv.training.objectives.base import Batches, HoldOut, Objective
from qkv.training.objectives.windows import Windows, plan_shards
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits


def plan_text(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Windows of one long text, drawn again for each step; an epoch is as many as cover the text once.

    With dropout of merges each epoch has a text with cuts of its own, of which it draws as many windows.
    """
    if isinstance(splits.train, Mixture):
        return plan_shards(run, splits, model)
    tokenizer, s, length = base.tokenizer_for(model), run.training, run.model.context
    ids, last = (np.array(tokenizer.encode(t, special=False), dtype=np.int32) for t in (splits.train, splits.valid))  # type: ignore[arg-type]
    length = min(length, len(ids) - 1, len(last) - 1)
    if length < 1:
        raise QkvError("{name}: the text has {ids} tokens to train on and {last} to validate; give more", name=run.name,
                       ids=len(ids), last=len(last))
    w = Windows(run, len(ids), length)
    cuts = recut_text(run, tokenizer, str(splits.train)) if run.tokenizer.bpe_dropout else lambda epoch: ids

    def make_batch(key: int) -> collate.Batch:
        return collate.collate_windows(
            packing.draw_windows(cuts(key // w.each), length=length, rows=w.rows, seed=s.seed, step=key)
        )

    def hold_out(text: str) -> Batches:
        found = np.array(tokenizer.encode(text, special=False), dtype=np.int64)
        if len(found) <= length:  # a test shorter than a window is one
            return (collate.collate_windows(torch.from_numpy(found)[None]),) if len(found) > 1 else ()
        count = min(len(found) // (length + 1), 64 * w.rows)
        fixed = torch.from_numpy(found[: count * (length + 1)]).view(count, length + 1)
        return tuple(map(collate.collate_windows, fixed.split(w.rows)))

    return Plan(w.order, make_batch, base.identify(run, ids)), hold_out


TEXT = Objective("text", base.TEXTS, ("</s>", "<unk>"), "none", plan_text, base.continue_sources, ("causal decoder",),
                 measure=base.measure_perplexity, bpe_dropout=True)
