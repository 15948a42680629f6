"""`Model.embed` and `Model.similarity`: one vector for each text. Letters: B texts, T tokens, D width."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.checkpoints.sentence_transformers import Pooling
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.tasks.batches import Row, last_states, map_batches, prepare_batch
from qkv.tasks.types import Model, Tell, as_list, be_silent, check_not_empty


def embed(model: Model, text: Any, *, prompt: str | None = None, tell: Tell = be_silent) -> Tensor:
    """A vector [D] for a text, or vectors [B, D] for a list of texts; see `Model.embed`."""
    pooling = model.pooling or Pooling()
    before = pooling.find_prompt(prompt)
    many, texts = as_list(text)
    if not texts:
        return torch.empty(0, pooling.dense[-1].weight.shape[0] if pooling.dense else model.spec.stack.width)
    check_not_empty(texts)
    skip = 0 if pooling.pools_prompt or not before else len(without_end(model, model.ids(before)))
    rows = [(ids, list[int]()) for ids in number_texts(model, texts, before, pooling)]
    found = map_batches(rows, lambda ids, _: embed_ids(model.core, ids, pooling, skip), model.device, tell)
    return found if many else found[0]


def number_texts(model: Model, texts: Sequence[Any], before: str, pooling: Pooling) -> list[list[int]]:
    """The ids of each text behind its prompt, cut to as many as the model's directory says, its last mark kept."""
    lines = [before + line if isinstance(line, str) else "" for line in texts]
    lines = [line.lower() for line in lines] if pooling.lower else lines
    rows = model.tokenizer.encode_batch(lines) if model.tokenizer and any(lines) else [[]] * len(lines)
    rows = [ids if isinstance(line, str) and model.tokenizer else model.ids(line)
            for line, ids in zip(texts, rows, strict=True)]
    limit = min((n for n in (pooling.longest, model.spec.stack.longest) if n), default=None)
    if pooling.longest is None or limit is None:
        return rows
    return [ids if len(ids) <= limit else cut_row(ids, len(ids) - len(without_end(model, ids)), limit) for ids in rows]


def cut_row(ids: list[int], marks: int, limit: int) -> list[int]:
    """The first ids with the marks at the end, `limit` together."""
    return ids[: limit - marks] + ids[len(ids) - marks :]


def without_end(model: Model, ids: list[int]) -> list[int]:
    """Ids without what the tokenizer puts behind every text."""
    around = model.tokenizer.encode("") if model.tokenizer else []
    more = 0
    while more < len(around) and ids[-1 - more :] == around[-1 - more :]:
        more += 1
    return ids[: len(ids) - more]


@torch.inference_mode()
def embed_ids(core: Transformer, rows: Sequence[Row], pooling: Pooling, skip: int = 0) -> Tensor:
    """One vector in fp32 for each text [B, D]; rows are padded on the right, and their first `skip` are not pooled."""
    ids, inputs = prepare_batch(core, rows)
    assert inputs.padding_mask is not None
    real = inputs.padding_mask.clone()  # B T
    real[:, :skip] = False
    x = last_states(core, ids, inputs).float()  # B T D
    x = torch.cat([pool_states(x, real, states) for states in pooling.states.split("+")], -1)  # B D
    for dense in pooling.dense:
        x = dense(x)
    return F.normalize(x, dim=-1) if pooling.normalize else x


def pool_states(x: Tensor, real: Tensor, states: str) -> Tensor:
    """One vector for each text [B, D] of its real states (Reimers & Gurevych 2019, section 3)."""
    every = torch.arange(x.shape[1], device=x.device)  # T
    if states in ("first", "last"):
        at = real.int().argmax(1) if states == "first" else (real * every).argmax(1)  # B
        return x[torch.arange(len(x), device=x.device), at]
    if states == "max":
        return x.masked_fill(~real[..., None], -torch.inf).amax(1)
    weights = real * (every + 1 if states == "weighted" else 1)  # B T, later words count more (Muennighoff 2022)
    count = weights.sum(1, keepdim=True)  # B 1
    return (x * weights[..., None]).sum(1) / (count.sqrt() if states == "root" else count)


def compare_vectors(model: Model, first: Any, second: Any) -> Tensor:
    """How alike texts, or vectors, are; see `Model.similarity`."""
    kind = (model.pooling or Pooling()).similarity
    a, b = (torch.atleast_2d(one if isinstance(one, Tensor) and one.is_floating_point() else embed(model, one)).float()
            for one in (first, second))
    if a.shape[-1] != b.shape[-1]:
        raise QkvError("similarity: vectors of {first} numbers and of {second} cannot be compared", first=a.shape[-1],
                       second=b.shape[-1])
    if kind in ("cosine", "dot"):
        return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T if kind == "cosine" else a @ b.T
    return -torch.cdist(a, b, p=1.0 if kind == "manhattan" else 2.0)
