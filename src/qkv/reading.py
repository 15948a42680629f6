"""What a model makes of a text without writing: its states averaged, its label, its guesses for blanks, its chance.

Functions of a core and ids; model.py gives them texts. Letters: B texts, T tokens, D width, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.model import Transformer
from qkv.core.step import Given, begin
from qkv.data.collate import filled
from qkv.errors import QkvError
from qkv.uses import kind


def read(
    core: Transformer, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None
) -> tuple[Tensor, Given]:
    """The ids of texts [B, T], padded on the right, with what a model is told of them; a free prefix is all of a text.

    Raises:
        QkvError: a text is longer than the model reads.
    """
    ids, real = filled(rows, core.embed.weight.device)
    stack = core.encoder if core.spec.encoder else core.decoder
    limit = stack.spec.longest
    if limit is not None and ids.shape[1] > limit:
        raise QkvError("a text has {shape} tokens, and the model reads at most {limit}; shorten or split it",
                       shape=ids.shape[1], limit=limit)
    kinds = None if segments is None else filled(segments, ids.device)[0]
    free = real.sum(1) if any(m.kind == "prefix" for m in stack.masks) else None
    return ids, Given(real=real, segments=kinds, prefix=free)


def states(core: Transformer, ids: Tensor, given: Given) -> Tensor:
    """The last states of texts [B, T, D]: of the encoder where there is one, else of the decoder."""
    step = begin(core.encoder if core.spec.encoder else core.decoder, ids, given, mode="prefill")
    return core.encode(ids, step) if core.spec.encoder else core.hidden(ids, step)


@torch.inference_mode()
def embed(core: Transformer, rows: Sequence[Sequence[int]]) -> Tensor:
    """One vector of length 1 for each text [B, D]: the mean of its states (Reimers & Gurevych 2019, section 3)."""
    ids, given = read(core, rows)
    assert given.real is not None
    real = given.real[..., None]  # B T 1
    mean = (states(core, ids, given).float() * real).sum(1) / real.sum(1)  # B D
    return F.normalize(mean, dim=-1)


def classify(
    core: Transformer, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None,
    start: int | None = None,
) -> Tensor:  # fmt: skip
    """The probability of each label for each text [B, labels]; see `judge`."""
    return judge(core, rows, segments, start).softmax(-1)


@torch.inference_mode()
def judge(
    core: Transformer, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None,
    start: int | None = None,
) -> Tensor:  # fmt: skip
    """The logit of each label for each text [B, labels].

    An encoder-decoder reads the text on both sides, the decoder behind its `start` id.

    Raises:
        QkvError: the model has no labels, a text is too long, or an encoder-decoder's start id is missing.
    """
    if core.spec.labels is None:
        raise QkvError("this model has no labels: it was not made to classify; train one, or load a "
                       "classifier")
    ids, given = read(core, rows, segments)
    if not (core.spec.encoder and core.spec.decoder):
        step = begin(core.encoder if core.spec.encoder else core.decoder, ids, given, mode="prefill")
        return core.classify(ids, step).float()
    if start is None:
        raise QkvError("this encoder-decoder says no decoder_start_token_id; add it to its config.json")
    memory = states(core, ids, given)
    ids = F.pad(ids[:, :-1], (1, 0), value=start)
    step = begin(core.decoder, ids, Given(real=given.real, memory=memory, memory_real=given.real), mode="prefill")
    return core.classify(ids, step).float()


@torch.inference_mode()
def fill(core: Transformer, ids: Sequence[int], mask: int) -> Tensor:
    """The distribution over the vocabulary at each place of `mask` in one text: [places, V] (Devlin et al. 2018, 3.1).

    Raises:
        QkvError: the model has no encoder with a head, or the text holds no mask.
    """
    if core.spec.decoder or core.spec.head is None:
        raise QkvError("fill needs an encoder that says words; this is {kind}", kind=kind(core.spec))
    places = [i for i, token in enumerate(ids) if token == mask]
    if not places:
        raise QkvError("the text has no mask to fill: put [MASK] (the tokenizer's mask token) where a word is "
                       "missing")
    return core.head(states(core, *read(core, [ids]))[0, places]).float().softmax(-1)


@torch.inference_mode()
def chance(
    core: Transformer, said: Sequence[int], source: Sequence[int] = (), *, start: Sequence[int] = (),
    blank: int | None = None,
) -> float:  # fmt: skip
    """The summed log-probability of what is said, each token after those before it (teacher forcing).

    It is said after a `source`, which an encoder or a free prefix reads whole, and the ids of `start`; without a source
    the first token is given. `blank` is the place in a free prefix that it fills.

    Raises:
        QkvError: the model says no words, nothing is said, or more is read than its positions hold.
    """
    spec = core.spec
    if spec.decoder is None or spec.head is None:
        raise QkvError("score needs a decoder that says words; this is {kind}", kind=kind(spec))
    stack, given = core.decoder, Given()
    if spec.encoder:
        given, source = Given(memory=states(core, *read(core, [source]))), ()
    elif source and any(m.kind == "prefix" for m in stack.masks):
        device = core.embed.weight.device
        given = Given(prefix=torch.tensor([len(source)], device=device),
                      blank=None if blank is None else torch.tensor([blank], device=device))  # fmt: skip
    elif not source:
        source, said = said[:1], said[1:]
    if not said:
        raise QkvError("score needs a text of at least two tokens: the first is given, the others are scored")
    row, limit = torch.tensor([[*source, *start, *said[:-1]]], device=core.embed.weight.device), stack.spec.longest
    if limit is not None and row.shape[1] > limit:
        raise QkvError("a text has {shape} tokens, and the model reads at most {limit}; shorten or split it",
                       shape=row.shape[1], limit=limit)
    state = core.hidden(row, begin(stack, row, given, mode="prefill"))[0, -len(said) :]  # T D
    logprobs = core.head(state).float().log_softmax(-1)  # T V
    return logprobs.gather(-1, torch.tensor(said, device=logprobs.device)[:, None]).sum().item()
