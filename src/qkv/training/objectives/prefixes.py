"""Prefix language modelling: a bidirectional prefix, and what follows it is learnt."""

from collections.abc import Callable, Sequence
from typing import Any

from qkv.data import bucket, collate, corrupt
from qkv.model import Model
from qkv.tasks.types import start_ids
from qkv.training.objectives import base
from qkv.training.objectives.base import Batches, HoldOut, Ids, Objective
from qkv.training.objectives.windows import Corruption, end_ids
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

    def encode_ended(pairs: Sequence[Pair]) -> list[Ids]:
        return [(a, [*b, *end_ids(tokenizer)]) for a, b in base.encode_pairs(tokenizer, pairs)]

    def maker(both: list[Ids], boxes: bucket.Buckets) -> Callable[[Any], collate.Batch]:
        return lambda key: collate.collate_prefixes(
            [both[i] for i in key], pad=pad, start=start, width=boxes.shape(key)[2]
        )

    def join(both: list[Ids]) -> list[list[int]]:
        return [[*a, *start, *b[:-1]] for a, b in both]

    def hold_out(pairs: Sequence[Pair]) -> Batches:
        both = encode_ended(pairs)
        boxes = base.bucket_rows(join(both), run)
        return tuple(map(maker(both, boxes), boxes.batches(0)))

    ids = encode_ended(splits.train)  # type: ignore[arg-type]
    rows = join(ids)
    boxes = base.bucket_rows(rows, run, splits.often)
    notes = base.note_long_rows(list(map(len, rows)), base.row_limit(run))
    return Plan(boxes.batches, maker(ids, boxes), base.identify(run, base.flatten_ids(rows)), notes), hold_out


PREFIXES = Objective("prefixes", base.BOTH, (*base.END_TOKENS, "<s>"), "none", plan_prefixes, base.continue_sources,
                     ("prefix decoder",))
