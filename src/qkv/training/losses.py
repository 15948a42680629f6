"""What training makes smaller: the summed cross-entropy of the counted tokens of a batch. Next: crossentropy.py."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.core.dropout import Drop, no_dropout
from qkv.core.model import Head, Transformer, build_step
from qkv.core.step import Inputs
from qkv.data.collate import IGNORED, Batch
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training.crossentropy import linear_cross_entropy


def token_loss(
    core: Transformer, batch: Batch, *, smoothing: float = 0.0, agree: float = 0.0, drop: Drop = no_dropout
) -> Tensor:
    """The sum over counted tokens of (1 - ε)·(-log p) + ε·mean over the vocabulary of (-log p).

    Label smoothing is that of Szegedy et al. 2016, section 7: the label has its own share of ε (in fairseq it has not).
    It is a sum, to be divided once by the tokens of the whole step, so that splitting a step changes nothing.

    With `agree` the batch stands twice in its rows (collate.duplicate_rows), under two draws of dropout, and agree/2
    times the divergence of their predictions, both ways, is added (R-Drop: Liang et al. 2021, equation 3).
    """
    return summed(core, states(core, batch, drop), batch, smoothing=smoothing, agree=agree, drop=drop)


def summed(
    core: Transformer, states: Tensor, batch: Batch, *, smoothing: float = 0.0, agree: float = 0.0,
    drop: Drop = no_dropout,
) -> Tensor:  # fmt: skip
    """The loss of a batch whose last `states` [B, T, D] are known: of its words, and of texts with a label."""
    within(batch.labels, core.spec.vocabulary, "word")
    hidden, labels = states.flatten(0, 1), batch.labels.flatten()  # N D, N
    weight = None if batch.weight is None else batch.weight.flatten()
    every = hidden.device.type != "cpu" and batch.classes is None and batch.tokens == len(labels)
    if not every:  # a GPU would wait for this count
        real = (labels != IGNORED).nonzero().squeeze(1)
        if len(real) < len(labels):  # padding never meets the vocabulary's matrix
            hidden, labels = hidden.index_select(0, real), labels[real]
            weight = None if weight is None else weight[real]
    if len(labels) and isinstance(core.head, Head):
        hidden = core.head.prepare(hidden)
    if not len(labels):
        total = hidden.sum() * 0
    elif weight is None:
        total = linear_cross_entropy(hidden, core.head, labels, smoothing=smoothing, agree=agree)
    else:
        total = weighed(hidden, core.head, labels, weight, smoothing=smoothing, agree=agree)
    return total if batch.classes is None else total + text_loss(core, states, batch, smoothing, agree, drop)


def weighed(
    hidden: Tensor, head: nn.Linear, labels: Tensor, weight: Tensor, *, smoothing: float, agree: float = 0.0
) -> Tensor:  # fmt: skip
    """The cross-entropy of `head(hidden)` [N, D] against `labels` [N], summed with a weight [N] for each.

    The logits exist a chunk of rows at a time; on the way back they are made again. With `agree` the rows are two
    passes over the same words, one after the other.
    """

    def part(h: Tensor, label: Tensor, counts: Tensor) -> Tensor:
        h, label, counts = h.flatten(0, 1), label.flatten(), counts.flatten()
        logits = F.linear(h, head.weight, head.bias).float()
        total = (F.cross_entropy(logits, label, reduction="none", label_smoothing=smoothing) * counts).sum()
        return total + apart(logits, agree, counts[: len(counts) // 2, None]) if agree else total

    passes = 2 if agree else 1
    rows = max(1, 2_500_000 // len(head.weight) // passes)
    parts = (x.unflatten(0, (passes, -1)).split(rows, 1) for x in (hidden, labels, weight))
    return torch.stack([checkpoint(part, *chunk, use_reentrant=False) for chunk in zip(*parts, strict=True)]).sum()


def apart(logits: Tensor, agree: float, counts: Tensor | float = 1.0) -> Tensor:
    """agree / 2 times what the two halves of `logits` [2 N, V] differ by, both ways, summed with `counts` [N, 1]."""
    one, two = logits.log_softmax(-1).chunk(2)
    return agree / 2 * ((one.exp() - two.exp()) * (one - two) * counts).sum()  # KL(1 | 2) + KL(2 | 1)


def text_loss(
    core: Transformer, states: Tensor, batch: Batch, smoothing: float = 0.0, agree: float = 0.0, drop: Drop = no_dropout
) -> Tensor:
    """The sum over labelled texts of -log p(label), from the last states [B, T, D]; see token_loss."""
    assert batch.classes is not None
    logits, classes = text_logits(core, states, batch, drop), batch.classes
    within(classes[:, None], logits.shape[-1], "text")
    total = F.cross_entropy(logits, classes, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return total + apart(logits[classes != IGNORED], agree) if agree else total


def text_logits(core: Transformer, states: Tensor, batch: Batch, drop: Drop = no_dropout) -> Tensor:
    """The logits of the labels of each text [B, labels], from the last states [B, T, D].

    The orders of a text are added, and the one logit of each choice stands beside the others' (Radford et al. 2018,
    section 3.3): [B / orders, labels], or [B / choices, choices].
    """
    step = build_step(core.stack, batch.target, Inputs(padding_mask=batch.target_real), drop=drop)
    logits = core.labels(states, step).float()
    if batch.orders > 1:
        logits = logits.unflatten(0, (-1, batch.orders)).sum(1)
    return logits.view(-1, batch.choices) if batch.choices > 1 else logits


def within(labels: Tensor, count: int, what: str) -> None:
    """Refuse labels [B, T] that are no number below `count`; on a GPU looking would wait, and torch asserts it itself.

    Raises:
        QkvError: a label out of range, with its row and its place in the row.
    """
    if labels.device.type != "cpu" or not labels.numel():
        return
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= count)
    if bool(wrong.any()):
        row, place = wrong.nonzero()[0].tolist()
        where = Message("row {row}", row=row)
        if labels.shape[1] > 1:
            where = Message("row {row}, place {place}", row=row, place=place)
        raise QkvError("the label of a {what} in {where} of the batch is {labels}, expected 0 to {count}, or "
                       "{ignored} for none: were the data made with another vocabulary or other labels?", what=what,
                       where=where, labels=int(labels[row, place]), count=count - 1, ignored=IGNORED)


def states(core: Transformer, batch: Batch, drop: Drop = no_dropout) -> Tensor:
    """The last states of the model over a batch [B, T, D]; with an encoder and a decoder, teacher forcing."""
    if batch.source is None:
        # what comes after a causal row cannot reach it, so its padding needs no mask
        ahead = any(m.kind != "causal" for m in core.stack.masks)
        given = Inputs(
            padding_mask=batch.target_real if ahead else None, document_ids=batch.documents, segments=batch.segments,
            prefix_len=batch.prefix, blank_pos=batch.blank,
        )  # fmt: skip
        return core.hidden(batch.target, given, drop=drop)
    real = batch.source_real
    if real is not None and bool(real.all()):
        real = None
    return core.hidden(batch.target, Inputs(source=batch.source, source_padding_mask=real), drop=drop)


@torch.no_grad()
def mean_loss(core: Transformer, batches: list[Batch], *, smoothing: float = 0.0) -> float:
    """The loss per counted token over some batches, without dropout: what validation reports, in nats."""
    total = sum(float(token_loss(core, b, smoothing=smoothing)) for b in batches)
    return total / max(1, sum(b.tokens for b in batches))
