"""What a model makes of a text without writing: its states averaged, its label, its guesses for blanks, its chance.

Functions of a core and ids; hub.py gives them texts. Letters: B texts, T tokens, D width, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.model import Transformer
from qkv.core.step import Given, begin
from qkv.errors import QkvError


def filled(rows: Sequence[Sequence[int]], device: torch.device, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Unequal rows as one tensor [B, T] padded on the right, and where it is real; none longer than `limit`."""
    length = torch.tensor([len(row) for row in rows], device=device)
    longest = int(length.max())
    if limit is not None and longest > limit:
        raise QkvError(f"a text has {longest} tokens, and the model reads at most {limit}; shorten or split it")
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    return ids, torch.arange(longest, device=device)[None] < length[:, None]


def states(core: Transformer, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> Tensor:
    """The last states of texts [B, T, D]: of the encoder where there is one, else of the decoder."""
    stack = core.encoder if core.spec.encoder else core.decoder
    ids, real = filled(rows, core.embed.weight.device, stack.spec.longest)
    kinds = None if segments is None else filled(segments, ids.device)[0]
    step = begin(stack, ids, Given(real=real, segments=kinds), mode="prefill")
    return core.encode(ids, step) if core.spec.encoder else core.hidden(ids, step)


@torch.inference_mode()
def embed(core: Transformer, rows: Sequence[Sequence[int]]) -> Tensor:
    """One vector of length 1 for each text [B, D]: the mean of its states (Reimers & Gurevych 2019, section 3)."""
    real = filled(rows, core.embed.weight.device)[1][..., None]  # B T 1
    mean = (states(core, rows).float() * real).sum(1) / real.sum(1)  # B D
    return F.normalize(mean, dim=-1)


@torch.inference_mode()
def classify(
    core: Transformer, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None,
    start: int | None = None,
) -> Tensor:  # fmt: skip
    """The probability of each label for each text [B, labels]; an encoder-decoder reads the text on both sides.

    Raises:
        QkvError: the model has no labels, or a text is too long.
    """
    if core.spec.labels is None:
        raise QkvError("this model has no labels: it was not made to classify; train one, or load a classifier")
    if core.spec.encoder and core.spec.decoder:
        ids, real = filled(rows, core.embed.weight.device)
        memory = states(core, rows)
        ids = F.pad(ids[:, :-1], (1, 0), value=ids[0, 0].item() if start is None else start)
        step = begin(core.decoder, ids, Given(real=real, memory=memory, memory_real=real), mode="prefill")
        return core.labels(core.hidden(ids, step), step).float().softmax(-1)
    stack = core.encoder if core.spec.encoder else core.decoder
    ids, real = filled(rows, core.embed.weight.device, stack.spec.longest)
    kinds = None if segments is None else filled(segments, ids.device)[0]
    step = begin(stack, ids, Given(real=real, segments=kinds))
    return core.classify(ids, step).float().softmax(-1)


@torch.inference_mode()
def fill(core: Transformer, ids: Sequence[int], mask: int) -> Tensor:
    """The distribution over the vocabulary at each place of `mask` in one text: [places, V] (Devlin et al. 2018, 3.1).

    Raises:
        QkvError: the model has no encoder with a head, or the text holds no mask.
    """
    if core.spec.decoder or core.spec.head is None:
        raise QkvError("fill needs an encoder trained on masked words; a decoder continues a text: use generate")
    places = [i for i, token in enumerate(ids) if token == mask]
    if not places:
        raise QkvError("the text has no mask to fill: put [MASK] (the tokenizer's mask token) where a word is missing")
    return core.head(states(core, [ids])[0, places]).float().softmax(-1)


@torch.inference_mode()
def chance(core: Transformer, ids: Sequence[int]) -> float:
    """The summed log-probability of a text's tokens after its first, under a causal decoder."""
    if core.spec.encoder or core.spec.decoder is None or core.spec.head is None:
        raise QkvError("score needs a causal decoder")
    if len(ids) < 2:
        raise QkvError("score needs a text of at least two tokens: the first is given, the others are scored")
    logprobs = core.head(states(core, [ids])[0, :-1]).float().log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(ids[1:], device=logprobs.device)[:, None]).sum().item()
