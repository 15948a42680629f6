"""Denoising (BART): restore sentences that were shuffled and whose spans are under one mask each."""

from collections.abc import Sequence

from qkv.data import corrupt
from qkv.model import Model
from qkv.training.objectives import base
from qkv.training.objectives.base import HoldOut, Objective
from qkv.training.objectives.corruption import Corruption, collate_seq2seq, end_ids
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits

STOPS = (".", "!", "?", "。", "！", "？", "…", "\n")


def plan_denoising(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Sentences in a random order, spans of them under one mask each, to be restored (Lewis et al. 2020, 2.2)."""
    tokenizer = base.tokenizer_for(model)
    mask, end, length = base.mask_id(run, tokenizer), end_ids(tokenizer), run.model.context - 2
    stops = frozenset(i for i in range(len(tokenizer)) if tokenizer.decode([i]).rstrip(" ").endswith(STOPS))

    def corrupt_row(ids: list[int], draw: corrupt.Draw) -> tuple[list[int], list[int]]:
        mixed = corrupt.permute_sentences(split_sentences(ids, stops), draw)
        return [*corrupt.infill_spans(mixed, mask, draw)[: length + 1], *end], [*ids, *end]

    return Corruption(length, corrupt_row, collate_seq2seq(tokenizer)).plan(run, splits, model)


def split_sentences(ids: Sequence[int], stops: frozenset[int]) -> list[list[int]]:
    """The ids cut behind each stop."""
    found: list[list[int]] = [[]]
    for i in ids:
        found[-1].append(i)
        if i in stops:
            found.append([])
    return [sentence for sentence in found if sentence]


DENOISE = Objective("denoise", base.TEXTS, (*base.END_TOKENS, "<mask>"), "eos", plan_denoising, base.translate_sources)
