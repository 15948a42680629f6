"""Labels of texts: a class for each; a decoder learns the words of the texts beside them.

Similarity of two texts, and the choice among answers, make several rows of a text, which share a label.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from qkv.data import bucket, collate
from qkv.data.collate import IGNORED
from qkv.data.columns import note_single_labels
from qkv.data.mapped_rows import MappedRows
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.model import Model
from qkv.tasks.classify import find_separator
from qkv.tasks.task_format import SEPARATOR, mark_pair
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.losses import states, text_logits
from qkv.training.objectives import augment, base
from qkv.training.objectives.base import Batches, Decoding, HoldOut, Objective, Rows
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Pair, Splits


@dataclass(frozen=True)
class Layout:
    """The rows that a text becomes; where they are several, `shares` is the field of Batch that says how many."""

    rows_of: Callable[[str], list[str]] = lambda text: [text]
    shares: str = ""

    def split(self, text: str, each: int, known: Mapping[str, int], label: str) -> list[str]:
        """The rows of a text.

        Raises:
            QkvError: their number differs from that of the first text, or the label is not one of the choices.
        """
        rows = self.rows_of(text)
        choices = self.shares == "choices"
        if len(rows) != each or (self.shares == "orders" and SEPARATOR not in text) or (choices and each < 2):
            parts = Message("two texts")
            if self.shares != "orders":
                parts = Message("a question and {each} answers", each=max(each, 2))
            raise QkvError("{text!r}: expected {parts} with {separator} between", text=text[:60], parts=parts,
                           separator=SEPARATOR.strip())
        if choices and label not in known:
            raise QkvError("{text!r}: found the label {label!r}, expected the number of the right answer, 0 to {each}",
                           text=text[:60], label=label, each=each - 1)
        return rows


@dataclass(frozen=True)
class Labeller:
    """Texts and labels on their way into batches; a text becomes `each` rows, whose words count `share` of a label."""

    run: Run
    tokenizer: Tokenizer
    layout: Layout
    each: int
    known: Mapping[str, int]
    share: float
    separator: str  # for the tab between two texts
    shared: bool = False  # whether words that both have are marked

    def mark(self, text: str) -> str:
        """A text, or two, as the tokenizer reads it."""
        return mark_pair(text, self.separator)

    def encode_texts(self, pairs: Sequence[Pair]) -> tuple[Any, Sequence[Rows], list[int], Sequence[int]]:
        """Of (text, label) pairs the rows as texts and as ids, the numbers of the labels, and the rows' true lengths.

        A label that training lacks counts as none. Texts on disk are not held, and their ids are on disk too.
        """
        each = self.each
        if isinstance(pairs, MappedRows) and not self.layout.shares:
            mapped: Any = base.encode_sources(self.tokenizer, pairs, self.separator)
            classes = [self.known.get(name, IGNORED) for _, name in pairs]
            return ([self.mark(text)] for text, _ in pairs), mapped, classes, mapped.lengths[:, 0]
        texts = [self.layout.split(self.mark(text), each, self.known, label) for text, label in pairs]
        whole = self.tokenizer.encode_batch([row for many in texts for row in many])
        ids = base.truncate_rows(whole, self.run.model.context)
        rows: list[Rows] = [tuple(ids[i : i + each]) for i in range(0, len(ids), each)]
        return texts, rows, [self.known.get(name, IGNORED) for _, name in pairs], list(map(len, whole))

    def bucket_texts(self, rows: Sequence[Rows], often: np.ndarray | None = None) -> bucket.Buckets:
        """Batches of texts of like length."""
        s, longest = self.run.training, np.minimum(base.measure_sides(rows).max(1), self.run.model.context)
        room = max(s.tokens // self.each, self.run.model.context + 4)
        return bucket.Buckets(np.stack([longest, longest], 1), tokens=room, seed=s.seed, often=often)

    def maker(
        self, rows: Sequence[Rows], boxes: bucket.Buckets, classes: list[int],
        change: Callable[[Rows, int], Rows] = lambda row, number: row,
    ) -> Callable[[Any], collate.Batch]:
        """What makes a batch of the texts of a key; `change` makes of a row and its number the one that is read."""
        shares: dict[str, Any] = {self.layout.shares: self.each} if self.layout.shares else {}

        def make_batch(key: tuple[int, ...]) -> collate.Batch:
            # a box may be a little wider than the table of positions is long
            width = min(boxes.shape(key)[2], self.run.model.context)
            changed = map(change, base.take_rows(rows, key), key)
            some = base.truncate_rows([row for many in changed for row in many], width)
            made = collate_texts(self.tokenizer, some, self.share, width, shared=self.shared)
            return collate.add_labels(made, [classes[i] for i in key], **shares)

        return make_batch

    def hold_out(self, pairs: Sequence[Pair]) -> Batches:
        """The batches of held-out texts."""
        _, rows, classes, _ = self.encode_texts(pairs)
        boxes = self.bucket_texts(rows)
        return tuple(map(self.maker(rows, boxes, classes), boxes.batches(0)))


def plan_labels(run: Run, splits: Splits, model: Model, *, layout: Layout = Layout()) -> tuple[Plan, HoldOut]:
    """Texts and their labels; a decoder learns its texts' words too, as much as `training.auxiliary` says.

    Radford et al. 2018, section 3.2, equation 5; an encoder learns labels alone (Devlin et al. 2018, section 3.2).
    `layout` gives the rows that a text becomes (their section 3.3), as many of each.
    """
    tokenizer, s, context = base.tokenizer_for(model), run.training, run.model.context
    separator = SEPARATOR if layout.shares else find_separator(model)
    each = len(layout.rows_of(mark_pair(splits.train[0][0], separator)))  # type: ignore[index]
    names = map(str, range(each)) if layout.shares == "choices" else model.labels
    known = {name: i for i, name in enumerate(names)}
    share = s.auxiliary / max(1, each) if model.spec.decoder and model.spec.head else 0.0
    shared = bool((model.config or {}).get("shared_words"))
    labeller = Labeller(run, tokenizer, layout, each, known, share, separator, shared)
    texts, rows, classes, lengths = labeller.encode_texts(splits.train)  # type: ignore[arg-type]
    who = base.identify_rows(run, rows, classes)
    notes = base.note_long_rows(lengths, context, ends=True)
    if isinstance(splits.train, MappedRows):  # of which kind.py has seen only some
        counts = Counter(label.strip() for part in (splits.train, splits.valid) for _, label in part)  # type: ignore[misc]
        notes += tuple(note for note in note_single_labels(counts) if note not in run.about)
    if run.tokenizer.bpe_dropout or s.word_dropout or s.rare_words:
        recut = augment.recut_items(run, tokenizer, list(texts), rows, context) if run.tokenizer.bpe_dropout else None
        remove = partial(augment.remove_words, tokenizer=tokenizer, share=s.word_dropout, seed=s.seed)
        blur = augment.blur_rare_words(rows, tokenizer, s)
        make_boxes = partial(labeller.bucket_texts, often=splits.often)

        def change(some: Sequence[Rows], *draw: int) -> Sequence[Rows]:
            return blur(remove(some, *draw), *draw)

        if isinstance(rows, MappedRows) and not recut:
            boxes = make_boxes(rows)
            plan = augment.plan_on_reading(boxes, partial(labeller.maker, rows, boxes, classes), change, who)
        else:
            plan = augment.plan_by_epoch(lambda epoch: change(recut(epoch) if recut else rows, epoch),
                                         make_boxes, partial(labeller.maker, classes=classes), who)
        return replace(plan, notes=notes), labeller.hold_out
    boxes = labeller.bucket_texts(rows, splits.often)
    return Plan(boxes.batches, labeller.maker(rows, boxes, classes), who, notes), labeller.hold_out


def collate_texts(
    tokenizer: Tokenizer, rows: list[list[int]], share: float, width: int | None, *, shared: bool = False
) -> collate.Batch:
    """Rows of ids as a batch in which no word is learnt, or each by its share; words that two texts have are marked."""
    pad = tokenizer.pad_id or 0
    if share:
        return collate.collate_labelled_text(rows, pad=pad, share=share, width=width)
    silent = [(row, [IGNORED] * len(row)) for row in rows]
    batch = collate.collate_masked(silent, pad=pad, width=width, separator=tokenizer.sep_id)
    if not shared or batch.segments is None:
        return batch
    return replace(batch, segments=collate.mark_shared(batch.target, batch.segments, tokenizer.special_ids))


@torch.inference_mode()
def judge_rows(model: Model, sources: Sequence[str], how: Decoding, *, layout: Layout) -> list[str]:
    """The label of each text that becomes several rows, or the number of the answer to each question."""
    tokenizer, said = base.tokenizer_for(model), list[str]()
    for text in sources:
        rows = layout.rows_of(mark_pair(text, SEPARATOR))
        ids = base.truncate_rows(tokenizer.encode_batch(rows), model.spec.context)
        shares: dict[str, Any] = {layout.shares: len(ids)}
        batch = replace(collate_texts(tokenizer, ids, 0.0, None), **shares).to(model.device)
        best = int(text_logits(model.core, states(model.core, batch), batch).argmax())
        said.append(str(best) if layout.shares == "choices" else model.labels[best])
    return said


def swap_texts(text: str) -> list[str]:
    """Two texts in both orders, as which is first says nothing of how alike they are (Radford et al. 2018, 3.3)."""
    return [text, SEPARATOR.join(reversed(text.split(SEPARATOR)))]


def pair_answers(text: str) -> list[str]:
    """A question with each of its answers, of which the label is the number (Radford et al. 2018, section 3.3)."""
    question, *answers = text.split(SEPARATOR)
    return [f"{question}{SEPARATOR}{answer}" for answer in answers]


LABELS = Objective("labels", "pairs", base.END_TOKENS, "none", plan_labels, base.classify_sources,
                   ("encoder", "causal decoder"), "labels", bpe_dropout=True, labels_texts=True)
SIMILARITY, CHOICE = (
    replace(LABELS, name=name, plan=partial(plan_labels, layout=layout), answer=partial(judge_rows, layout=layout))
    for name, layout in (("similarity", Layout(swap_texts, "orders")), ("choice", Layout(pair_answers, "choices")))
)
