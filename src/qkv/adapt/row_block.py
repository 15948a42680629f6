"""A decoding step of whole blocks in one call of row_block.c, so that the host starts one kernel for all their parts.

Only single tokens of rows whose keys lie in buffers or in pages; everything else runs part by part (row_layers.py).
Letters: B rows, D width, H heads, G key/value groups, S keys, K head dim, W value head dim.
"""

import ctypes
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.adapt import row_ops
from qkv.adapt.native import Library
from qkv.adapt.row_products import EVERY, KINDS, Job, Matrix, address, draw_matrix, multiply, multiply_together
from qkv.core.cache import Cache, Static
from qkv.errors import QkvError
from qkv.spec import Attention, Ffn, Mask, Norm, Rotary


class BlockJob(ctypes.Structure):
    """The struct Block of row_block.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "scratch", "k_to", "v_to")),
        ("norms", row_ops.Norm * 9), ("heads", row_ops.Norm * 2), ("jobs", Job * 9), ("turn", row_ops.Turn),
        ("attend", row_ops.Attend), ("cross", row_ops.Attend), ("gate", row_ops.Gate),
        *((name, ctypes.c_int64) for name in ("rows", "width", "laid_bytes")), ("low", ctypes.c_int32),
    )


class Places:
    """Where the keys and values of each row lie in their memory, as the kernel takes it: alike in many layers.

    Row r reads `lengths[r]` positions from k_starts[r] on, or those whose numbers lie at the address slots[r] (0:
    none listed), and stores its new one at k_to[r]. `steps` are those from one position to the next, of k and v, and
    from one group to the next.
    """

    def __init__(
        self, starts: tuple[Any, Any], lengths: Any, to: tuple[Any, Any],
        steps: tuple[int, int, int, int], slots: Sequence[int] = (),
    ) -> None:
        each = (*starts, lengths, *to, *((slots,) if any(slots) else ()))
        self.lists = [np.ascontiguousarray(one, dtype=np.int64) for one in each]
        self.addresses = [one.ctypes.data for one in self.lists]
        self.steps, self.first, self.rows = steps, int(lengths[0]), len(lengths)


class Keys(NamedTuple):
    """Keys and values in their memory, where each row's are, and `bias` [B or 1, H or 1, 1, S] for the scores."""

    k: Tensor
    v: Tensor
    places: Places
    bias: Tensor | None = None

    def write_into(self, at: ctypes.Structure) -> Tensor | None:
        """Write it into an Attend of a job; what must stay alive, beside this, while that runs."""
        places = self.places
        at.k, at.v = self.k.data_ptr(), self.v.data_ptr()
        at.k_step, at.v_step, at.k_group, at.v_group = places.steps
        at.k_starts, at.v_starts, at.lengths, _, _, *slots = places.addresses
        if slots:
            (at.slots,) = slots
        bias, (at.bias_row, at.bias_head, _) = row_ops.spread_bias(self.bias, places.rows, at.heads, 1, places.first)
        at.bias = address(bias)
        return bias


class NormWeights(NamedTuple):
    """A norm with what it multiplies with and adds."""

    spec: Norm
    weight: Tensor
    bias: Tensor | None = None


class Parts(NamedTuple):
    """What a block computes with.

    `norms` are those before attention, after it and of its sum, then as many of cross-attention and of the network, and
    of each head of a query and of a key. `matrices` are q k v out, gate, up and down, and those of cross-attention, q
    and out. `entries` are the tables in which its modules and weights are registered, with their names.
    """

    layer: int
    attn: Attention
    ffn: Ffn
    norms: Sequence[NormWeights | None]
    matrices: Sequence[Matrix]
    entries: Sequence[tuple[dict[str, Any], str]]
    low: bool  # whether states are bf16
    cross: Attention | None = None

    def as_job(self) -> BlockJob:
        """The struct of the kernel, without what changes from step to step."""
        attn, ffn, cross = self.attn, self.ffn, self.cross
        job = BlockJob(width=len(self.matrices[3].weight), low=self.low)
        for place, norm in zip((*job.norms, *job.heads), self.norms, strict=True):
            if norm:
                place.weight, place.bias = norm.weight.data_ptr(), address(norm.bias)
                place.eps, place.offset, place.centred = norm.spec.eps, norm.spec.offset, norm.spec.kind != "rms"
        numbers = (*range(5), *((5,) if ffn.gated else ()), 6, *((7, 8) if cross else ()))
        for n, m in zip(numbers, self.matrices, strict=True):
            one = job.jobs[n]
            one.weight, one.scale, one.bias = m.weight.data_ptr(), address(m.scale), address(m.bias)
            one.n, one.kind = len(m.weight), KINDS[m.kind]
        for at, spec in ((job.attend, attn), *(((job.cross, cross),) if cross else ())):
            at.heads, at.groups, at.size = spec.heads, spec.groups, spec.head_dim
            at.value_size, at.cap = spec.head_dim, spec.cap or 0.0
            at.scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
        job.turn.neighbours = attn.rotary is not None and attn.rotary.pairs != "half"
        job.gate.kind = row_ops.ACTIVATIONS[ffn.activation]
        return job


