"""GGUF files, in and out: metadata and tensors in one memory-mapped file, each tensor packed in its own kind.

The layout is that of ggml's docs/gguf.md, versions 2 and 3; the packing is that of its ggml-quants.c.
"""

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import name_missing_bytes, replace_file
from qkv.messages import Message

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
STRUCTS = {code: struct.Struct(f"<{code}") for code in "BbHhIif?Qqd"}
STRING, ARRAY, UINT32, INT32, FLOAT32, BOOL, UINT8 = 8, 9, 4, 5, 6, 7, 0
CHUNK = 1 << 11  # blocks that are unpacked at a time, so that they stay in the cache
Block = NDArray[Any]
EXPECTED = {  # what the values of keys that are read before a family reads them hold; of lists their first
    re.compile(r"general\.alignment|split\.count|.*\.(pooling_type|block_count|embedding_length)|.*_token_id"): int,
    re.compile(r"general\.(type|architecture)|tokenizer\.ggml\.(model|pre)|tokenizer\.chat_template(\..*)?"): str,
    re.compile(r"tokenizer\.ggml\.(add|remove)_.*"): bool,
    re.compile(r".*\.(rope\.freq_base|rope\.scaling\.factor|layer_norm(_rms)?_epsilon)"): float,
    re.compile(r"tokenizer\.ggml\.(tokens|merges)|tokenizer\.chat_templates"): [str],
    re.compile(r"tokenizer\.ggml\.token_type"): [int], re.compile(r"tokenizer\.ggml\.scores"): [float],
    re.compile(r"tokenizer\.ggml\.precompiled_charsmap"): bytes,
}


def half_at(b: Block, at: int) -> Block:
    """The fp16 number at a byte of every block, as fp32 [n, 1]."""
    return b[:, at : at + 2].view(np.float16).astype(np.float32)


