"""Prefix language modelling: a bidirectional prefix, and what follows it is learnt."""

from collections.abc import Callable, Sequence
from typing import Any

from qkv.data import bucket, collate, corrupt
from qkv.model import Model
from qkv.tasks.types import start_ids
from qkv.training.objectives import base
from qkv.training.objectives.base import Batches, HoldOut, Ids, Objective
from qkv.training.objectives.corruption import Corruption, end_ids
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Pair, Splits


def plan_prefixes(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """A prefix that is seen freely, and what follows it: of pairs, or a window of a text cut at a random place."""
    if splits.kind == "pairs":
        return plan_prefixed_pairs(run, splits, model)
    tokenizer, start = base.tokenizer_for(model), start_ids(model)

    def collate_rows(rows: list[Ids]) -> collate.Batch:
        return collate.collate_prefixes(rows, pad=tokenizer.pad_id or 0, start=start)

    return Corruption(run.model.context - len(start), corrupt.split_prefix, collate_rows).plan(run, splits, model)


def plan_prefixed_pairs(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Pairs in one row: the source is a bidirectional prefix, and the target is learnt (Raffel et al. 2020, 3.2.1)."""
    tokenizer = base.tokenizer_for(model)
    pad, start = tokenizer.pad_id or 0, start_ids(model)

    end = end_ids(tokenizer)

    def maker(both: Sequence[Ids], boxes: bucket.Buckets) -> Callable[[Any], collate.Batch]:
        return lambda key: collate.collate_prefixes(
            [(a, [*b, *end]) for a, b in base.take_rows(both, key)], pad=pad, start=start, width=boxes.shape(key)[2]
        )

    def measure_joined(both: Sequence[Ids]) -> Any:  # of each row the source, the start symbol, the target
        return base.measure_sides(both).sum(1) + len(start) + len(end) - 1

    def hold_out(pairs: Sequence[Pair]) -> Batches:
        both = base.encode_pairs(tokenizer, pairs)
        boxes = base.bucket_rows(measure_joined(both), run)
        return tuple(map(maker(both, boxes), boxes.batches(0)))

    ids = base.encode_pairs(tokenizer, splits.train)  # type: ignore[arg-type]
    lengths = measure_joined(ids)
    boxes = base.bucket_rows(lengths, run, splits.often)
    who = (base.identify(run, base.flatten_ids([*a, *start, *b, *end][:-1] for a, b in ids)) if isinstance(ids, list)
           else base.identify_rows(run, ids))
    notes = base.note_long_rows(lengths, base.row_limit(run))
    return Plan(boxes.batches, maker(ids, boxes), who, notes), hold_out


PREFIXES = Objective("prefixes", base.BOTH, (*base.END_TOKENS, "<s>"), "none", plan_prefixes, base.continue_sources,
                     ("prefix decoder",))
