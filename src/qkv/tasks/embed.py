"""`Model.embed`: one vector for each text. Letters: B texts, T tokens, D width."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.model import Transformer
from qkv.tasks.batches import Row, last_states, map_batches, prepare_batch
from qkv.tasks.types import Model, as_list, check_not_empty


def embed(model: Model, text: Any) -> Tensor:
    """A vector [D] for a text, or vectors [B, D] for a list of texts; see `Model.embed`."""
    many, texts = as_list(text)
    if not texts:
        return torch.empty(0, model.spec.stack.width)
    check_not_empty(texts)
    found = map_batches([(model.ids(line), []) for line in texts], lambda ids, _: embed_ids(model.core, ids))
    return found if many else found[0]


@torch.inference_mode()
def embed_ids(core: Transformer, rows: Sequence[Row]) -> Tensor:
    """One vector of length 1 for each text [B, D]: the mean of its states (Reimers & Gurevych 2019, section 3)."""
    ids, inputs = prepare_batch(core, rows)
    assert inputs.padding_mask is not None
    real = inputs.padding_mask[..., None]  # B T 1
    mean = (last_states(core, ids, inputs).float() * real).sum(1) / real.sum(1)  # B D
    return F.normalize(mean, dim=-1)
