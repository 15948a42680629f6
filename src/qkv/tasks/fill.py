"""`Model.fill`: the likeliest words for each mask in a text. Letters: V vocabulary."""

import torch
from torch import Tensor

from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.tasks.batches import Row, last_states, prepare_batch
from qkv.tasks.describe import describe_use
from qkv.tasks.types import Model


def fill(model: Model, text: str, *, top: int) -> list[list[tuple[str, float]]]:
    """For each mask in a text the `top` likeliest words with their probabilities; see `Model.fill`."""
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.mask_id is None:
        raise QkvError("fill needs a model that was trained on masked words, and this one's tokenizer has no mask "
                       "token; it is {kind}", kind=describe_use(model.spec))
    probs = fill_ids(model.core, model.ids(text), tokenizer.mask_id)
    best = probs.topk(min(top, probs.shape[-1]))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[(w.strip(), p) for w, p in zip(tokenizer.pieces(ids), values, strict=True)] for ids, values in rows]


@torch.inference_mode()
def fill_ids(core: Transformer, ids: Row, mask: int) -> Tensor:
    """The distribution over the vocabulary at each `mask` in one text: [masks, V] (Devlin et al. 2018, 3.1).

    Raises:
        QkvError: the model has no encoder with a head, or the text holds no mask.
    """
    if core.spec.decoder or core.spec.head is None:
        raise QkvError("fill needs an encoder with an output head; this is {kind}", kind=describe_use(core.spec))
    places = [i for i, token in enumerate(ids) if token == mask]
    if not places:
        raise QkvError("the text has no mask to fill: put [MASK] (the tokenizer's mask token) where a word is missing")
    return core.head(last_states(core, *prepare_batch(core, [ids]))[0, places]).float().softmax(-1)
