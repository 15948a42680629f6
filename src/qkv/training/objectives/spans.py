"""Span corruption (T5): spans of a text replaced by sentinels, which the decoder spells out."""

from qkv.data import corrupt
from qkv.errors import QkvError
from qkv.model import Model
from qkv.training.objectives.base import END_TOKENS, TEXTS, HoldOut, Objective, tokenizer_for, translate_sources
from qkv.training.objectives.corruption import Corruption, collate_seq2seq, end_ids
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits

SENTINELS = tuple(f"<extra_id_{i}>" for i in range(100))  # as T5 calls them


def plan_spans(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Spans replaced by sentinels, which the decoder spells out (Raffel et al. 2020, sections 3.1.4 and 3.3.4)."""
    tokenizer = tokenizer_for(model)
    found = [i for token in SENTINELS if (i := tokenizer.id(token)) is not None]
    if len(found) < 2:
        raise QkvError("{name}: the vocabulary lacks {sentinels}, {sentinels2}, …, which stand for spans",
                       name=run.name, sentinels=SENTINELS[0], sentinels2=SENTINELS[1])
    end, length = end_ids(tokenizer), min(run.model.context - 8, 20 * (len(found) - 2))

    def corrupt_row(ids: list[int], draw: corrupt.Draw) -> tuple[list[int], list[int]]:
        source, target = corrupt.corrupt_spans(ids, found, draw)
        return [*source, *end], [*target, *end]

    return Corruption(length, corrupt_row, collate_seq2seq(tokenizer)).plan(run, splits, model)


SPANS = Objective("spans", TEXTS, (*END_TOKENS, *SENTINELS), "eos", plan_spans, translate_sources)
