"""Planned work through the core: texts that write and short pieces of others in one pass, long pieces alone, or tiles.

Tiles make a result independent of its company. The blocks of a prompt are passes of their own. All other passes have
one of a few shapes, so many rows of one token, and a matrix product computes each of its rows by itself; whether this
machine's kernels give a row the same bits in each of the shapes, and at each place in them, is tried once for a core.
Attention is then computed row by row.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from qkv import spec
from qkv.adapt import native
from qkv.adapt.quantise import find_quantised
from qkv.core.attention import Attention
from qkv.core.model import Transformer, build_step
from qkv.core.step import Inputs, Mode, active_tracer
from qkv.generation.pages import BLOCK, Paged, Pages, Reading, Table
from qkv.generation.scheduler import SHORT, Group, Row, Work

SIZES = (8, 16, 32, 64, 1, 2, 4)  # of tiles that are tried; of few rows some kernels add up in another order
FEW = 8  # ids that are read in tiles of fewer rows
LEAST = 16  # ids of a prompt's last block: fewer cost less as rows among those of others


class Passes:
    """Runs the work of a step. After it, each row of which all ids are stored has its `logits` [V]."""

    def __init__(self, core: Transformer, pages: Pages) -> None:
        self.core, self.pages, self.device = core, pages, pages.device
        self.apart = grows_with_batch(core.spec)
        self.short = 1 if core.spec.stack.relative else SHORT  # learned distances are made for rows
        # in bf16 on a CPU keys are copied in any case, and elsewhere each row would cost its launches;
        # a compiled kernel reads pages where they lie
        half = core.embed.weight.dtype == torch.bfloat16
        self.gather = (half and native.library() is None) or self.device.type != "cpu"
        self.count = self.positions = 0  # passes so far, and positions that they read

    def round_up(self, rows: int) -> int:
        """How many rows of one token take no longer than these: those that would be padding are free."""
        return rows

    def count_in_blocks(self, ids: int) -> int:
        """How many first ids of a prompt are read in blocks."""
        return 0

    def run(self, plan: Seq[Work]) -> None:
        """The work of untraced requests: the weights are read once for all that is short."""
        short = [w for w in plan if w.at >= w.group.whole and w.tokens <= self.short and not self.apart]
        if len(short) > 1:
            self.run_pass(sorted(short, key=lambda w: w.tokens > 1))
        for work in plan:
            if len(short) < 2 or work not in short:
                self.run_pass([work])

    def run_pass(self, works: Seq[Work], size: int | None = None, cache: Paged | None = None) -> None:
        """One pass: new tokens of one text, or each token of several as a row, filled up to `size` rows where given.

        A traced request brings its own cache.
        """
        alone, first = len(works) == 1 and size is None, works[0]
        texts = [Reading(w.row.table, w.at + w.tokens, w.group.memory, w.tokens) for w in works]
        ids = [token for w in works for token in w.row.ids[w.at : w.at + w.tokens]]
        idle = [Reading(Table([0]), 1, first.group.memory)] * (0 if size is None else size - len(ids))
        cache = (cache or Paged(self.pages, gather=size is None and self.gather)).place(texts + idle)
        column = torch.tensor(ids + [0] * len(idle), device=self.device)
        given = first.group.inputs if alone else join_inputs([w.group.inputs for w in works for _ in range(w.tokens)],
                                                             len(column))
        ends = {at - 1: w.row for w, at in zip(works, accumulate(w.tokens for w in works), strict=True)
                if w.at + w.tokens == len(w.row.ids)}
        mode: Mode = "decode" if not alone or (first.at and first.tokens == 1) else "prefill"
        logits = self.forward(column[None] if alone else column[:, None], given, cache, head=bool(ends), mode=mode)
        for n, row in ends.items():
            row.logits = None if logits is None else logits[0 if alone else n]

    def forward(self, ids: Tensor, inputs: Inputs, cache: Paged, *, head: bool, mode: Mode) -> Tensor | None:
        """Logits [B, V] after the last ids [B, T], or None where nobody asks for them."""
        self.count, self.positions = self.count + 1, self.positions + ids.numel()
        if not head:
            self.core.hidden(ids, inputs, cache, mode=mode)
            return None
        return self.core(ids, inputs, cache, mode=mode, logits_to_keep=1).logits[:, 0]

    def encode_source(self, source: Seq[int], start: int) -> tuple[Inputs, dict[int, tuple[Tensor, Tensor]]]:
        """A source read once: the memory, and the keys and values that each layer makes of it."""
        memory = self.core.encode(torch.tensor([source], device=self.device), Inputs(), mode="prefill")
        given = Inputs(memory=memory)
        if active_tracer.get() is not None:  # it hears them when the first token is read
            return given, {}
        step = build_step(self.core.decoder, torch.tensor([[start]], device=self.device), given, mode="prefill")
        parts = (part for part in self.core.decoder.modules() if isinstance(part, Attention))
        pairs = {part.layer: part.project_kv(memory, step) for part in parts if part.spec.mask.kind == "memory"}
        return given, {layer: (k.contiguous(), v.contiguous()) for layer, (k, v) in pairs.items()}


class Tiles(Passes):
    """The same with bits that depend on a request alone: every token is a row of a tile, or in a block of a prompt."""

    def __init__(self, core: Transformer, pages: Pages) -> None:
        super().__init__(core, pages)
        self.sizes = find_sizes(core) if not self.apart and not has_experts(core.spec) else (1,)
        self.compute_bound = core.embed.weight.dtype == torch.float32 or bool(find_quantised(core))

    def round_up(self, rows: int) -> int:
        return sum(size for _, size in cut(range(rows), self.sizes, compute_bound=self.compute_bound))

    def count_in_blocks(self, ids: int) -> int:
        rest = ids % BLOCK
        return 0 if self.apart else ids if rest >= LEAST else ids - rest

    def run(self, plan: Seq[Work]) -> None:
        each: list[Work] = []
        for work in plan:
            at, end = work.at, work.at + work.tokens
            if at < work.group.whole:
                self.run_pass([work])  # a free prefix is read at once, and alone
                continue
            for at in range(work.at, min(work.group.blocks, end), BLOCK):
                self.run_pass([work._replace(at=at, tokens=min(BLOCK, work.group.blocks - at))])
            each += [work._replace(at=at, tokens=1) for at in range(max(work.at, work.group.blocks), end)]
        for part, size in cut(each, self.sizes, compute_bound=self.compute_bound):
            self.run_pass(part, size)


T = TypeVar("T")


def cut(rows: Seq[T], sizes: Seq[int], *, compute_bound: bool = False) -> Iterator[tuple[Seq[T], int]]:
    """Rows in tiles, in their order: the largest that are full, then the smallest that holds the rest.

    `compute_bound`: the time of a tile of FEW or more grows with its rows, so full ones come first, for less padding.
    """
    at = 0
    while at < len(rows):
        left = len(rows) - at
        size = next((s for s in sizes if s >= left), sizes[-1])
        if compute_bound and size > left:
            size = max((s for s in sizes if FEW <= s <= left), default=size)
        yield rows[at : at + size], size
        at += size


def count_beside(core: Transformer) -> int:
    """Tokens that a pass can read beside its rows in about half the time in which the weights are read."""
    if core.embed.weight.device.type != "cpu":
        return SHORT
    return 4 if find_quantised(core) else 8  # few bits are read in half the time, and multiplied in as much


def join_inputs(each: Seq[Inputs], rows: int) -> Inputs:
    """The inputs of several rows, with more rows that only fill; each row's memory is read by its cache."""
    first = each[0]
    if first.prefix_len is None:
        return Inputs(memory=first.memory)
    fill = [first] * (rows - len(each))
    named = {name: torch.cat([getattr(one, name) for one in (*each, *fill)]) for name in ("prefix_len", "blank_pos")
             if getattr(first, name) is not None}
    return Inputs(**named)


