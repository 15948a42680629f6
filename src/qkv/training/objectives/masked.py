"""Masked words (BERT): some words of a text are hidden and guessed, and its label too where it has one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qkv.data import collate, corrupt
from qkv.model import Model
from qkv.tasks.classify import find_separator
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.objectives import base
from qkv.training.objectives.base import Batches, HoldOut, Objective, Rows
from qkv.training.objectives.corruption import Corruption
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Pair, Splits


def plan_masked(run: Run, splits: Splits, model: Model) -> tuple[Plan, HoldOut]:
    """Masked words (Devlin et al. 2018, section 3.1) of a long text, or of labelled ones."""
    tokenizer = base.tokenizer_for(model)
    # special tokens are never hidden nor put in a hidden word's place
    marks = corrupt.TokenIds(base.mask_id(run, tokenizer), frozenset(base.special_ids(tokenizer)), len(tokenizer))
    if splits.kind == "pairs":
        return plan_labelled(Masker(run, tokenizer, marks, model.labels, find_separator(model)), splits)
    before, behind = ([i] if i is not None else [] for i in (tokenizer.cls_id, tokenizer.sep_id))

    def corrupt_row(ids: list[int], draw: corrupt.Draw) -> tuple[list[int], list[int]]:
        return corrupt.mask_words([*before, *ids, *behind], marks, draw)

    def collate_rows(rows: list[tuple[list[int], list[int]]]) -> collate.Batch:
        return collate.collate_masked(rows, pad=tokenizer.pad_id or 0)

    return Corruption(run.model.context - 2, corrupt_row, collate_rows).plan(run, splits, model)


@dataclass(frozen=True)
class Masker:
    """Texts and labels on their way into masked batches."""

    run: Run
    tokenizer: Tokenizer
    marks: corrupt.TokenIds
    labels: tuple[str, ...]
    separator: str  # for the tab between two texts

    def encode_texts(self, pairs: Sequence[Pair]) -> tuple[Sequence[Rows], list[int]]:
        """Ids and label numbers of (text, label) pairs; a label that training lacks counts as none."""
        known = {name: i for i, name in enumerate(self.labels)}
        rows = base.encode_sources(self.tokenizer, pairs, self.separator)
        return rows, [known.get(name, collate.IGNORED) for _, name in pairs]

    def batch(
        self, rows: Sequence[Rows], classes: list[int], items: Sequence[int], draws: Iterable[corrupt.Draw], width: int
    ) -> collate.Batch:
        """The texts `items`, each with words hidden as a draw of its own says."""
        some = base.take_rows(rows, items)
        hidden = [corrupt.mask_words(row, self.marks, draw) for (row,), draw in zip(some, draws, strict=True)]
        pad = self.tokenizer.pad_id or 0
        width = min(width, self.run.model.context)  # a box may be a little wider than the table of positions is long
        batch = collate.collate_masked(hidden, pad=pad, width=width, separator=self.tokenizer.sep_id)
        return collate.add_labels(batch, [classes[i] for i in items])

    def hold_out(self, pairs: Sequence[Pair]) -> Batches:
        """The batches of held-out texts, always with the same words hidden."""
        rows, classes = self.encode_texts(pairs)
        boxes, draw = base.bucket_rows(base.measure_sides(rows)[:, 0], self.run), corrupt.Draw(0, base.HELD_OUT, 0)
        return tuple(
            self.batch(rows, classes, key, map(draw.at_index, key), boxes.shape(key)[2]) for key in boxes.batches(0)
        )


def plan_labelled(masker: Masker, splits: Splits) -> tuple[Plan, HoldOut]:
    """Texts with words masked again in each epoch, and the label of each text."""
    run = masker.run
    rows, classes = masker.encode_texts(splits.train)  # type: ignore[arg-type]
    lengths = base.measure_sides(rows)[:, 0]
    boxes = base.bucket_rows(lengths, run, splits.often)

    def order(epoch: int) -> Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        seen = Counter[int]()  # a text that comes twice has other words hidden the second time

        def number(item: int) -> int:
            seen[item] += 1
            return item + len(rows) * (seen[item] - 1)

        return [(epoch, items, tuple(map(number, items))) for items in boxes.batches(epoch)]

    def make_batch(key: tuple[int, tuple[int, ...], tuple[int, ...]]) -> collate.Batch:
        epoch, items, numbers = key
        draws = map(corrupt.Draw(run.training.seed, epoch, 0).at_index, numbers)
        return masker.batch(rows, classes, items, draws, boxes.shape(items)[2])

    notes = base.note_long_rows(lengths, base.row_limit(run))
    return Plan(order, make_batch, base.identify_rows(run, rows, classes), notes), masker.hold_out


MASKED = Objective(
    "masked", base.BOTH, base.BERT_TOKENS, "cls", plan_masked, base.classify_sources, ("encoder",), "labels"
)
