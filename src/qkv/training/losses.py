"""What training makes smaller: the summed cross-entropy of the counted tokens of a batch. Next: crossentropy.py."""

import torch
from torch import Tensor

from qkv.core.dropout import Drop, keep
from qkv.core.model import Head, Transformer
from qkv.core.step import Given, begin
from qkv.data.collate import IGNORED, Batch
from qkv.errors import QkvError
from qkv.training.crossentropy import linear_cross_entropy


def token_loss(core: Transformer, batch: Batch, *, smoothing: float = 0.0, drop: Drop = keep) -> Tensor:
    """The sum over counted tokens of (1 - ε)·(-log p) + ε·mean over the vocabulary of (-log p).

    Label smoothing is that of Szegedy et al. 2016, section 7: the label has its own share of ε (in fairseq it has not).
    It is a sum, to be divided once by the tokens of the whole step, so that splitting a step changes nothing.
    """
    return summed(core, states(core, batch, drop), batch, smoothing=smoothing, drop=drop)


def summed(core: Transformer, states: Tensor, batch: Batch, *, smoothing: float = 0.0, drop: Drop = keep) -> Tensor:
    """The loss of a batch whose last `states` [B, T, D] are known: of its words, and of texts with a label."""
    hidden, labels = states.flatten(0, 1), batch.labels.flatten()  # N D, N
    real = (labels != IGNORED).nonzero().squeeze(1)
    if len(real) < len(labels):  # padding never meets the vocabulary's matrix
        hidden, labels = hidden.index_select(0, real), labels[real]
    within(labels, core.spec.vocabulary, "token")
    if len(labels) and isinstance(core.head, Head):
        hidden = core.head.prepare(hidden)
    total = linear_cross_entropy(hidden, core.head, labels, smoothing=smoothing) if len(labels) else hidden.sum() * 0
    return total if batch.classes is None else total + text_loss(core, states, batch, batch.classes, drop)


def text_loss(core: Transformer, states: Tensor, batch: Batch, classes: Tensor, drop: Drop = keep) -> Tensor:
    """The sum over labelled texts of -log p(label), from the last states [B, T, D] and the labels [B]."""
    stack = core.decoder if core.spec.decoder else core.encoder
    step = begin(stack, batch.target, Given(real=batch.target_real), drop=drop)
    logits = core.labels(states, step).float()
    within(classes, logits.shape[-1], "label of a text")
    return torch.nn.functional.cross_entropy(logits, classes, ignore_index=IGNORED, reduction="sum")


def within(labels: Tensor, count: int, what: str) -> None:
    """Refuse labels that are no number from 0 to `count` - 1; on a GPU looking would wait, and torch itself asserts it.

    Raises:
        QkvError: a label out of range, with its place among the labels.
    """
    if labels.device.type != "cpu" or not labels.numel():
        return
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= count)
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise QkvError(f"{what} {place} of the batch is {int(labels[place])}, expected 0 to {count - 1}, or {IGNORED} "
                       "for none: were the data made with another vocabulary or other labels?")  # fmt: skip


def states(core: Transformer, batch: Batch, drop: Drop = keep) -> Tensor:
    """The last states of the model over a batch [B, T, D]; with an encoder and a decoder, teacher forcing."""
    if batch.source is None:
        stack = core.decoder if core.spec.decoder else core.encoder
        # what comes after a causal row cannot reach it, so its padding needs no mask
        ahead = any(m.kind != "causal" for m in stack.masks)
        given = Given(
            real=batch.target_real if ahead else None, documents=batch.documents, segments=batch.segments,
            prefix=batch.prefix, blank=batch.blank,
        )  # fmt: skip
        return core.hidden(batch.target, begin(stack, batch.target, given, drop=drop))
    real = batch.source_real
    if real is not None and bool(real.all()):
        real = None
    memory = core.encode(batch.source, begin(core.encoder, batch.source, Given(real=real), drop=drop))
    given = Given(memory=memory, memory_real=real)
    return core.hidden(batch.target, begin(core.decoder, batch.target, given, drop=drop))


@torch.no_grad()
def mean_loss(core: Transformer, batches: list[Batch], *, smoothing: float = 0.0) -> float:
    """The loss per counted token over some batches, without dropout: what validation reports, in nats."""
    total = sum(float(token_loss(core, b, smoothing=smoothing)) for b in batches)
    return total / max(1, sum(b.tokens for b in batches))