class Prepared:
    """Blocks as the kernel takes them: weights and sizes, which stay from step to step.

    `blocks` are the modules, to notice when others stand in their places; `most` rows can be read together.
    """

    def __init__(self, each: Sequence[Parts], blocks: Sequence[object] = (), most: int = EVERY) -> None:
        self.blocks, self.most = blocks, most
        registered = [(table, name, table[name]) for parts in each for table, name in parts.entries]
        self.tables, self.names, self.registered = zip(*registered, strict=True) if registered else ((), (), ())
        self.tensors = [one for one in self.registered if isinstance(one, Tensor)]
        self.addresses = [one.data_ptr() for one in self.tensors]
        self.attns = [(parts.layer, parts.attn, parts.cross) for parts in each]
        self.work = sum(m.weight.numel() for parts in each for m in parts.matrices)
        self.jobs = (BlockJob * len(each))(*(parts.as_job() for parts in each))
        self.scratch = dict[int, int]()  # bytes by rows

    def count_scratch(self, found: Library, jobs: Any, rows: int) -> int:
        """The bytes that these jobs need for so many rows."""
        if rows not in self.scratch:
            self.scratch[rows] = max(found.opened.qkv_block_scratch(ctypes.addressof(job)) for job in jobs)
        return self.scratch[rows]

    def is_current(self) -> bool:
        """Whether the same modules and weights are still registered, at the same addresses; hundreds, so by `map`."""
        return (all(map(is_, map(dict.get, self.tables, self.names), self.registered))  # type: ignore[arg-type]
                and list(map(Tensor.data_ptr, self.tensors)) == self.addresses)


def find_keys(
    cache: Cache, layer: int, rows: int, window: int | None, bias: Tensor | None, known: dict[Any, Places]
) -> Keys | None:
    """Where one more token of each row is stored, and what it reads; None where the cache cannot say it.

    `known` are the places of other layers of this step, which often are the same.
    """
    if place_rows := getattr(cache, "place_rows", None):
        # of pages a row reads what its window leaves; what differs by head is not said here
        return place_rows(layer, window) if bias is None or bias.shape[1] == 1 else None
    pair = cache.buffers[layer] if isinstance(cache, Static) else None
    start = cache.filled[layer] if isinstance(cache, Static) else 0
    if pair is None or start >= pair[0].shape[2]:
        return None
    k, v = pair
    strides = k.stride(), v.stride()
    if same := known.get((start, *strides)):
        return Keys(k, v, same, bias)
    (k_row, k_group, k_step, _), (v_row, v_group, v_step, _) = strides
    numbers, lengths = np.arange(rows), np.full(rows, start + 1)
    starts = numbers * k_row, numbers * v_row
    to = starts[0] + start * k_step, starts[1] + start * v_step
    places = known[start, *strides] = Places(starts, lengths, to, (k_step, v_step, k_group, v_group))
    return Keys(k, v, places, bias)


def find_memory(cache: Cache, layer: int, rows: int, bias: Tensor | None, known: dict[Any, Any]) -> Keys | None:
    """Where the keys of each row's source lie, of which rows side by side share one; None before they are there.

    `bias` is that of the sources; what `known` keeps of a step is the same in many layers.
    """
    pair = getattr(cache, "memory", {}).get(layer)
    if pair is None:
        return None
    k, v = pair
    each, strides = rows // len(k), (k.stride(), v.stride())
    if bias is not None and 1 < len(bias) < rows:
        if (key := ("bias", id(bias))) not in known:
            known[key] = bias.float().repeat_interleave(each, 0)
        bias = known[key]
    if (same := known.get(("source", *strides))) is None:
        (k_row, k_group, k_step, _), (v_row, v_group, v_step, _) = strides
        numbers = np.arange(rows) // each
        starts, lengths = (numbers * k_row, numbers * v_row), np.full(rows, k.shape[2])
        steps = k_step, v_step, k_group, v_group
        same = known["source", *strides] = Places(starts, lengths, starts, steps)
    return Keys(k, v, same, bias)


