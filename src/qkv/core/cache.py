"""The key/value cache for decoding. `append` returns what attend() reads.

A cache knows tensors and layer numbers only. `Cache` itself stores nothing: training and single passes use it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


class Cache:
    """Stores nothing: keys and values go straight to attention."""

    length: int = 0

    def extend_mask(self, padding_mask: Tensor | None, rows: int, tokens: int) -> Tensor | None:
        """The padding mask of all keys so far, given that of the new tokens: [B, T] -> [B, S]; None: no padding."""
        return padding_mask

    def append(self, layer: int, k: Tensor, v: Tensor) -> Pair:
        """Store the new keys and values [B, G, T, K] of a layer; return all that it reads [B, G, S, K]."""
        return k, v

    def get_or_compute(self, layer: int, make: Callable[[], Pair]) -> Pair:
        """Keys and values of the memory, computed only in the first call."""
        return make()

    def choose_attend(self, usual: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """What attends to what `append` returns; a cache that returns no dense keys brings its own."""
        return usual


class Static(Cache):
    """Buffers written in place, which double when full; a large enough `capacity` avoids copies.

    Rows are hypotheses or prompts; keys of the memory are stored once per source row.
    """

    def __init__(self, layers: int, *, capacity: int = 64) -> None:
        self.capacity, self.length = capacity, 0  # positions stored so far
        self.filled = [0] * layers
        self.buffers: list[Pair | None] = [None] * layers
        self.memory: dict[int, Pair] = {}
        self.padding_mask: Tensor | None = None
        self.parents: Tensor | None = None  # the row of the last call that each row continues; None: its own

    @property
    def bytes(self) -> int:
        """Bytes of the positions stored so far, including the memory's."""
        own = sum(b.shape[0] * b.shape[1] * n * b.shape[3] * b.element_size()
                  for n, pair in zip(self.filled, self.buffers, strict=True) if pair for b in pair)
        return own + sum(t.numel() * t.element_size() for pair in self.memory.values() for t in pair)

    def extend_mask(self, padding_mask: Tensor | None, rows: int, tokens: int) -> Tensor | None:
        past, new = self.padding_mask, padding_mask
        if past is None and new is None:
            return None
        if past is None:
            past = torch.ones(rows, self.length, dtype=torch.bool, device=new.device if new is not None else None)
        if new is None:
            new = torch.ones(rows, tokens, dtype=torch.bool, device=past.device)
        self.padding_mask = torch.cat((past, new), 1)  # B S
        return self.padding_mask

    def append(self, layer: int, k: Tensor, v: Tensor) -> Pair:
        start, self.parents = self.filled[layer], None
        end = start + k.shape[2]
        keys, values = self.reserve(layer, end, k, v)
        keys[:, :, start:end] = k
        values[:, :, start:end] = v
        self.filled[layer], self.length = end, end if layer == 0 else self.length
        return keys[:, :, :end], values[:, :, :end]  # B G S K, B G S W

    def reserve(self, layer: int, end: int, k: Tensor, v: Tensor) -> Pair:
        """The layer's buffers, allocated or doubled so that `end` positions fit."""
        pair = self.buffers[layer]
        if pair is None or pair[0].shape[2] < end:
            size = max(self.capacity, end if pair is None else 2 * pair[0].shape[2], end)
            grown = tuple(t.new_empty(t.shape[0], t.shape[1], size, t.shape[3]) for t in (k, v))
            if pair is not None:
                for old, new in zip(pair, grown, strict=True):
                    new[:, :, : old.shape[2]] = old
            pair = self.buffers[layer] = (grown[0], grown[1])
        return pair

    def get_or_compute(self, layer: int, make: Callable[[], Pair]) -> Pair:
        if layer not in self.memory:
            k, v = make()
            self.memory[layer] = k.contiguous(), v.contiguous()  # read at every step
        return self.memory[layer]

    def reorder(self, index: Tensor) -> None:
        """Row i continues row index[i] (a beam's new parent); only rows that change are copied."""
        moved = (index != torch.arange(len(index), device=index.device)).nonzero().flatten()
        if len(moved) == 0:
            return
        parents = index[moved]
        self.parents = index if self.parents is None else self.parents[index]
        for filled, pair in zip(self.filled, self.buffers, strict=True):
            for buffer in pair or ():
                copy_rows(buffer[:, :, :filled], moved, parents)
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask[index]

    def select_rows(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep only these rows (and, of the memory, these sources): finished sentences leave the batch."""
        self.parents = rows if self.parents is None else self.parents[rows]
        for layer, pair in enumerate(self.buffers):
            if pair:
                keys, values = (take_rows(b, rows, self.filled[layer]) for b in pair)
                self.buffers[layer] = keys, values
        self.padding_mask = None if self.padding_mask is None else self.padding_mask[rows]
        if sources is not None:
            for n, pair in self.memory.items():
                keys, values = (take_rows(b, sources, b.shape[2]) for b in pair)
                self.memory[n] = keys, values

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` positions."""
        self.filled, self.length = [min(n, length) for n in self.filled], min(self.length, length)
        self.padding_mask = None if self.padding_mask is None else self.padding_mask[:, :length]


def take_rows(buffer: Tensor, rows: Tensor, filled: int) -> Tensor:
    """These rows of a buffer [B, G, S, K]: in place where more than half of them stay, else in a new one."""
    count, used = len(rows), buffer[:, :, :filled]
    if count > len(buffer) // 2 and count <= len(buffer):
        moved = (rows != torch.arange(count, device=rows.device)).nonzero().flatten()
        copy_rows(used, moved, rows[moved])
        return buffer[:count]
    fresh = buffer.new_empty(count, *buffer.shape[1:])
    fresh[:, :, :filled] = used.index_select(0, rows.to(buffer.device))
    return fresh


def copy_rows(rows: Tensor, to: Tensor, source: Tensor) -> None:
    """Copy row source[i] to row to[i]."""
    size = rows.shape[-1] * rows.element_size()
    if rows.device.type == "cpu" and size % 16 == 0 and len(to):
        rows = rows.view(torch.complex128)  # the same bytes, 16 at a time: the cost is per number
    rows.index_copy_(0, to.to(rows.device), rows.index_select(0, source.to(rows.device)))
