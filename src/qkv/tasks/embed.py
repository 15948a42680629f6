"""`Model.embed`: one vector for each text. Letters: B texts, T tokens, D width."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.checkpoints.sentence_transformers import Pooling
from qkv.core.model import Transformer
from qkv.tasks.batches import Row, last_states, map_batches, prepare_batch
from qkv.tasks.types import Model, as_list, check_not_empty


def embed(model: Model, text: Any) -> Tensor:
    """A vector [D] for a text, or vectors [B, D] for a list of texts; see `Model.embed`."""
    many, texts = as_list(text)
    if not texts:
        return torch.empty(0, model.spec.stack.width)
    check_not_empty(texts)
    pooling = model.pooling or Pooling()
    lines = [pooling.prompt + line if isinstance(line, str) else line for line in texts]
    found = map_batches([(model.ids(line), []) for line in lines], lambda ids, _: embed_ids(model.core, ids, pooling))
    return found if many else found[0]


@torch.inference_mode()
def embed_ids(core: Transformer, rows: Sequence[Row], pooling: Pooling) -> Tensor:
    """One vector for each text [B, D] (Reimers & Gurevych 2019, section 3); rows are padded on the right."""
    ids, inputs = prepare_batch(core, rows)
    assert inputs.padding_mask is not None
    real = inputs.padding_mask[..., None]  # B T 1
    x = last_states(core, ids, inputs).float()  # B T D
    if pooling.states == "first":
        x = x[:, 0]  # B D
    elif pooling.states == "last":
        x = x[torch.arange(len(x), device=x.device), inputs.padding_mask.sum(1) - 1]  # B D
    elif pooling.states == "max":
        x = x.masked_fill(~real, -torch.inf).amax(1)  # B D
    else:
        x = (x * real).sum(1) / real.sum(1)  # B D
    return F.normalize(x, dim=-1) if pooling.normalize else x
