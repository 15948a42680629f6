"""Texts that are read, not continued: rows of ids as padded batches, and their last states.

Letters: B texts, T tokens, D width.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qkv.core.model import Stack, Transformer
from qkv.core.step import Inputs
from qkv.data.collate import pad_with_mask
from qkv.errors import QkvError
from qkv.generation.decoder import batch_by_length

Row = Sequence[int]
TOKENS = {"cpu": 1024}  # read in one pass, padding included: so many states stay in its cache
MORE_TOKENS = 16_384  # on other devices


def prepare_batch(
    core: Transformer, rows: Sequence[Row], segments: Sequence[Row] | None = None
) -> tuple[Tensor, Inputs]:
    """The ids of texts [B, T], padded on the right, with their mask; a prefix decoder's prefix is all of a text.

    Raises:
        QkvError: a text is longer than the model reads.
    """
    ids, real = pad_with_mask(rows, core.embed.weight.device)
    stack = core.encoder if core.spec.encoder else core.decoder
    check_length(ids.shape[1], stack)
    kinds = None if segments is None else pad_with_mask(segments, ids.device)[0]
    prefix = real.sum(1) if core.spec.architecture == "prefix decoder" else None
    return ids, Inputs(padding_mask=real, segments=kinds, prefix_len=prefix)


def check_length(tokens: int, stack: Stack) -> None:
    """QkvError for more tokens than a stack has positions for."""
    limit = stack.spec.longest
    if limit is not None and tokens > limit:
        raise QkvError("a text has {tokens} tokens, and the model reads at most {limit}; shorten or split it",
                       tokens=tokens, limit=limit)


def last_states(core: Transformer, ids: Tensor, inputs: Inputs) -> Tensor:
    """The last states of texts [B, T, D]: of the encoder if there is one, otherwise of the decoder."""
    return (core.encode if core.spec.encoder else core.hidden)(ids, inputs, mode="prefill")


def map_batches(
    rows: Sequence[tuple[list[int], list[int]]], read: Callable[[list[list[int]], list[list[int]]], Tensor],
    device: torch.device, tell: Callable[[int, int], None] = lambda done, of: None,
) -> Tensor:
    """Stack what `read` makes of rows (ids, segments), in their order; rows of like length are read together."""
    found: dict[int, Tensor] = {}
    for batch in batch_by_length([ids for ids, _ in rows], TOKENS.get(device.type, MORE_TOKENS)):
        found.update(zip(batch, read([rows[r][0] for r in batch], [rows[r][1] for r in batch]), strict=True))
        tell(len(found), len(rows))
    return torch.stack([found[i] for i in range(len(rows))])