def attentions(s: spec.Spec) -> list[spec.Attention | spec.Latent]:
    """The self-attention of each block of the decoder."""
    return [block.attn for block in s.stack.blocks]


def position_bytes(core: Transformer) -> int:
    """Bytes that the keys and values of one position take, in all layers of the decoder."""
    each = (a.kv_rank + a.rotary.dim if isinstance(a, spec.Latent) else 2 * a.groups * a.head_dim
            for a in attentions(core.spec))
    return sum(each) * core.embed.weight.element_size()


def grows_with_batch(s: spec.Spec) -> bool:
    """Whether angles depend on the longest text of a pass, so that texts must be read apart."""
    rotaries = [a.rotary for a in attentions(s) if a.rotary]
    return any(r.scaling is not None and r.scaling.kind in ("dynamic", "longrope") for r in rotaries)


def has_experts(s: spec.Spec) -> bool:
    """Whether some products have as many rows as a router sends them."""
    return any(block.moe for block in s.stack.blocks)


@torch.inference_mode()
def find_sizes(core: Transformer) -> tuple[int, ...]:
    """The sizes of tiles that give each row the same bits wherever it stands; (1,) where no two places agree.

    One text of as many ids as the largest tile, or its beginning, is read in tiles of each size, the rows of each in
    reverse.
    """
    most, device = max(SIZES), core.embed.weight.device
    drawn = torch.randint(0, core.spec.vocabulary, (most,), generator=torch.Generator().manual_seed(0)).tolist()
    most = min(most, core.spec.context or most)
    found: dict[int, Tensor] = {}
    for size in (n for n in SIZES if n <= most):
        for turn in (1, -1):
            passes = Passes(core, Pages(most + 1, 1, device))
            row, group = Row(drawn[:most]), Group(0, [])
            if core.spec.encoder:
                group.inputs, group.memory = passes.encode_source([0], 0)
            if core.spec.architecture == "prefix decoder":
                group.inputs = replace(group.inputs, prefix_len=torch.ones(1, dtype=torch.long, device=device))
            if core.spec.fills_blanks:
                group.inputs = replace(group.inputs, blank_pos=torch.zeros(1, dtype=torch.long, device=device))
            count = min(most, FEW) if size < FEW else most
            passes.pages.reserve(row.table, count)
            logits: list[Tensor] = []
            for at in range(0, count, size):
                texts = [Work(group, Row(row.ids[: n + 1], row.table), n) for n in range(at, min(at + size, count))]
                passes.run_pass(texts[::turn], size)
                logits += [t.row.logits for t in texts if t.row.logits is not None]
            seen = torch.stack(logits)
            if not torch.equal(found.setdefault(size, seen), seen):
                del found[size]
                break
    agree = {size: [other for other, y in found.items() if torch.equal(x[: len(y)], y[: len(x)])]
             for size, x in found.items() if size >= FEW}
    return tuple(sorted(max(agree.values(), key=len, default=[1])))
