"""Sequence to sequence: the target of a pair after its source, with teacher forcing."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from qkv.data import bucket, collate
from qkv.model import Model
from qkv.training.objectives import augment, base
from qkv.training.objectives.base import Batches, HoldOut, Ids, Objective
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Pair, Splits


def plan_pairs(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Batches of pairs of like length, for teacher forcing; with dropout of merges each epoch has cuts of its own."""
    tokenizer, s, context = base.tokenizer_for(model), run.training, run.model.context
    pad, longest = tokenizer.pad_id or 0, min(context, s.tokens // 8 * 8)

    def bucket_pairs(both: Sequence[Ids], often: np.ndarray | None = None) -> bucket.Buckets:
        return bucket.Buckets(base.measure_sides(both), tokens=s.tokens, longest=longest, seed=s.seed, often=often)

    def maker(both: Sequence[Ids], boxes: bucket.Buckets) -> Callable[[Any], collate.Batch]:
        # a box may be a little wider than the table of positions is long
        def box(key: tuple[int, ...]) -> tuple[int, int]:
            _, wide, long = boxes.shape(key)
            return min(wide, context), min(long, context)

        return lambda key: collate.collate_pairs(base.take_rows(both, key), pad=pad, start=pad, shape=box(key))

    def hold_out(pairs: Sequence[Pair]) -> Batches:
        both = base.encode_pairs(tokenizer, pairs)
        boxes = bucket_pairs(both)
        return tuple(map(maker(both, boxes), boxes.batches(0)))

    ids = base.encode_pairs(tokenizer, splits.train)  # type: ignore[arg-type]
    who, notes = base.identify_rows(run, ids), base.note_long_rows(base.measure_sides(ids).max(1), longest)
    if run.tokenizer.bpe_dropout:
        cuts = augment.recut_items(run, tokenizer, splits.train, ids, longest)  # type: ignore[arg-type]
        plan = augment.plan_by_epoch(cuts, partial(bucket_pairs, often=splits.often), maker, who)
        return augment.mask_words(dataclasses.replace(plan, notes=notes), s, tokenizer), hold_out
    boxes = bucket_pairs(ids, splits.often)
    return augment.mask_words(Plan(boxes.batches, maker(ids, boxes), who, notes), s, tokenizer), hold_out


PAIRS = Objective("pairs", "pairs", base.END_TOKENS, "eos", plan_pairs, base.translate_sources,
                  measure=base.measure_perplexity, bpe_dropout=True)
