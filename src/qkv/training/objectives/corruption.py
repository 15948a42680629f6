"""Plain text with something missing, to be put back: masked words, spans, infilling, blanks, a prefix to go on from.

Windows of one long text, or of token shards, are drawn anew for each step, as a language model's are, and spoilt by
data/corrupt.py; a draw is a function of (seed, step, row), so that a resumed run repeats it. Next: tuning.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from qkv.data import collate, corrupt, packing
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.messages import join
from qkv.model import Model
from qkv.tasks.special_tokens import BLANK_ENDS, start_ids
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.objectives import base
from qkv.training.objectives.base import Batches, Held, Objective
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Splits
from qkv.training.step_loss import measure

SENTINELS = tuple(f"<extra_id_{i}>" for i in range(100))  # as T5 calls them
LEAST = 8  # ids of a window that can lack some
STOPS = (".", "!", "?", "。", "！", "？", "…", "\n")


@dataclass(frozen=True)
class Spoiler:
    """How a window of `length` ids becomes a row, and rows a batch."""

    length: int
    spoil: Callable[[list[int], corrupt.Draw], Any]
    lay: Callable[[list[Any]], collate.Batch]

    def plan(self, run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
        """The batches of a long text; an epoch is as many windows as cover the text once."""
        tokenizer, s = base.tokenizer_for(model), run.training
        if isinstance(splits.train, Mixture):
            ids, room = base.mixture(run, splits, model), base.shortest(splits)
            windows, who = ids.windows, base.identity(run) | ids.identity
        else:
            ids = np.array(tokenizer.encode(str(splits.train), special=False), dtype=np.int32)
            windows, who, room = partial(packing.draw_windows, ids), base.identity(run, ids), len(ids)
        length = min(self.length, room)
        if length < LEAST:
            raise QkvError("{name}: windows of {length} ids are too short to lack some; found {room} ids of text and "
                           "model.context {context}, expected at least 12 of both", name=run.name, length=length,
                           room=room, context=run.model.context)
        rows = max(1, s.tokens // length)
        each = max(1, len(ids) // (rows * length))

        def make(key: int) -> collate.Batch:
            cut = windows(length=length - 1, rows=rows, seed=s.seed, step=key).tolist()
            return self.lay([self.spoil(row, corrupt.Draw(s.seed, key, i)) for i, row in enumerate(cut)])

        def held(part: str | Mixture) -> Batches:
            if isinstance(part, Mixture):
                cut: list[list[int]] = part.held_windows(length=length - 1, most=64 * rows).tolist()
            else:
                found = tokenizer.encode(part, special=False)[: 64 * rows * length]
                cut = [found[at : at + length] for at in range(0, len(found) - LEAST + 1, length)]
            spoilt = [self.spoil(row, corrupt.Draw(0, base.HELD, i)) for i, row in enumerate(cut)]
            return tuple(self.lay(spoilt[at : at + rows]) for at in range(0, len(spoilt), rows))

        return Plan(lambda epoch: range(epoch * each, (epoch + 1) * each), make, who), held


def of_spans(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Spans replaced by sentinels, which the decoder spells out (Raffel et al. 2020, sections 3.1.4 and 3.3.4)."""
    tokenizer = base.tokenizer_for(model)
    found = [i for token in SENTINELS if (i := tokenizer.id(token)) is not None]
    if len(found) < 2:
        raise QkvError("{name}: the vocabulary lacks {sentinels}, {sentinels2}, …, which stand for spans",
                       name=run.name, sentinels=SENTINELS[0], sentinels2=SENTINELS[1])
    end, length = ending(tokenizer), min(run.model.context - 8, 20 * (len(found) - 2))

    def spoil(ids: list[int], draw: corrupt.Draw) -> tuple[list[int], list[int]]:
        source, target = corrupt.corrupt_spans(ids, found, draw)
        return [*source, *end], [*target, *end]

    return Spoiler(length, spoil, translating(tokenizer)).plan(run, splits, model)


