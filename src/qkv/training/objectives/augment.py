"""Texts that are others in each epoch: cut into other tokens (BPE-dropout), or without some of their words."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from qkv.data import bucket, collate
from qkv.data.mapped_rows import CHUNK
from qkv.data.order import make_generator
from qkv.errors import QkvError
from qkv.tokenizers.bpe_dropout import BpeDropout, Trials
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.objectives.base import Rows, flatten_ids, special_ids
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.settings import Settings

RECUT_STREAM = 0x6375_7473  # draws of cuts are another stream than those of order: seed ^ RECUT_STREAM
WORD_STREAM = 0x7468_696E  # and so are those of words left out
RARE_STREAM = 0x7261_7265  # and those of rare words


def plan_by_epoch(
    rows_of: Callable[[int], Any], boxes_of: Callable[[Any], bucket.Buckets],
    maker: Callable[[Any, bucket.Buckets], Callable[[Any], collate.Batch]], who: dict[str, Any],
) -> Plan:
    """A plan whose rows, and so their buckets, are others in each epoch; two epochs are kept at a time."""

    @lru_cache(maxsize=2)
    def cut_epoch(epoch: int) -> tuple[Any, bucket.Buckets]:
        rows = rows_of(epoch)
        return rows, boxes_of(rows)

    def order(epoch: int) -> Sequence[tuple[int, tuple[int, ...]]]:
        return [(epoch, key) for key in cut_epoch(epoch)[1].batches(epoch)]

    return Plan(order, lambda key: maker(*cut_epoch(key[0]))(key[1]), who)


def plan_on_reading(
    boxes: bucket.Buckets, maker: Callable[[Callable[[Rows, int], Rows]], Callable[[Any], collate.Batch]],
    change: Callable[[Sequence[Rows], int, int], Sequence[Rows]], who: dict[str, Any],
) -> Plan:
    """A plan whose rows lie on disk and are changed when they are read: row i of epoch e by a draw of (seed, e, i)."""

    def order(epoch: int) -> Sequence[tuple[int, tuple[int, ...]]]:
        return [(epoch, key) for key in boxes.batches(epoch)]

    def make_batch(place: tuple[int, tuple[int, ...]]) -> collate.Batch:
        epoch, key = place
        return maker(lambda row, number: change([row], epoch, number + 1)[0])(key)

    return Plan(order, make_batch, who)


def recut_items(
    run: Run, tokenizer: Tokenizer, items: Sequence[Sequence[str]], usual: Sequence[Rows], longest: int
) -> Callable[[int], list[Rows]]:
    """The texts of each item as an epoch cuts them: item i of epoch e is a function of (seed, e, i) and of no more.

    An item with a text whose new cut is longer than `longest` keeps its `usual` cuts.
    """
    recut, share = BpeDropout(tokenizer, run.tokenizer.ranks()), run.tokenizer.bpe_dropout
    seed, parts = run.training.seed ^ RECUT_STREAM, iter(recut.split_texts([text for item in items for text in item]))
    read = [[next(parts) for _ in item] for item in items]

    def cuts(epoch: int) -> list[Rows]:
        found: list[Rows] = []
        for i, item in enumerate(read):
            trials = Trials(make_generator(seed=seed, epoch=epoch, index=i), share)
            new = tuple(recut.ids_of(text, trials) for text in item)
            found.append(new if max(map(len, new)) <= longest else usual[i])
        return found

    return cuts


def recut_text(run: Run, tokenizer: Tokenizer, text: str) -> Callable[[int], np.ndarray]:
    """The ids of a text as an epoch cuts it, a function of (seed, epoch); dropout makes it longer, never shorter."""
    recut = BpeDropout(tokenizer, run.tokenizer.ranks())
    (read,) = recut.split_texts([text])

    @lru_cache(maxsize=2)
    def cuts(epoch: int) -> np.ndarray:
        draws = make_generator(seed=run.training.seed ^ RECUT_STREAM, epoch=epoch, index=0)
        return np.array(recut.ids_of(read, Trials(draws, run.tokenizer.bpe_dropout)), dtype=np.int32)

    return cuts


def mask_words(plan: Plan, s: Settings, tokenizer: Tokenizer) -> Plan:
    """The plan with some of the words that are read made unknown: batch k of epoch e by a draw of (seed, e, k)."""
    if not s.word_dropout:
        return plan
    kept, unknown = sorted(special_ids(tokenizer)), unknown_token(tokenizer, "word_dropout", s.word_dropout)

    def order(epoch: int) -> Sequence[tuple[int, int, Any]]:
        return [(epoch, number, key) for number, key in enumerate(plan.order(epoch))]

    def make_batch(place: tuple[int, int, Any]) -> collate.Batch:
        epoch, number, key = place
        draws = make_generator(seed=s.seed ^ WORD_STREAM, epoch=epoch, index=number)
        return collate.apply_word_dropout(plan.make(key), share=s.word_dropout, unknown=unknown, kept=kept, draws=draws)

    return dataclasses.replace(plan, order=order, make=make_batch)


def remove_words(
    rows: Sequence[Rows], epoch: int, index: int = 0, *, tokenizer: Tokenizer, share: float, seed: int
) -> Sequence[Rows]:
    """Texts without some of their words, each left out with the probability `share`.

    What goes is a function of (seed, epoch, index). Special tokens stay, and so does a text of which no word would.
    """
    if not share:
        return rows
    draws = make_generator(seed=seed ^ WORD_STREAM, epoch=epoch, index=index)
    special = special_ids(tokenizer) - {tokenizer.unk_id}

    def shorten(row: list[int]) -> list[int]:
        kept = [i for i, drawn in zip(row, draws.random(len(row)).tolist(), strict=True)
                if drawn >= share or i in special]
        return kept if any(i not in special for i in kept) else row

    return [tuple(map(shorten, many)) for many in rows]


def blur_rare_words(rows: Sequence[Rows], tokenizer: Tokenizer, s: Settings) -> Callable[..., Any]:
    """What makes rare words of an epoch's rows unknown, so that what the unknown token says is learnt.

    A word that `rows` have c times is read with the probability c / (c + `s.rare_words`), and others are drawn in each
    epoch (Kiperwasser & Goldberg 2016, section 4). Bigrams stay: an unknown one is no token at all.
    """
    if not s.rare_words:
        return lambda rows, epoch, index=0: rows
    unknown, counts = unknown_token(tokenizer, "rare_words", s.rare_words), np.zeros(len(tokenizer), dtype=np.int64)
    for at in range(0, len(rows), CHUNK):
        counts += np.bincount(flatten_ids(row for many in rows[at : at + CHUNK] for row in many), minlength=len(counts))
    chances = s.rare_words / (s.rare_words + np.maximum(1, counts))
    chances[[*special_ids(tokenizer), *(tokenizer.bigrams.ids.values() if tokenizer.bigrams else ())]] = 0.0

    def blur(rows: Sequence[Rows], epoch: int, index: int = 0) -> Sequence[Rows]:
        draws = make_generator(seed=s.seed ^ RARE_STREAM, epoch=epoch, index=index)
        return [tuple(np.where(draws.random(len(row)) < chances[row], unknown, row).tolist() for row in many)
                for many in rows]

    return blur


def unknown_token(tokenizer: Tokenizer, key: str, value: float) -> int:
    """The id of what stands for unknown words; QkvError without one, as a setting needs it."""
    if tokenizer.unk_id is None:
        raise QkvError("training.{key}={value}: the vocabulary has no unknown token to put in a word's place; remove "
                       "it", key=key, value=value)
    return tokenizer.unk_id
