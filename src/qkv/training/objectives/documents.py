"""Documents side by side: texts, which blank lines part, are packed into rows; none sees another."""

from collections.abc import Callable
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
from qkv.training.objectives.text import plan_text
from qkv.training.objectives.windows import end_ids
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits

Row = tuple[list[int], list[int]]  # what goes in, what should come out


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
        return [(row[:-1], row[1:]) for row in ids if len(row) > 1]

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
    run: Run, model: Model, rows: list[Row], encode: Callable[[Any], list[Row]], *, notes: tuple[str, ...] = (),
    often: np.ndarray | None = None,
) -> tuple[Plan, HoldOut]:
    """Rows packed into the context's width, each seeing itself alone; the same company in each epoch but for `often`,
    by which each epoch has rows of its own.
    """
    s, width = run.training, run.model.context
    if not rows:
        raise QkvError("{name}: no text to train on", name=run.name)
    pad, count = base.tokenizer_for(model).pad_id or 0, max(1, s.tokens // width)

    def pack(found: list[Row]) -> collate.Batch:
        found = [(ids[:width], labels[:width]) for ids, labels in found] if notes else found
        ids, numbers = packing.pack_documents([ids for ids, _ in found], width, pad=pad)
        labels, _ = packing.pack_documents(
            [labels for _, labels in found], width, pad=IGNORED
        )  # as long, so laid alike
        return collate.collate_packed_labels(ids, labels, numbers)

    def select(whole: collate.Batch, index: torch.Tensor) -> collate.Batch:
        assert whole.documents is not None
        return collate.collate_packed_labels(whole.target[index], whole.labels[index], whole.documents[index])

    whole = pack(rows)

    @lru_cache(maxsize=2)
    def rows_of(epoch: int) -> collate.Batch:
        if often is None:
            return whole
        times = draw_repeats(often, seed=s.seed, epoch=epoch)
        return pack([row for row, n in zip(rows, times, strict=True) for _ in range(n)])

    def order(epoch: int) -> list[tuple[int, tuple[int, ...]]]:
        index = draw_permutation(len(rows_of(epoch).target), seed=s.seed, epoch=epoch).tolist()
        return [(epoch, tuple(index[i : i + count])) for i in range(0, len(index), count)]

    def make_batch(key: tuple[int, tuple[int, ...]]) -> collate.Batch:
        return select(rows_of(key[0]), torch.tensor(key[1]))

    def hold_out(part: Any) -> Batches:
        found = pack(encode(part))
        return tuple(select(found, index) for index in torch.arange(len(found.target)).split(count))

    return Plan(order, make_batch, base.identify(run, whole.target.flatten().numpy()), notes), hold_out


DOCUMENTS = Objective("documents", base.TEXTS, base.END_TOKENS, "none", plan_documents, base.continue_sources,
                      ("causal decoder",), measure=base.measure_perplexity)