def of_noise(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Sentences in a random order, spans of them under one mask each, to be written anew (Lewis et al. 2020, 2.2)."""
    tokenizer = base.tokenizer_for(model)
    mask, end, length = base.masking(run, tokenizer), ending(tokenizer), run.model.context - 2
    stops = frozenset(i for i in range(len(tokenizer)) if tokenizer.decode([i]).rstrip(" ").endswith(STOPS))

    def spoil(ids: list[int], draw: corrupt.Draw) -> tuple[list[int], list[int]]:
        mixed = corrupt.permute_sentences(sentences(ids, stops), draw)
        return [*corrupt.infill_spans(mixed, mask, draw)[: length + 1], *end], [*ids, *end]

    return Spoiler(length, spoil, translating(tokenizer)).plan(run, splits, model)


def of_blanks(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Blanks in a text that is seen freely, filled one after another in a random order (Du et al. 2022, 2.1)."""
    tokenizer = base.tokenizer_for(model)
    mask, (start, end) = base.masking(run, tokenizer), (tokenizer.id(token) for token in BLANK_ENDS)
    if start is None or end is None:
        names = join(" or ", BLANK_ENDS)
        raise QkvError("{name}: the vocabulary lacks {names}, which begin and end what fills a blank", name=run.name,
                       names=names)
    pad = tokenizer.pad_id or 0

    def spoil(ids: list[int], draw: corrupt.Draw) -> corrupt.Blanks:
        return corrupt.blank_spans(ids, mask, (start, end), draw)

    def lay(rows: list[corrupt.Blanks]) -> collate.Batch:
        return collate.collate_blanks(rows, pad=pad)

    return Spoiler(int(run.model.context / 1.31) - 1, spoil, lay).plan(run, splits, model)


def of_masks(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Masked words (Devlin et al. 2018, section 3.1) of a long text, or of labelled ones."""
    if splits.kind == "pairs":
        return base.of_labelled(run, splits, model)
    read = base.masker(run, model)
    tokenizer = read.tokenizer
    around = [[i] if i is not None else [] for i in (tokenizer.cls_id, tokenizer.sep_id)]

    def spoil(ids: list[int], draw: corrupt.Draw) -> tuple[list[int], list[int]]:
        return corrupt.mask_words([*around[0], *ids, *around[1]], read.marks, draw)

    def lay(rows: list[tuple[list[int], list[int]]]) -> collate.Batch:
        return collate.collate_masked(rows, pad=tokenizer.pad_id or 0)

    return Spoiler(run.model.context - 2, spoil, lay).plan(run, splits, model)


def of_continuations(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """A prefix that is seen freely, and what follows it: of pairs, or a window of a text cut at a random place."""
    if splits.kind == "pairs":
        return base.of_prefixes(run, splits, model)
    tokenizer, start = base.tokenizer_for(model), start_ids(model)

    def lay(rows: list[tuple[list[int], list[int]]]) -> collate.Batch:
        return collate.collate_prefixes(rows, pad=tokenizer.pad_id or 0, start=start)

    return Spoiler(run.model.context - len(start), corrupt.split_prefix, lay).plan(run, splits, model)


def ending(tokenizer: Tokenizer) -> list[int]:
    """The end symbol, where there is one."""
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


def translating(tokenizer: Tokenizer) -> Callable[[list[Any]], collate.Batch]:
    """Rows of (source, target) as a batch for teacher forcing."""
    pad = tokenizer.pad_id or 0
    return lambda rows: collate.collate_pairs(rows, pad=pad, start=pad)


def sentences(ids: Sequence[int], stops: frozenset[int]) -> list[list[int]]:
    """The ids cut behind each stop."""
    found: list[list[int]] = [[]]
    for i in ids:
        found[-1].append(i)
        if i in stops:
            found.append([])
    return [sentence for sentence in found if sentence]


ENDED = base.ENDED
SPANS = Objective(base.TEXTS, (*ENDED, *SENTINELS), "eos", of_spans, measure, base.translated)
NOISE = Objective(base.TEXTS, (*ENDED, "<mask>"), "eos", of_noise, measure, base.translated)
BLANKS = Objective(
    base.TEXTS, (*ENDED, "[MASK]", *BLANK_ENDS), "none", of_blanks, measure, base.continued, models=("prefix decoder",)
)
MASKS = Objective(base.BOTH, base.BERT, "cls", of_masks, measure, base.named, "labels", ("encoder",))
CONTINUATIONS = Objective(
    base.BOTH, (*ENDED, "<s>"), "none", of_continuations, measure, base.continued,
    models=("prefix decoder",),
)  # fmt: skip