class Angles:
    """Cosine and sine [B or 1, 1, 1, P/2] in fp32, as the kernel takes them: alike in many layers."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos.contiguous(), sin.contiguous()
        half = cos.shape[-1]
        self.fields = self.cos.data_ptr(), self.sin.data_ptr(), half, cos.numel() // half


def step_blocks(
    found: Library, prepared: Prepared, x: Tensor, keys: Sequence[tuple[Keys, Keys | None]],
    angles: Sequence[Angles | None],
) -> Tensor:
    """The last block's output [B, 1, D] for one more token of each row, x [B, 1, D]; keys and values are stored.

    `keys`, with those of the source, and `angles` are those of each block; None: it has no source, and rotates nothing.
    """
    jobs = type(prepared.jobs).from_buffer_copy(prepared.jobs)
    for job in jobs:
        job.rows = len(x)
    out = x.clone(memory_format=torch.contiguous_format)
    scratch = torch.empty(prepared.count_scratch(found, jobs, len(x)), dtype=torch.uint8)
    to, between, kept = out.data_ptr(), scratch.data_ptr(), list[Any]()
    for job, (own, source), turn in zip(jobs, keys, angles, strict=True):
        job.x, job.scratch = to, between
        job.k_to, job.v_to = own.places.addresses[3:5]
        kept += [own.write_into(job.attend), source and source.write_into(job.cross)]
        if turn:
            at = job.turn
            at.cos, at.sin, at.half, at.angles = turn.fields
    fork, number, threads = found.share_out(prepared.work)
    if found.opened.qkv_blocks(ctypes.addressof(jobs), len(jobs), fork, number, found.barrier, threads):
        raise MemoryError
    del kept
    return out


def note_stored(cache: Cache, layer: int) -> None:
    """One more position of each row lies in the buffers of a Static cache."""
    if isinstance(cache, Static):
        cache.filled[layer], cache.parents = cache.filled[layer] + 1, None
        cache.length = cache.filled[0]


def check_library(found: Library) -> None:
    """QkvError where a block says something else than its parts, on small random numbers; each part was checked."""
    for with_source in (False, True):
        pairs = compare_block(found, torch.Generator().manual_seed(0), with_source=with_source)
        # as near as bf16 is: a compiler may add up in another way
        if any(bool(((a - b).abs() > 2**-6 * b.abs().clamp_min(1)).any()) for a, b in pairs):
            raise QkvError("the compiled kernel computes {name} wrongly for {isa}", name="block", isa=found.isa)


def compare_block(found: Library, draw: torch.Generator, *, with_source: bool) -> list[tuple[Tensor, Tensor]]:
    """What a block says, its keys and values, each beside what its parts say: normed before and after, or its sums."""
    heads, groups, size, width, rows, past = 4, 1, 16, 32, 4, 5

    def draw_some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(torch.bfloat16)

    attn = Attention(heads, groups, size, Mask("causal"), rotary=Rotary(size))
    cross = Attention(heads, heads, size, Mask("memory")) if with_source else None
    ffn, norm = Ffn(64, "silu", gated=True), Norm("rms", 1e-5)
    wide = heads * size
    shapes = [(wide, width), (size, width), (size, width), (width, wide), (64, width), (64, width), (width, 64)]
    shapes += [(wide, width), (width, wide)] if cross else []
    drawn = [draw_matrix("int8", *shape, draw) for shape in shapes]
    matrices = [Matrix("int8", weight, scale) for weight, scale in drawn]
    for m in matrices:
        m.scale.mul_(0.01)  # type: ignore[union-attr]
    x, places = draw_some(rows, 1, width), ((2, 5, 8) if cross else (0, 1, 6, 7))
    norms = [NormWeights(norm, draw_some(width)) if n in places else None for n in range(9)]
    norms += [NormWeights(norm, draw_some(size)) for _ in range(2)]
    k, v = (draw_some(rows, groups, past + 1, size) for _ in range(2))
    memory = draw_some(rows // 2, heads, 3, size), draw_some(rows // 2, heads, 3, size)
    angles = torch.rand(1, 1, 1, size // 2, generator=draw) * 6
    turn = Angles(angles.cos(), angles.sin())

    def norm_by(n: int, t: Tensor) -> Tensor:
        one = norms[n]
        return row_ops.norm(found, t, one.weight, norm) if one else t

    qkv = multiply_together(found, norm_by(0, x), matrices[:3])
    for n, part in enumerate(qkv[:2], 9):
        part.copy_(norm_by(n, part.unflatten(-1, (-1, size))).flatten(2))
    row_ops.rotate(found, qkv[0], heads + groups, size, (turn.cos, turn.sin), neighbours=False)
    q, *new = (part.view(rows, 1, -1, size).transpose(1, 2) for part in qkv)
    one, two = (torch.cat((old[:, :, :past], more), 2) for old, more in zip((k, v), new, strict=True))
    z = row_ops.attend(found, q, one, two, scale=size**-0.5)
    y = norm_by(2, x + norm_by(1, multiply(found, z[:, None], matrices[3])))
    if cross:
        q = multiply(found, norm_by(3, y), matrices[7]).view(rows, 1, heads, size).transpose(1, 2)
        z = row_ops.attend(found, q, *memory, scale=size**-0.5)
        y = norm_by(5, y + norm_by(4, multiply(found, z[:, None], matrices[8])))
    gate, up = multiply_together(found, norm_by(6, y), matrices[4:6])
    want = norm_by(8, y + norm_by(7, multiply(found, row_ops.gate(found, gate, up, "silu"), matrices[6])))
    cache = Static(1)
    cache.buffers[0], cache.filled[0], cache.memory[0] = (k, v), past, memory
    keys = find_keys(cache, 0, rows, None, None, {})
    assert keys is not None
    prepared = Prepared([Parts(0, attn, ffn, norms, matrices, (), low=True, cross=cross)])
    got = step_blocks(found, prepared, x, [(keys, find_memory(cache, 0, rows, None, {}) if cross else None)], [turn])
    return [(got, want), (k, one), (v, two)]
