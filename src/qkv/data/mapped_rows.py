"""Rows of texts, ids or messages on disk, read through the page cache: millions train in the memory of a batch.

Texts lie in a file that goes when this process no longer needs it; their ids in the cache. Next: cache.py.
"""

import hashlib
import json
import os
import tempfile
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from qkv.data import shards
from qkv.data.cache import encoded_dir, fetch_entry, tell_progress
from qkv.errors import QkvError
from qkv.messages import Message

LARGE = 50_000  # rows that are not held in memory
HEAVY = 8_000_000  # characters of rows that are not
JSON = "json"  # in the place of a type: the row is what the one text of it says
CHUNK = 1 << 14  # rows that are read, or encoded by all cores, at a time
PART = 1 << 10  # rows of one map: each brings in 64 KiB, which count as memory of the process until the map is closed
VERSION = 1  # of what is in the cache
TEMPORARY = "rows."  # begins the names of files that a process needs for itself


@dataclass(frozen=True)
class MappedRows(Sequence[Any]):
    """Rows of as many texts each, of lists of ids or of messages: those `chosen` in one file, mapped at each call.

    Side s of row n lies from ends[n * sides + s] to the next end.
    """

    file: Path
    dtype: str  # of ids; empty: UTF-8 text; JSON: a list of messages
    ends: NDArray[np.int64]
    sides: int
    sha256: str  # of what is in the file
    chosen: NDArray[np.int64]  # which rows of the file these are

    def __len__(self) -> int:
        return len(self.chosen)

    def __iter__(self) -> Iterator[Any]:
        for at in range(0, len(self), CHUNK):
            yield from self.take(range(at, min(at + CHUNK, len(self))))

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        numbers = range(len(self))[at]
        return self.take(numbers) if isinstance(numbers, range) else self.take((numbers,))[0]

    def take(self, numbers: Sequence[int]) -> list[Any]:
        """Some rows, each a tuple of its sides."""
        if len(numbers) > PART:
            parts = (self.take(numbers[at : at + PART]) for at in range(0, len(numbers), PART))
            return list(chain.from_iterable(parts))
        texts = self.dtype in ("", JSON)
        data = np.asarray(np.memmap(self.file, dtype="u1" if texts else self.dtype, mode="r"))
        places = self.chosen[np.asarray(numbers, dtype=np.int64)][:, None] * self.sides + np.arange(self.sides + 1)
        found: list[Any] = []
        for places_of_row in self.ends[places].tolist():
            parts = (data[a:b] for a, b in pairwise(places_of_row))
            row = tuple(part.tobytes().decode("utf-8") if texts else part.tolist() for part in parts)
            found.append(tuple(json.loads(row[0])) if self.dtype == JSON else row)
        return found

    def select(self, index: NDArray[np.int64]) -> "MappedRows":
        """The rows of such numbers among these."""
        return replace(self, chosen=self.chosen[index])

    def sample(self, most: int) -> list[Any]:
        """Rows at even distances, together of about so many bytes at most."""
        return self[:: max(1, -(-int(self.ends[-1]) // most))]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """How long each side of each row is: N sides."""
        return np.diff(self.ends).astype(np.int32).reshape(-1, self.sides)[self.chosen]

    @property
    def identity(self) -> str:
        """The SHA-256 of what the rows hold."""
        sign = hashlib.sha256(self.sha256.encode())
        sign.update(self.ends)  # type: ignore[arg-type]
        sign.update(self.chosen)  # type: ignore[arg-type]
        return sign.hexdigest()


def collect_rows(rows: Iterable[Any], *, behind: str = "") -> "list[Any] | MappedRows":
    """Rows, of texts or of messages, as a list, or as `spool_rows` where they are many or long."""
    each, first, size = iter(rows), list[Any](), 0
    for row in each:
        first.append(row)
        size += sum(map(len, list_sides(row)))
        if len(first) > LARGE or size > HEAVY:
            return spool_rows(chain(first, each), behind=behind)
    return first


def list_sides(row: Any) -> Sequence[str]:
    """The texts of a row; messages are one, in JSON."""
    return (json.dumps(row, ensure_ascii=False),) if isinstance(row[0], dict) else row


def spool_rows(rows: Iterable[Any], *, behind: str = "") -> MappedRows:
    """Rows in a file of their own, which is removed with the last of them; `behind` is written after each text.

    Raises:
        QkvError: the file cannot be written.
    """
    sign, ends, sides, at, kind, start = hashlib.sha256(), array("q", [0]), 1, 0, "", time.monotonic()
    try:
        encoded_dir().mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=encoded_dir(), prefix=f"{TEMPORARY}{os.getpid()}.")
        path = Path(name)
        with ExitStack() as undo, os.fdopen(number, "wb") as file:
            undo.callback(path.unlink)
            for n, row in enumerate(rows):
                if n and n % CHUNK == 0:
                    tell_progress(Message("reading rows ({n:,})", n=n), int(time.monotonic() - start), 0)
                texts = list_sides(row)
                sides, kind = len(texts), JSON if texts is not row else ""
                for text in texts:
                    raw = (text + behind).encode("utf-8")
                    sign.update(raw)
                    file.write(raw)
                    at += len(raw)
                    ends.append(at)
            file.flush()
            undo.pop_all()
    except OSError as e:
        raise QkvError("{folder}: the rows cannot be written there ({e}); QKV_CACHE names another folder",
                       folder=encoded_dir(), e=e) from e
    weakref.finalize(ends, path.unlink, missing_ok=True)  # the array below refers to `ends`
    found = np.frombuffer(ends, dtype=np.int64)
    return MappedRows(path, kind, found, sides, sign.hexdigest(), np.arange((len(found) - 1) // sides))


def select_rows(rows: Any, index: NDArray[np.int64]) -> Any:
    """The rows of such numbers, of a list or on disk."""
    return rows.select(index) if isinstance(rows, MappedRows) else [rows[i] for i in index.tolist()]


def encode_rows(
    rows: MappedRows, encode: Callable[[list[Any]], list[Any]], *, sides: int, vocabulary: int, maker: str
) -> MappedRows:
    """What `encode` makes of rows, so many lists of ids of each, from the cache or made now.

    `maker` identifies the tokenizer and the way.
    """
    ends = array("q", [0])
    name = hashlib.sha256(f"{VERSION} {rows.identity} {sides} {maker}".encode()).hexdigest()[:32]

    def encode_chunks() -> Iterator[list[int]]:
        for at in range(0, len(rows), CHUNK):
            tell_progress(Message("encoding rows"), at, len(rows))
            flat = list(chain.from_iterable(encode(rows.take(range(at, min(at + CHUNK, len(rows)))))))
            for ids in flat:
                ends.append(ends[-1] + len(ids))
            yield list(chain.from_iterable(flat))

    def save(folder: Path) -> None:
        with (folder / "ends.bin").open("wb") as file:
            ends.tofile(file)

    def describe_entry() -> dict[str, Any]:
        return {"source": "rows", "bytes": int(rows.ends[-1]), "rows": len(rows)}

    def write_tokens(place: Path) -> None:
        shards.write_shard(place, encode_chunks(), vocabulary=vocabulary, save=save, about=describe_entry)

    def read(place: Path) -> MappedRows:
        shard, ends = shards.read_shard(place, verify=True), np.fromfile(place / "ends.bin", dtype=np.int64)
        if len(ends) != len(rows) * sides + 1 or ends[-1] != len(shard):
            raise QkvError("{place}: found the ends of other rows", place=place)  # so they are encoded once more
        return MappedRows(place / "tokens.bin", shard.index["dtype"], ends, sides, shard.index["sha256"],
                          np.arange(len(rows)))

    return fetch_entry(name, read, write_tokens)
