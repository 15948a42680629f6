"""Documents side by side: texts, which blank lines part, are packed into rows; none sees another."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from qkv.data import collate, packing
from qkv.data.collate import IGNORED
from qkv.data.order import draw_permutation, draw_repeats
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.model import Model
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.objectives import base
from qkv.training.objectives.base import Batches, HoldOut, Objective
from qkv.training.objectives.corruption import end_ids
from qkv.training.objectives.text import plan_text
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits

Row = tuple[list[int], list[int]]  # what goes in; one more than what should come out, 0 where nothing is learnt


Laid = tuple[np.ndarray, list[list[tuple[int, int]]]]  # the rows of an epoch, and where `lay_documents` puts each


def plan_documents(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Documents, which blank lines part, packed side by side in rows; none sees another.

    Of token shards windows are drawn, in which end symbols part them.
    """
    tokenizer = base.tokenizer_for(model)
    if isinstance(splits.train, Mixture):
        end = shard_end(splits.train, tokenizer)
        return plan_text(run, splits, model, collate_rows=partial(collate_documents, end=end))

    def encode_documents(text: Any) -> list[Row]:
        parts = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
        ids = [[*row, *end_ids(tokenizer)] for row in tokenizer.encode_batch(parts, special=False)]
        return [(row[:-1], [i + 1 for i in row[1:]]) for row in ids if len(row) > 1]

    return plan_packed(run, model, encode_documents(splits.train), encode_documents)


def shard_end(data: Mixture, tokenizer: Tokenizer) -> int:
    """The id that ends each text of shards; QkvError where none does."""
    place, end = data.shards[0].folder, tokenizer.eos_id
    if end is None or end >= data.shards[0].index["vocabulary"]:
        raise QkvError("{place}: its vocabulary has no end symbol, so its texts cannot be separated; train on them as "
                       "one text: objective=text", place=place)
    return end


def collate_documents(windows: torch.Tensor, end: int) -> collate.Batch:
    """Windows [B, T + 1] in which each `end` closes a text: none sees another, or is to be guessed from another."""
    closed = (windows == end).long()
    return collate.collate_documents(windows, closed.cumsum(1) - closed)


def plan_packed(
    run: Run, model: Model, rows: Sequence[Row], encode: Callable[[Any], Sequence[Row]], *,
    notes: tuple[str, ...] = (), often: np.ndarray | None = None,
) -> tuple[Plan, HoldOut]:
    """Rows packed into the context's width, each seeing itself alone; the same company in each epoch but for `often`,
    by which each epoch has rows of its own.
    """
    s, width = run.training, run.model.context
    if not len(rows):
        raise QkvError("{name}: no text to train on", name=run.name)
    pad, count = base.tokenizer_for(model).pad_id or 0, max(1, s.tokens // width)

    def lay(found: Sequence[Row], items: np.ndarray) -> Laid:
        lengths = base.measure_sides(found)[items, 0]
        return items, packing.lay_documents((np.minimum(lengths, width) if notes else lengths).tolist(), width)

    def pack(found: Sequence[Row], laid: Laid, index: Sequence[int]) -> collate.Batch:
        some = [laid[1][i] for i in index]
        numbers = list({number for parts in some for number, _ in parts})
        taken = dict(zip(numbers, base.take_rows(found, laid[0][numbers].tolist()), strict=True))
        ids, documents = packing.fill_rows(some, {n: ids for n, (ids, _) in taken.items()}, width, pad=pad)
        labels, _ = packing.fill_rows(some, {n: labels for n, (_, labels) in taken.items()}, width, pad=0)
        return collate.collate_packed_labels(ids, torch.where(labels > 0, labels - 1, IGNORED), documents)

    @lru_cache(maxsize=2)
    def lay_epoch(epoch: int) -> Laid:
        if often is None:
            return whole
        return lay(rows, np.repeat(np.arange(len(rows)), draw_repeats(often, seed=s.seed, epoch=epoch)))

    def order(epoch: int) -> list[tuple[int, tuple[int, ...]]]:
        index = draw_permutation(len(lay_epoch(epoch)[1]), seed=s.seed, epoch=epoch).tolist()
        return [(epoch, tuple(index[i : i + count])) for i in range(0, len(index), count)]

    def make_batch(key: tuple[int, tuple[int, ...]]) -> collate.Batch:
        return pack(rows, lay_epoch(key[0]), key[1])

    def hold_out(part: Any) -> Batches:
        found = encode(part)
        laid = lay(found, np.arange(len(found)))
        return tuple(pack(found, laid, range(len(laid[1]))[at : at + count]) for at in range(0, len(laid[1]), count))

    whole = lay(rows, np.arange(len(rows)))
    who = (base.identify(run, pack(rows, whole, range(len(whole[1]))).target.flatten().numpy())
           if isinstance(rows, list) else base.identify_rows(run, rows))
    return Plan(order, make_batch, who, notes), hold_out


DOCUMENTS = Objective("documents", base.TEXTS, base.END_TOKENS, "none", plan_documents, base.continue_sources,
                      ("causal decoder",), measure=base.measure_perplexity)
