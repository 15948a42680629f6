"""Scheduled sampling: in training a model sometimes reads its own guess where the true word would stand.

Bengio et al. 2015 draw it word by word in an RNN. A Transformer reads all words at once, so it is done in two passes
(Mihaylova & Martins 2019, 3.1): one guesses every word after the true ones, without gradients, and the second learns
with some of those guesses among its inputs. Every core is trained that way here, so that they can be compared.
"""

from dataclasses import replace

import torch
from torch import Tensor

from qkv.core.dropout import make_dropout
from qkv.core.model import Transformer
from qkv.data.collate import IGNORED, Batch
from qkv.errors import QkvError
from qkv.training.losses import predict_tokens, states


def sampling_share(step: int, *, most: float, ramp: int) -> float:
    """The share of inputs that are guesses at a step, which counts from 0: a line up to `most` over `ramp` steps."""
    return most * min(1.0, step / ramp) if ramp else most


@torch.no_grad()
def replace_inputs(core: Transformer, batch: Batch, part: float, *key: int) -> Batch:
    """The batch with a `part` of its true inputs replaced by what the core guesses there (its likeliest word).

    Labels stay. Which inputs is a pure function of `key`, such as (seed, epoch, batch, micro-batch); the part is
    rounded to 1/256. What begins a target, a prefix and padding are never replaced.

    Raises:
        QkvError: the batch does not ask for next words.
    """
    if part <= 0:
        return batch
    there = batch.labels != IGNORED
    asked = there[:, :-1] & there[:, 1:]  # B T-1: the next input is this label's word
    if core.spec.decoder is None or not bool((batch.target[:, 1:] == batch.labels[:, :-1])[asked].all()):
        raise QkvError("training.scheduled_sampling: it replaces the next word's input; these batches ask for hidden "
                       "words or labels. Remove it")
    chosen = asked & draw_cells(asked.shape, part, *key, device=batch.target.device)
    target = batch.target.clone()
    if bool(chosen.any()):
        target[:, 1:][chosen] = predict_tokens(states(core, batch)[:, :-1][chosen], core.head, core.spec.vocabulary)
    return replace(batch, target=target)


def draw_cells(shape: torch.Size, part: float, *key: int, device: torch.device) -> Tensor:
    """True for a `part` of the cells, a function of the key: what a dropout at that rate would drop."""
    drop = make_dropout(*key, 1, device=device)  # one number more than the dropout of the same step
    return drop(torch.ones(shape, device=device), min(part, 255 / 256)) == 0
