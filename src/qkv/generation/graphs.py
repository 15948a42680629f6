"""On CUDA a decoding step is captured as a graph and replayed, so that the host launches that instead of each kernel.

A graph reads and writes the same memory at every replay, so the keys are read at their whole capacity, and the place of
the next token is a number on the device. Letters: B rows, G key/value groups, T new tokens, S capacity, K head dim,
V vocabulary.
"""

import torch
from torch import Tensor

from qkv.core.cache import Cache, Pair, Static
from qkv.core.model import Transformer
from qkv.core.step import Inputs, active_tracer
from qkv.spec import Spec

WAIT = 3  # steps of one shape before it is captured, which costs as much as three steps


class Slots(Cache):
    """The buffers of a Static cache at their whole capacity; the next token is written at `at`.

    Masks see the new token behind all slots, of which those that are written are real: what depends on the distance
    between two slots (a window, ALiBi, learned distances) cannot be computed so.
    """

    def __init__(self, cache: Static) -> None:
        self.pairs = [pair for pair in cache.buffers if pair]
        self.memory = cache.memory
        some = self.pairs[0][0]
        self.capacity, self.length = some.shape[2], some.shape[2] - 1
        self.at = torch.full((1,), cache.length, device=some.device)
        self.order = torch.arange(self.capacity, device=some.device)  # S
        self.real = torch.ones(len(some), self.capacity, dtype=torch.bool, device=some.device)  # B S
        for buffer in (b for pair in self.pairs for b in pair):
            buffer[:, :, cache.length :] = 0  # NaN in memory never written would pass the mask

    def extend_mask(self, padding_mask: Tensor | None, rows: int, tokens: int) -> Tensor | None:
        return self.real & (self.order <= self.at)

    def append(self, layer: int, k: Tensor, v: Tensor) -> Pair:
        keys, values = self.pairs[layer]
        keys.index_copy_(2, self.at, k)
        values.index_copy_(2, self.at, v)
        return keys, values  # B G S K, B G S W

    def get_or_compute(self, layer: int, make: object) -> Pair:
        return self.memory[layer]


class Graph:
    """One decoding step of these rows and buffers, captured."""

    def __init__(self, core: Transformer, inputs: Inputs, cache: Static) -> None:
        self.core, self.inputs, self.slots = core, inputs, Slots(cache)
        self.buffers, self.padding = list(cache.buffers), None
        self.follow_padding(cache)
        self.ids = torch.zeros(len(self.slots.real), 1, dtype=torch.long, device=self.slots.at.device)  # B T
        beside = torch.cuda.Stream(self.ids.device)
        beside.wait_stream(torch.cuda.current_stream(self.ids.device))
        with torch.cuda.stream(beside):
            self.run()  # libraries set themselves up; what it writes is written again
        torch.cuda.current_stream(self.ids.device).wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads may use the device
            self.logits = self.run()

    def run(self) -> Tensor:
        """Logits [B, V] after `ids`."""
        return self.core(self.ids, self.inputs, self.slots, mode="decode", logits_to_keep=1).logits[:, 0]

    def matches(self, inputs: Inputs, cache: Static) -> bool:
        """Whether it was captured for these buffers, and they have room."""
        same = all(a is b for a, b in zip(self.buffers, cache.buffers, strict=True))
        return same and inputs is self.inputs and cache.length < self.slots.capacity

    def follow_padding(self, cache: Static) -> None:
        """Which slots are real, where rows changed places."""
        if cache.padding_mask is not self.padding and cache.padding_mask is not None:
            self.slots.real[:, : cache.length] = cache.padding_mask
        self.padding = cache.padding_mask

    def replay(self, tokens: Tensor, cache: Static) -> Tensor:
        """Logits [B, V] after one more token per row, tokens [B]; the next replay overwrites them."""
        self.follow_padding(cache)
        self.ids.copy_(tokens[:, None])
        self.slots.at.fill_(cache.length)
        self.graph.replay()
        note_written(cache)
        self.padding = cache.padding_mask
        return self.logits


def note_written(cache: Static) -> None:
    """One more token of each row lies in the buffers; it is not padding."""
    cache.filled, cache.length, cache.parents = [n + 1 for n in cache.filled], cache.length + 1, None
    if cache.padding_mask is not None:
        cache.padding_mask = torch.nn.functional.pad(cache.padding_mask, (0, 1), value=True)


class Replay:
    """Captures the decoding steps of a core when the same shape comes again and again."""

    def __init__(self, core: Transformer) -> None:
        self.core, self.graph, self.steps = core, None, 0
        self.shape: list[Pair | None] = []  # the buffers of the last step

    def decode(self, tokens: Tensor, inputs: Inputs, cache: Static) -> Tensor | None:
        """Logits [B, V] by a graph; None while there is none for this step."""
        if active_tracer.get() is not None:
            return None
        if self.graph is None or not self.graph.matches(inputs, cache):
            self.graph = None
            same = len(self.shape) and all(a is b for a, b in zip(self.shape, cache.buffers, strict=True))
            self.shape, self.steps = list(cache.buffers), self.steps + 1 if same else 0
            full = any(pair and cache.length >= pair[0].shape[2] for pair in cache.buffers)
            if self.steps < WAIT or full:
                return None
            self.graph = Graph(self.core, inputs, cache)
        return self.graph.replay(tokens, cache)


def can_capture(core: Transformer) -> bool:
    """Whether its decoding steps are captured: on CUDA, where one is as the other."""
    return core.embed.weight.device.type == "cuda" and is_capturable(core.spec)


def is_capturable(s: Spec) -> bool:
    """Whether the host takes no part in a step, and no mask asks how far apart two slots are."""
    blocks = s.decoder.blocks if s.decoder else ()
    parts = [part for block in blocks for part in (block.attn, block.cross) if part]
    scalings = [part.rotary.scaling for part in parts if part.rotary and part.rotary.scaling]
    near = s.decoder is not None and s.decoder.relative is not None
    apart = near or any(part.mask.window or part.mask.alibi_heads for part in parts)
    host = any(block.moe for block in blocks) or any(by.kind == "longrope" for by in scalings)
    return not apart and not host
