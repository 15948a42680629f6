"""Language-model text as rows of one length: random windows of a long text, or whole documents packed side by side."""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

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


def lay_documents(lengths: Sequence[int], length: int) -> list[list[tuple[int, int]]]:
    """Which documents are in each row, longest first, each where it fits best: (its number, where its part begins)."""
    parts = [(i, at) for i, size in enumerate(lengths) for at in range(0, size, length)]
    parts.sort(key=lambda part: -min(length, lengths[part[0]] - part[1]))
    content: list[list[tuple[int, int]]] = []
    room: list[tuple[int, int]] = []  # (free places, row), sorted
    for number, start in parts:
        size = min(length, lengths[number] - start)
        at = bisect_left(room, (size, -1))
        free, row = room.pop(at) if at < len(room) else (length, len(content))
        if row == len(content):
            content.append([])
        content[row].append((number, start))
        insort(room, (free - size, row))
    return content


def fill_rows(
    laid: Sequence[Sequence[tuple[int, int]]], documents: Mapping[int, Sequence[int]] | Sequence[Sequence[int]],
    length: int, *, pad: int,
) -> tuple[Tensor, Tensor]:
    """The rows of `lay_documents` with the ids of their documents in them, and the documents' numbers."""
    ids = torch.full((len(laid), length), pad, dtype=torch.long)
    numbers = torch.full((len(laid), length), -1, dtype=torch.long)
    for row, parts in enumerate(laid):
        at = 0
        for number, start in parts:
            part = torch.tensor(documents[number][start : start + length], dtype=torch.long)
            ids[row, at : at + len(part)], numbers[row, at : at + len(part)] = part, number
            at += len(part)
    return ids, numbers
