"""What training makes smaller: the summed cross-entropy of the counted tokens of a batch. Next: crossentropy.py."""

import torch
from torch import Tensor

from qkv.core.dropout import Drop, keep
from qkv.core.model import Transformer
from qkv.core.step import Given, begin
from qkv.data.collate import IGNORED, Batch
from qkv.training.crossentropy import linear_cross_entropy


def token_loss(core: Transformer, batch: Batch, *, smoothing: float = 0.0, drop: Drop = keep) -> Tensor:
    """The sum over counted tokens of (1 - ε)·(-log p) + ε·mean over the vocabulary of (-log p).

    Label smoothing is that of Szegedy et al. 2016, section 7: the label has its own share of ε (in fairseq it has not).
    It is a sum, to be divided once by the tokens of the whole step, so that splitting a step changes nothing.
    """
    hidden = states(core, batch, drop).flatten(0, 1)  # N D
    labels = batch.labels.flatten()  # N
    real = (labels != IGNORED).nonzero().squeeze(1)
    if len(real) < len(labels):  # padding never meets the vocabulary's matrix
        hidden, labels = hidden.index_select(0, real), labels[real]
    return linear_cross_entropy(hidden, core.head, labels, smoothing=smoothing)


def states(core: Transformer, batch: Batch, drop: Drop = keep) -> Tensor:
    """The last states of the model over a batch [B, T, D]; with an encoder and a decoder, teacher forcing."""
    if batch.source is None:
        stack = core.decoder if core.spec.decoder else core.encoder
        step = begin(stack, batch.target, Given(documents=batch.documents), drop=drop)
        return core.hidden(batch.target, step)
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