def bits_of(b: Block, width: int, group: int) -> Block:
    """The numbers of `width` bits in bytes [n, m]: of each group of bytes all lowest bits come first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return ((b.reshape(len(b), -1, 1, group) >> shifts) & np.uint8((1 << width) - 1)).reshape(len(b), -1)


def scale_groups(q: Block, scale: Block, low: Block | float = 0.0) -> Block:
    """q * scale - low, with one scale (and low) [n, groups] for each group of numbers [n, m]."""
    low = low[..., None] if isinstance(low, np.ndarray) else low
    return (scale[..., None] * q.reshape(*scale.shape, -1).astype(np.float32) - low).reshape(len(q), -1)


def unpack_q3_k(b: Block) -> Block:
    scales = (bits_of(b[:, 96:104], 4, 8) | bits_of(b[:, 104:108], 2, 4) << 4).astype(np.float32) - 32
    q = bits_of(b[:, 32:96], 2, 32).astype(np.float32) - 4 * (1 - bits_of(b[:, :32], 1, 32).astype(np.float32))
    return scale_groups(q, half_at(b, 108) * scales)


def unpack_k(b: Block, q: Block) -> Block:
    """What Q4_K and Q5_K share: eight groups, whose scales and lows of 6 bits are folded into 12 bytes."""
    scales, lows, both = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    d = np.concatenate([scales & 63, both & 15 | scales >> 2 & 48], axis=1).astype(np.float32)
    m = np.concatenate([lows & 63, both >> 4 | lows >> 2 & 48], axis=1).astype(np.float32)
    return scale_groups(q, half_at(b, 0) * d, half_at(b, 2) * m)


def pack_q8_0(x: Block) -> Block:
    d = abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    q = np.sign(scaled) * np.floor(abs(scaled) + np.float32(0.5))
    return np.concatenate([d.astype(np.float16).view(np.uint8), q.astype(np.int8).view(np.uint8)], axis=1)


def pack_q4_0(x: Block) -> Block:
    d = np.take_along_axis(x, abs(x).argmax(axis=1, keepdims=True), axis=1) / np.float32(-8)
    scaled = x * np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    q = (scaled + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return np.concatenate([d.astype(np.float16).view(np.uint8), q[:, :16] | q[:, 16:] << 4], axis=1)


class Kind(NamedTuple):
    """A type of tensors: how many numbers make a block, of how many bytes, and how blocks become numbers and back."""

    number: int
    size: int
    bytes: int
    unpack: Callable[[Block], Block] | torch.dtype
    pack: Callable[[Block], Block] | None = None


KINDS = {
    "F32": Kind(0, 1, 4, torch.float32), "F16": Kind(1, 1, 2, torch.float16), "BF16": Kind(30, 1, 2, torch.bfloat16),
    "Q4_0": Kind(2, 32, 18, lambda b: (bits_of(b[:, 2:], 4, 16).astype(np.float32) - 8) * half_at(b, 0), pack_q4_0),
    "Q4_1": Kind(3, 32, 20, lambda b: half_at(b, 0) * bits_of(b[:, 4:], 4, 16).astype(np.float32) + half_at(b, 2)),
    "Q5_0": Kind(6, 32, 22, lambda b: half_at(b, 0) * (
        (bits_of(b[:, 6:], 4, 16) | bits_of(b[:, 2:6], 1, 1) << 4).astype(np.float32) - 16)),
    "Q5_1": Kind(7, 32, 24, lambda b: half_at(b, 0) * (
        bits_of(b[:, 8:], 4, 16) | bits_of(b[:, 4:8], 1, 1) << 4).astype(np.float32) + half_at(b, 2)),
    "Q8_0": Kind(8, 32, 34, lambda b: b[:, 2:].view(np.int8).astype(np.float32) * half_at(b, 0), pack_q8_0),
    "Q2_K": Kind(10, 256, 84, lambda b: scale_groups(
        bits_of(b[:, 16:80], 2, 32), half_at(b, 80) * (b[:, :16] & 15), half_at(b, 82) * (b[:, :16] >> 4))),
    "Q3_K": Kind(11, 256, 110, unpack_q3_k),
    "Q4_K": Kind(12, 256, 144, lambda b: unpack_k(b, bits_of(b[:, 16:], 4, 32))),
    "Q5_K": Kind(13, 256, 176, lambda b: unpack_k(b, bits_of(b[:, 48:], 4, 32) | bits_of(b[:, 16:48], 1, 32) << 4)),
    "Q6_K": Kind(14, 256, 210, lambda b: scale_groups(
        (bits_of(b[:, :128], 4, 64) | bits_of(b[:, 128:192], 2, 32) << 4).astype(np.float32) - 32,
        half_at(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32))),
}
NUMBERS = {kind.number: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as the file holds it: its kind, its bytes (memory-mapped), and its shape, rows first."""

    kind: str
    raw: Block
    shape: tuple[int, ...]

    def unpack(self) -> Tensor:
        """The numbers: fp32 where the kind packs them, otherwise in the kind's own type."""
        how = KINDS[self.kind]
        if isinstance(how.unpack, torch.dtype):
            return torch.from_numpy(self.raw).view(how.unpack).view(self.shape)
        blocks = self.raw.reshape(-1, how.bytes)
        made = np.empty((len(blocks), how.size), np.float32)
        for i in range(0, len(blocks), CHUNK):
            made[i : i + CHUNK] = how.unpack(blocks[i : i + CHUNK])
        return torch.from_numpy(made).view(self.shape)

    __call__ = unpack


def pack(kind: str, tensor: Tensor) -> PackedTensor:
    """A tensor in a kind that can be written: F32, F16, BF16, Q8_0 or Q4_0."""
    how = KINDS[kind]
    if isinstance(how.unpack, torch.dtype):
        raw = tensor.detach().cpu().to(how.unpack).contiguous().view(-1).view(torch.uint8).numpy()
    else:
        assert how.pack is not None
        raw = how.pack(tensor.detach().cpu().float().contiguous().view(-1, how.size).numpy()).reshape(-1)
    return PackedTensor(kind, raw, tuple(tensor.shape))


