"""Text as token ids on disk, read through the page cache: any size of text trains in the memory of a batch.

A shard is a folder: `tokens.bin` (little-endian uint16 or uint32), `index.json` (how many, of which vocabulary, their
SHA-256), and the tokenizer that made them. A Mixture draws windows from several, by weight. Next: packing.py.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data import packing
from qkv.data.order import make_generator
from qkv.errors import QkvError
from qkv.families import Config
from qkv.files import replace_dir
from qkv.json_files import read_json
from qkv.messages import Message

FORMAT = "qkv-tokens-1"


@dataclass(frozen=True)
class Shard:
    """The ids of one folder from `start` to `end`, mapped and not read; and what its index says."""

    folder: Path
    index: dict[str, Any]
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def ids(self) -> NDArray[np.integer]:
        """The ids, memory-mapped at each call, so that a Shard keeps no file open."""
        whole = np.memmap(self.folder / "tokens.bin", dtype=self.index["dtype"], mode="r")
        return whole[self.start : self.end]

    def select_range(self, start: int, end: int) -> "Shard":
        """The part from `start` to `end`, counted within this one."""
        return replace(self, start=self.start + start, end=self.start + end)


def write_shard(
    folder: Path, documents: Iterable[Sequence[int]], *, vocabulary: int, save: Callable[[Path], None],
    about: Callable[[], Mapping[str, Any]] = dict,
) -> Shard:
    """Documents of ids as a shard, whole or not at all: written beside, flushed, then renamed.

    Each document is written as it is, with the symbol that ends it where it has one. `save` puts the tokenizer into a
    folder; its hash goes into the index, so that shards of different tokenizers can be distinguished. `about` is asked
    when all is written for what else the index says.

    Raises:
        QkvError: the folder exists, there is no id, or one is not below `vocabulary`.
    """
    folder = Path(folder)
    kind = np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
    sign, tokens = hashlib.sha256(), 0
    with replace_dir(folder) as aside:
        if folder.exists():
            raise QkvError("{folder}: exists already; remove it or give another --out", folder=folder)
        with (aside / "tokens.bin").open("wb") as file:
            for ids in documents:
                found = np.asarray(ids, dtype=np.int64)
                if len(found) and not 0 <= int(found.min()) <= int(found.max()) < vocabulary:
                    raise QkvError("{folder}: ids go from {min} to {max}, expected 0 to {vocabulary}", folder=folder,
                                   min=found.min(), max=found.max(), vocabulary=vocabulary - 1)
                raw = found.astype(kind).tobytes()
                sign.update(raw)
                file.write(raw)
                tokens += len(found)
        if not tokens:
            raise QkvError("{folder}: no text, so there are no tokens to write", folder=folder)
        index = {"format": FORMAT, "dtype": kind.str, "tokens": tokens, "vocabulary": vocabulary,
                 "sha256": sign.hexdigest(), "tokenizer": save_hashed(aside, save), **about()}
        with (aside / "index.json").open("w", encoding="utf-8") as file:
            json.dump(index, file, indent=2, ensure_ascii=False)
    return Shard(folder, index, 0, tokens)


def save_hashed(folder: Path, save: Callable[[Path], None]) -> str:
    """The hash of the files that `save` puts into a folder."""
    others = set(folder.iterdir())
    save(folder)
    return hash_files(set(folder.iterdir()) - others)


def hash_files(files: Iterable[Path]) -> str:
    """One hash of names and contents."""
    sign = hashlib.sha256()
    for file in sorted(files):
        sign.update(file.name.encode() + b"\0" + file.read_bytes())
    return sign.hexdigest()


def read_shard(folder: Path, *, verify: bool = False) -> Shard:
    """The shard of a folder; `verify` reads every id and compares the hash.

    Raises:
        QkvError: no index, one of another format, a size that differs from it, or another hash.
    """
    folder = Path(folder)
    try:
        said = Config(read_json(folder / "index.json"), str(folder / "index.json"))
        size = (folder / "tokens.bin").stat().st_size
    except (OSError, QkvError) as e:
        raise QkvError("{folder}: not a token shard ({e}); `qkv data pack` makes one", folder=folder, e=e) from None
    said.choice("format", {FORMAT: FORMAT})
    kind = np.dtype(said.choice("dtype", {"<u2": "<u2", "<u4": "<u4"}))
    tokens = said.value("tokens", 0, Message("a whole number from 1 on"), lambda v: type(v) is int and v > 0)
    said.size("vocabulary")
    said.text("sha256")
    said.text("tokenizer", None)
    index = dict(said.values)
    if size != tokens * kind.itemsize:
        raise QkvError("{folder}/tokens.bin: found {size} bytes, expected {tokens}; pack it again", folder=folder,
                       size=size, tokens=tokens * kind.itemsize)
    shard = Shard(folder, index, 0, tokens)
    if verify:
        with (folder / "tokens.bin").open("rb") as file:
            sign = hashlib.file_digest(file, "sha256").hexdigest()
        if sign != index["sha256"]:
            raise QkvError("{folder}/tokens.bin: its SHA-256 differs from the one in its index; pack it again",
                           folder=folder)
    return shard


def read_pack(folder: Path) -> Shard:
    """A shard that `qkv data pack` wrote: every id is read, and all files beside them are its tokenizer's.

    Raises:
        QkvError: as of `read_shard`, or a tokenizer that is not the one that made it.
    """
    shard = read_shard(folder, verify=True)
    files = [f for f in Path(folder).iterdir() if f.is_file() and f.name not in ("index.json", "tokens.bin")]
    if shard.index.get("tokenizer") not in (None, hash_files(files)):
        raise QkvError("{folder}: the files of its tokenizer ({files}) differ from those that its index knows; pack it "
                       "again", folder=folder, files=", ".join(sorted(f.name for f in files)) or "–")
    return shard


@dataclass(frozen=True)
class Mixture:
    """Several shards of one vocabulary, and how likely a window comes from each; by their tokens without `weights`."""

    shards: tuple[Shard, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.weights and (len(self.weights) != len(self.shards) or min(self.weights) <= 0):
            raise QkvError("weights: found {weights} for {shards} shards, expected as many numbers above 0",
                           weights=list(self.weights), shards=len(self.shards))
        makers = {(s.index["vocabulary"], s.index.get("tokenizer")) for s in self.shards}
        if len(makers) > 1:
            names = ", ".join(str(s.folder) for s in self.shards)
            raise QkvError("{names}: these shards were made with different tokenizers; pack all with the same --model",
                           names=names)

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    @property
    def shares(self) -> NDArray[np.float64]:
        """How likely a window comes from each shard; together 1."""
        weights = np.asarray(self.weights or [len(s) for s in self.shards], dtype=np.float64)
        return weights / weights.sum()

    @property
    def shortest(self) -> int:
        """The tokens of the shortest shard: windows are shorter."""
        return min(map(len, self.shards))

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies these data, without reading them."""
        parts = [[s.index["sha256"], s.start, s.end] for s in self.shards]
        return {"ids": len(self), "shards": parts, "weights": [round(float(w), 9) for w in self.shares]}

    def windows(self, *, length: int, rows: int, seed: int, step: int) -> Tensor:
        """Windows of `length + 1` ids [rows, length + 1], a function of (seed, step): first which shard, then where."""
        if len(self.shards) == 1:
            return packing.draw_windows(self.shards[0].ids, length=length, rows=rows, seed=seed, step=step)
        if self.shortest <= length:
            short = min(self.shards, key=len)
            raise QkvError("{folder} has {short} tokens, a window needs {length}: leave it out, or make the context "
                           "shorter", folder=short.folder, short=len(short), length=length + 1)
        draw = make_generator(seed=seed, epoch=0, index=step)
        which = draw.choice(len(self.shards), rows, p=self.shares)
        where = draw.random(rows)
        found = np.empty((rows, length + 1), dtype=np.int64)
        for n, shard in enumerate(self.shards):
            mine = np.flatnonzero(which == n)
            starts = (where[mine] * (len(shard) - length)).astype(np.int64)
            found[mine] = shard.ids[starts[:, None] + np.arange(length + 1)]
        return torch.from_numpy(found)

    def take_first(self, tokens: int) -> "Mixture":
        """At most so many tokens from the beginning of each shard."""
        return replace(self, shards=tuple(s.select_range(0, min(len(s), tokens)) for s in self.shards))

    def split(self, *, share: float, most: int) -> "tuple[Mixture, Mixture]":
        """All but the last `share` of each shard, or the last `most` tokens if that is less; and those."""
        cuts = [len(s) - min(int(len(s) * share), most) for s in self.shards]
        first = tuple(s.select_range(0, cut) for s, cut in zip(self.shards, cuts, strict=True))
        last = tuple(s.select_range(cut, len(s)) for s, cut in zip(self.shards, cuts, strict=True))
        return Mixture(first, self.weights), Mixture(last, self.weights)

    def held_windows(self, *, length: int, most: int) -> Tensor:
        """At most `most` windows [n, length + 1] side by side, from the beginning of each shard by its share."""
        found: list[Tensor] = []
        for shard, part in zip(self.shards, self.shares, strict=True):
            count = min(len(shard) // (length + 1), max(1, round(most * float(part))))
            ids = np.array(shard.ids[: count * (length + 1)], dtype=np.int64)
            found.append(torch.from_numpy(ids).view(count, length + 1))
        return torch.cat(found)
