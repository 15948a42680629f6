"""From lists of ids to the tensors of one training step; padding is on the right."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.errors import QkvError
from qkv.messages import Message

IGNORED = -100  # a label without loss, as cross_entropy has it


@dataclass(frozen=True)
class Batch:
    """One step's tensors: `target` [B, T] goes in, `labels` [B, T] should come out (-100: no loss).

    `source` [B, S] is the encoder's; `source_real`, `target_real` are True where a token is real, None when all are;
    `documents` [B, T] numbers packed documents, `segments` [B, T] the texts of a pair; the first `prefix` [B] tokens
    are seen freely, and those after them fill the place `blank` ([B], or each token's own [B, T], -1 in the text).
    `classes` [B] label whole texts (-100: none); `weight` [B, T] is what each label of a word counts (None: 1).
    If a text comes in several `orders`, or a question has several `choices`, that many rows share one of `classes`.
    `tokens` counts the labels with a loss, those of texts included; with weights the texts alone.
    """

    target: Tensor
    labels: Tensor
    source: Tensor | None = None
    source_real: Tensor | None = None
    target_real: Tensor | None = None
    documents: Tensor | None = None
    segments: Tensor | None = None
    prefix: Tensor | None = None
    blank: Tensor | None = None
    classes: Tensor | None = None
    weight: Tensor | None = None
    tokens: int = 0
    orders: int = 1
    choices: int = 1

    @property
    def rows(self) -> dict[str, Tensor]:
        """The tensors that have a row for each text, by name; for `classes` it may be a row for several."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}

    def to(self, device: torch.device) -> "Batch":
        """The batch with its tensors on a device; as it is where they are there already."""
        if self.target.device == device:
            return self
        return replace(self, **{name: x.to(device) for name, x in self.rows.items()})


def duplicate_rows(batch: Batch) -> Batch:
    """The batch with all its rows once more below them."""
    both = {name: torch.cat([x, x]) for name, x in batch.rows.items()}
    return replace(batch, **both, tokens=2 * batch.tokens)


def apply_word_dropout(
    batch: Batch, *, share: float, unknown: int, kept: Sequence[int], draws: np.random.Generator
) -> Batch:
    """The batch with `unknown` in place of some of the words that are read, each with the probability `share`.

    The ids `kept` stay, and so does every label: what is not read must still be predicted (Sennrich & Zhang 2019).
    """

    def hide_words(ids: Tensor) -> Tensor:
        drawn = torch.from_numpy(draws.random(tuple(ids.shape), dtype=np.float32) < share)
        return torch.where(drawn & ~torch.isin(ids, torch.tensor(list(kept))), unknown, ids)

    source = None if batch.source is None else hide_words(batch.source)
    return replace(batch, source=source, target=hide_words(batch.target))


def pad_rows(rows: Sequence[Sequence[int]], fill: int, *, width: int | None = None) -> Tensor:
    """Rows of ids filled up on the right to `width`, else to the longest: -> [B, T] int64."""
    longest = max(len(row) for row in rows)
    if width is not None and longest > width:
        raise QkvError("a row of {longest} ids does not fit in the batch's width of {width}", longest=longest,
                       width=width)
    wide = longest if width is None else width
    return torch.tensor([[*row, *[fill] * (wide - len(row))] for row in rows], dtype=torch.long)


def pad_with_mask(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows padded on the right with 0, which a mask hides, and where they are real: two of [B, T]."""
    ids = pad_rows(rows, 0).to(device)
    return ids, torch.arange(ids.shape[1], device=device) < torch.tensor([len(r) for r in rows], device=device)[:, None]


def build_padding_mask(rows: Sequence[Sequence[int]], width: int) -> Tensor | None:
    """[B, T], True where a row has a token; None when every row is full."""
    lengths = torch.tensor([len(row) for row in rows])
    return None if bool((lengths == width).all()) else torch.arange(width) < lengths[:, None]


def collate_pairs(
    pairs_ids: Sequence[tuple[list[int], list[int]]], *, pad: int, start: int, shape: tuple[int, int] | None = None
) -> Batch:
    """Pairs for teacher forcing: the decoder reads `start` and the target but for its last id, and answers the target.

    Target ids end with the end symbol. `shape` is the (S, T) of `Buckets.shape`; without it the longest pair decides.

    Raises:
        QkvError: a pair with an empty side, or one longer than `shape`.
    """
    for i, (source, target) in enumerate(pairs_ids):
        if not source or not target:
            raise QkvError("pair {i} of the batch has an empty {what}: it needs at least its end symbol", i=i,
                           what=Message("target") if source else Message("source"))
    sources, targets = [s for s, _ in pairs_ids], [t for _, t in pairs_ids]
    wide, long = shape or (None, None)
    source = pad_rows(sources, pad, width=wide)
    labels = pad_rows(targets, IGNORED, width=long)
    target = pad_rows([[start, *t[:-1]] for t in targets], pad, width=labels.shape[1])
    return Batch(
        target, labels, source, build_padding_mask(sources, source.shape[1]),
        build_padding_mask(targets, labels.shape[1]), tokens=sum(map(len, targets)),
    )


def collate_answers(
    rows: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], *, pad: int, width: int | None = None
) -> Batch:
    """Rows of ids, each id with its label."""
    target = pad_rows(rows, pad, width=width)
    labels = pad_rows(answers, IGNORED, width=target.shape[1])
    there = build_padding_mask(rows, target.shape[1])
    return Batch(target, labels, target_real=there, tokens=int((labels != IGNORED).sum()))


def collate_windows(windows: Tensor) -> Batch:
    """Windows [B, T + 1] of one text: each id answers the one before it."""
    labels = windows[:, 1:].contiguous()
    return Batch(windows[:, :-1].contiguous(), labels, tokens=labels.numel())


def collate_documents(ids: Tensor, documents: Tensor) -> Batch:
    """Rows [B, T + 1] of packed documents (numbers, -1 for padding): no label crosses from one document to the next."""
    own = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)  # B T
    labels = ids[:, 1:].masked_fill(~own, IGNORED)
    return collate_packed_labels(ids[:, :-1].contiguous(), labels, documents[:, :-1].contiguous())


def collate_masked(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], *, pad: int, width: int | None = None,
    separator: int | None = None,
) -> Batch:
    """Texts with hidden words and their labels, as `corrupt.mask_words` gives them, for an encoder.

    A `separator` within a row ends its first segment.

    Raises:
        QkvError: a row longer than `width`, or labels that are not as many as the ids.
    """
    for i, (ids, labels) in enumerate(rows):
        if len(ids) != len(labels):
            raise QkvError("row {i} of the batch has {ids} ids and {labels} labels, expected as many", i=i,
                           ids=len(ids), labels=len(labels))
    batch = collate_answers([ids for ids, _ in rows], [labels for _, labels in rows], pad=pad, width=width)
    if separator is None:
        return batch
    ends = (batch.target == separator).long()
    return replace(batch, segments=(ends.cumsum(1) - ends).clamp_max(1))  # a separator belongs to what it ends


def mark_shared(ids: Tensor, segments: Tensor, special: Iterable[int | None]) -> Tensor:
    """The segments of two texts [B, T], 2 more where the other text has the same token (Chen et al. 2017, section 3.2).

    `special` tokens are never marked.
    """
    same = (ids[:, :, None] == ids[:, None]) & (segments[:, :, None] != segments[:, None])  # B T T
    plain = ~torch.isin(ids, torch.tensor([i for i in special if i is not None], device=ids.device))  # B T
    return segments + 2 * (same.any(-1) & plain)


def add_labels(batch: Batch, classes: Sequence[int], *, orders: int = 1, choices: int = 1) -> Batch:
    """The batch with a label for each of its texts; -100 means no label.

    With `orders` so many rows are one text; with `choices` they are the answers to one question, and the label says
    which of them is right.

    Raises:
        QkvError: not one label for each text.
    """
    if len(classes) * orders * choices != len(batch.target):
        each = Message("{count} rows", count=orders * choices) if orders * choices > 1 else Message("one")
        raise QkvError("found {classes} labels for {target} texts, expected {each} each", classes=len(classes),
                       target=len(batch.target), each=each)
    known = torch.tensor(list(classes), dtype=torch.long)
    tokens = batch.tokens + int((known != IGNORED).sum())
    return replace(batch, classes=known, orders=orders, choices=choices, tokens=tokens)


def collate_prefixes(
    pairs_ids: Sequence[tuple[Sequence[int], Sequence[int]]], *, pad: int, start: Sequence[int] = (),
    width: int | None = None,
) -> Batch:
    """Pairs for a prefix decoder: the source is a bidirectional prefix without loss, the target is learnt.

    `start` ids begin what follows; without them the last id that is given answers its first.

    Raises:
        QkvError: a pair with an empty side, or one longer than `width`.
    """
    for i, (given, following) in enumerate(pairs_ids):
        if not given or not following:
            missing = Message("to say") if given else Message("given")
            raise QkvError("pair {i} of the batch has nothing {missing}, expected at least one id", i=i,
                           missing=missing)
    rows = [[*given, *start, *following[:-1]] for given, following in pairs_ids]
    answers = [[IGNORED] * (len(given) + len(start) - 1) + list(following) for given, following in pairs_ids]
    batch = collate_answers(rows, answers, pad=pad, width=width)
    return replace(batch, prefix=torch.tensor([len(given) for given, _ in pairs_ids]))


@dataclass(frozen=True)
class Blanks:
    """A text with blanks and what fills them, in one row: `ids` go in, `labels` should come out.

    The first `prefix` ids are the text; then each blank's words in a random order of blanks. `positions` [2, T] says
    where each id stands in the text (those of a blank at its mask) and how far it is within its blank (0 in the text).
    """

    ids: list[int]
    labels: list[int]
    prefix: int
    positions: NDArray[np.int64]


def collate_blanks(rows: Sequence[Blanks], *, pad: int, width: int | None = None) -> Batch:
    """Texts with blanks for a prefix decoder: the text is seen freely, and each blank's words know their place.

    Raises:
        QkvError: a row longer than `width`.
    """
    batch = collate_answers([row.ids for row in rows], [row.labels for row in rows], pad=pad, width=width)
    own = [[*[-1] * row.prefix, *row.positions[0, row.prefix :].tolist()] for row in rows]
    prefix = torch.tensor([row.prefix for row in rows])
    return replace(batch, prefix=prefix, blank=pad_rows(own, -1, width=batch.target.shape[1]))


def collate_labelled_text(rows: Sequence[Sequence[int]], *, pad: int, share: float, width: int | None = None) -> Batch:
    """Texts for a decoder that labels them and learns to say them too: a text's words count `share` together.

    `tokens` stays 0 until `add_labels` counts the texts, so that the loss is a mean over texts, whatever their length
    (Radford et al. 2018, section 3.2, as its authors' code has it).
    """
    says = [[*row[1:], IGNORED] if share else [IGNORED] * len(row) for row in rows]
    batch = collate_answers(rows, says, pad=pad, width=width)
    weight = torch.tensor([share / max(1, len(row) - 1) for row in rows])[:, None]
    return replace(batch, weight=weight.expand_as(batch.target).contiguous(), tokens=0)


def collate_packed_labels(ids: Tensor, labels: Tensor, documents: Tensor) -> Batch:
    """Packed rows [B, T] whose labels are known: `collate_documents` for texts of which only a part is learnt."""
    there = documents >= 0
    return Batch(
        ids, labels, target_real=None if bool(there.all()) else there, documents=documents,
        tokens=int((labels != IGNORED).sum()),
    )