@dataclass(frozen=True)
class GgufFile:
    """What a GGUF file holds: metadata by key, and tensors by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, PackedTensor]


def open_gguf(path: Path) -> GgufFile:
    """The metadata and tensors of a GGUF file; no number is unpacked yet. The last file opened is remembered.

    Raises:
        QkvError: the file is another one, of another version, cut short, or holds a kind of tensor that is not known.
    """
    try:
        state = path.stat()
    except OSError as e:
        raise QkvError("{path}: cannot be read ({reason})", path=path, reason=e.strerror) from None
    return parse_file(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)
def parse_file(path: Path, _changed: int, size: int) -> GgufFile:
    """What `open_gguf` gives for a file of that time and size."""
    data: Any = np.memmap(path, np.uint8, "c") if size else np.empty(0, np.uint8)
    reader = Reader(path, memoryview(data))
    if bytes(data[:4]) != MAGIC:
        raise reader.error(Message("it begins with {found!r}, expected {magic!r}", found=bytes(data[:4]), magic=MAGIC))
    version, tensors, keys = reader.take("I", 4), reader.take("Q"), reader.take("Q")
    if version not in (2, 3):
        raise reader.error(Message("its version is {version}, expected 2 or 3, low byte first", version=version))
    reader.check_count(keys, 12)
    metadata = {reader.read_text(): reader.read_value(reader.take("I")) for _ in range(keys)}
    check_metadata(metadata, path)
    reader.check_count(tensors, 24)
    rows = [reader.read_row() for _ in range(tensors)]
    align = metadata.get("general.alignment", ALIGNMENT)
    if align < 1 or align & (align - 1):
        raise QkvError("{path}: general.alignment is {value}, expected a power of two", path=path, value=align)
    start, end, found = -reader.at % align + reader.at, 0, dict[str, PackedTensor]()
    for name, shape, number, at in rows:
        if number not in NUMBERS:
            raise QkvError("{path}: the tensor {name} is of the unknown kind {number} (known: {known})", path=path,
                           name=name, number=number, known=", ".join(KINDS))
        kind = KINDS[NUMBERS[number]]
        count = prod(shape) // kind.size * kind.bytes
        if name in found or shape[-1] % kind.size or at != end or start + at + count > size:
            raise reader.error(Message("the tensor {name} of shape {shape} and kind {kind} does not lie within it, or "
                                       "not behind the one before, or stands there twice", name=name,
                                       shape=list(shape), kind=NUMBERS[number]))
        found[name] = PackedTensor(NUMBERS[number], data[start + at : start + at + count], shape)
        end = at + count + -count % align
    if size - start > end:
        raise reader.error(Message("{count} bytes lie behind its last tensor", count=size - start - end))
    return GgufFile(path, metadata, found)


def check_metadata(metadata: Mapping[str, Any], path: Path) -> None:
    """QkvError for a value of another kind than its key promises; an empty list may be one of anything."""
    for key, value in metadata.items():
        for pattern, kind in EXPECTED.items():
            listed = isinstance(value, list) and isinstance(kind, list)
            fits = [type(one) for one in value[:1]] in ([], kind) if listed else type(value) is kind
            if pattern.fullmatch(key) and not fits:
                name = kind.__name__ if isinstance(kind, type) else f"list[{kind[0].__name__}]"
                raise QkvError("{path}: {key} is {value}, expected {kind}", path=path, key=key,
                               value=repr(value)[:80], kind=name)


@dataclass
class Reader:
    """The values of a file one after the other; none is larger than what the file still holds."""

    path: Path
    data: memoryview
    at: int = 0

    def error(self, what: Message) -> QkvError:
        return QkvError("{path}: not a complete GGUF file: {what}; was the download complete?", path=self.path,
                        what=what)

    def check_count(self, count: int, least: int) -> None:
        """QkvError where so many values of at least so many bytes do not fit into the rest of the file."""
        if count * least > len(self.data) - self.at:
            raise self.error(Message("it ends at byte {size}, and {count} values were to come at byte {at}",
                                     size=len(self.data), count=count, at=self.at))

    def take(self, code: str, at: int | None = None) -> Any:
        self.at = self.at if at is None else at
        one = STRUCTS[code]
        if one.size > len(self.data) - self.at:
            self.check_count(1, one.size)
        (value,) = one.unpack_from(self.data, self.at)
        self.at += one.size
        return value

    def read_text(self) -> str:
        size = self.take("Q")
        if size > len(self.data) - self.at:
            self.check_count(size, 1)
        self.at += size
        try:
            return str(self.data[self.at - size : self.at], "utf-8")
        except UnicodeDecodeError:
            raise self.error(Message("the text at byte {at} is not UTF-8", at=self.at - size)) from None

    def read_value(self, kind: int) -> Any:
        """A value of the metadata; fp32 numbers as the shortest decimal that means them."""
        if kind == STRING:
            return self.read_text()
        if kind == FLOAT32:
            return float(str(np.float32(self.take("f"))))
        if kind in SCALARS:
            return self.take(SCALARS[kind])
        of, count = (self.take("I"), self.take("Q")) if kind == ARRAY else (ARRAY, 0)
        if of == STRING:
            self.check_count(count, 8)
            return [self.read_text() for _ in range(count)]
        if of not in SCALARS:
            raise self.error(Message("the value at byte {at} is of the unknown type {kind}", at=self.at, kind=kind))
        self.check_count(count, struct.calcsize(f"<{SCALARS[of]}"))
        values = np.frombuffer(self.data, f"<{SCALARS[of]}", count, self.at)
        self.at += values.nbytes
        return values.tobytes() if of == UINT8 else values.tolist()

    def read_row(self) -> tuple[str, tuple[int, ...], int, int]:
        """A row of the table of tensors: name, shape, number of the kind, and where it begins."""
        name, axes = self.read_text(), self.take("I")
        if not 1 <= axes <= 4:
            raise self.error(Message("the tensor {name} has {axes} axes, expected 1 to 4", name=name, axes=axes))
        shape = tuple(reversed([self.take("Q") for _ in range(axes)]))
        return name, shape, self.take("I"), self.take("Q")


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[tuple[str, str, Tensor]]) -> None:
    """A GGUF file, whole or not at all: rows of (name, kind, numbers), packed one after the other as they are written.

    Raises:
        QkvError: the file cannot be written.
    """
    sizes = [t.numel() // KINDS[kind].size * KINDS[kind].bytes for _, kind, t in tensors]
    places = np.cumsum([0, *(size + -size % ALIGNMENT for size in sizes)])
    head = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    head += [part for key, value in metadata.items() for part in (write_text(key), write_value(value))]
    for (name, kind, tensor), place in zip(tensors, places, strict=False):
        shape = tuple(reversed(tensor.shape))
        head.append(write_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, KINDS[kind].number, place))
    start = b"".join(head)
    with replace_file(path) as aside, name_missing_bytes(aside, len(start) + int(places[-1])), aside.open("xb") as file:
        file.write(start + bytes(-len(start) % ALIGNMENT))
        for size, (_, kind, tensor) in zip(sizes, tensors, strict=True):
            file.write(pack(kind, tensor).raw.tobytes() + bytes(-size % ALIGNMENT))


def write_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def write_value(value: Any) -> bytes:
    """A value of the metadata with its type: whole numbers take 32 bits, in arrays with a sign; bytes are an array."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + write_text(value)
    if isinstance(value, bytes):
        return struct.pack("<IIQ", ARRAY, UINT8, len(value)) + value
    if isinstance(value, Iterable):
        rows = list(value)
        if isinstance(rows[0], str):
            return struct.pack("<IIQ", ARRAY, STRING, len(rows)) + b"".join(map(write_text, rows))
        kind, code = (FLOAT32, "f") if isinstance(rows[0], float) else (INT32, "i")
        return struct.pack(f"<IIQ{len(rows)}{code}", ARRAY, kind, len(rows), *rows)
    kind = BOOL if isinstance(value, bool) else FLOAT32 if isinstance(value, float) else UINT32
    return struct.pack(f"<I{SCALARS[kind]}", kind, value)
