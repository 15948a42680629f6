"""Language-model text as rows of one length: random windows of a long text, or whole documents packed side by side."""

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.order import make_generator
from qkv.errors import QkvError


def draw_windows(ids: NDArray[np.integer] | Tensor, *, length: int, rows: int, seed: int, step: int) -> Tensor:
    """Windows of `length + 1` ids (one more than is predicted), drawn again for each step: -> [rows, length + 1] int64.

    Raises:
        QkvError: the text is not longer than a window.
    """
    if len(ids) <= length:
        raise QkvError("the text has {ids} tokens, a window needs {length}: give more text or a shorter length",
                       ids=len(ids), length=length + 1)
    starts = make_generator(seed=seed, epoch=0, index=step).integers(len(ids) - length, size=rows)
    index = starts[:, None] + np.arange(length + 1)  # B T
    if isinstance(ids, Tensor):
        return ids[torch.from_numpy(index).to(ids.device)].long()
    return torch.from_numpy(ids[index].astype(np.int64))


def pack_documents(documents: Sequence[Sequence[int]], length: int, *, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Documents packed into rows, longest first, each where it fits best: ids and numbers, both [rows, length].

    Padding has document number -1. A document longer than a row continues in the next one under the same number.
    """
    parts = [(i, list(d[at : at + length])) for i, d in enumerate(documents) for at in range(0, len(d), length)]
    parts.sort(key=lambda part: -len(part[1]))
    content: list[list[tuple[int, list[int]]]] = []
    room: list[tuple[int, int]] = []  # (free places, row), sorted
    for part in parts:
        at = bisect_left(room, (len(part[1]), -1))
        free, row = room.pop(at) if at < len(room) else (length, len(content))
        if row == len(content):
            content.append([])
        content[row].append(part)
        insort(room, (free - len(part[1]), row))
    ids = torch.full((len(content), length), pad, dtype=torch.long)
    numbers = torch.full((len(content), length), -1, dtype=torch.long)
    for row, held in enumerate(content):
        flat = [(token, number) for number, tokens in held for token in tokens]
        both = torch.tensor(flat, dtype=torch.long)  # T 2
        ids[row, : len(flat)], numbers[row, : len(flat)] = both[:, 0], both[:, 1]
    return ids, numbers
