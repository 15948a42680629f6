"""Sequence to sequence: the target of a pair after its source, with teacher forcing."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from qkv.data import bucket, collate
from qkv.errors import Note
from qkv.model import Model
from qkv.training.objectives import augment, base
from qkv.training.objectives.base import Batches, HoldOut, Ids, Objective
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Pair, Splits

SILENT = -30.0  # the bias of a word that is never said: e^-30 is nothing beside 1


def plan_pairs(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Batches of pairs of like length, for teacher forcing; with dropout of merges each epoch has cuts of its own."""
    tokenizer, s, context = base.tokenizer_for(model), run.training, run.model.context
    pad, longest = tokenizer.pad_id or 0, min(context, s.tokens // 8 * 8)

    def bucket_pairs(both: list[Ids], often: np.ndarray | None = None) -> bucket.Buckets:
        sides = [(len(a), len(b)) for a, b in both]
        return bucket.Buckets(sides, tokens=s.tokens, longest=longest, seed=s.seed, often=often)

    def maker(both: list[Ids], boxes: bucket.Buckets) -> Callable[[Any], collate.Batch]:
        # a box may be a little wider than the table of positions is long
        def box(key: tuple[int, ...]) -> tuple[int, int]:
            _, wide, long = boxes.shape(key)
            return min(wide, context), min(long, context)

        return lambda key: collate.seq2seq([both[i] for i in key], pad=pad, start=pad, shape=box(key))

    def hold_out(pairs: Sequence[Pair]) -> Batches:
        both = base.encode_pairs(tokenizer, pairs)
        boxes = bucket_pairs(both)
        return tuple(map(maker(both, boxes), boxes.batches(0)))

    ids = base.encode_pairs(tokenizer, splits.train)  # type: ignore[arg-type]
    who = base.identify(run, base.flatten_ids(side for pair in ids for side in pair))
    notes = base.note_long_rows([max(map(len, pair)) for pair in ids], longest)
    if run.tokenizer.bpe_dropout:
        cuts = augment.recut_items(run, tokenizer, splits.train, ids, longest)  # type: ignore[arg-type]
        plan = augment.plan_by_epoch(cuts, partial(bucket_pairs, often=splits.often), maker, who)
        return augment.mask_words(dataclasses.replace(plan, notes=notes), s, tokenizer), hold_out
    boxes = bucket_pairs(ids, splits.often)
    plan = restrict_outputs(Plan(boxes.batches, maker(ids, boxes), who, notes), run, model, [b for _, b in ids])
    return augment.mask_words(plan, s, tokenizer), hold_out


def restrict_outputs(plan: Plan, run: Run, model: Model, targets: Sequence[list[int]]) -> Plan:
    """The plan of a run that says what its targets say, where it asks for that; the other words of `model` fall silent.

    Their biases are so low that nothing of a softmax is left for them: what the loss leaves out is below its rounding.
    """
    if run.training.outputs == "all":
        return plan
    head: torch.nn.Linear = model.core.head
    words = torch.from_numpy(np.unique(base.flatten_ids(targets)))
    others = torch.ones(len(head.weight), dtype=torch.bool, device=head.weight.device)
    others[words.to(others.device)] = False
    with torch.no_grad():
        head.bias.masked_fill_(others, SILENT)
    told = Note(f"answers are chosen among the {len(words):,} of {len(others):,} words that training targets hold",
                zh=f"答案只从训练目标中出现过的 {len(words):,} 个词元（共 {len(others):,} 个）里选")  # fmt: skip
    return dataclasses.replace(
        plan, make=lambda key: dataclasses.replace(plan.make(key), words=words), notes=(*plan.notes, told)
    )


def unfreeze_biases(run: Run, model: Model) -> tuple[Note, ...]:
    """Let the words that a base was trained never to say be learnt again; tells how many, nothing where there are none.

    Adapters stand beside a base that stays as it is.
    """
    bias = getattr(getattr(model.core, "head", None), "bias", None)  # a classifier has no head
    if not run.base or run.training.lora.rank or bias is None:
        return ()
    with torch.no_grad():
        silent = bias < SILENT / 2
        count = int(silent.sum())
        if count in (0, len(bias)):
            return ()
        bias[silent] = bias[~silent].mean()
    return (Note(f"the base never says {count:,} of its {len(bias):,} words (outputs=seen): they can be learnt now",
                 zh=f"基础模型从不说 {len(bias):,} 个词元中的 {count:,} 个（outputs=seen）：现在可以学"),)  # fmt: skip


PAIRS = Objective("pairs", "pairs", base.END_TOKENS, "eos", plan_pairs, base.translate_sources,
                  measure=base.measure_perplexity, bpe_dropout=True)  # fmt: skip
