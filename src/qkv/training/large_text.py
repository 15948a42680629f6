"""Text that is not held in memory: scanned once for its hash and an even sample, then encoded into the cache.

A LargeText has a length and slices as a str has, taken from the sample, so that it can be measured. Next: cache.py.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any

from qkv.data import shards
from qkv.data.bad_rows import BadRowPolicy
from qkv.data.cache import fetch_entry, tell_progress
from qkv.data.shards import Shard
from qkv.data.sources import JSON, get_string, parse_object
from qkv.data.text_files import Line, decode_line, find_suffix, open_text
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.tokenizers.tokenizer import Tokenizer

LARGE = 8_000_000  # bytes of files that are not held in memory
SAMPLE = 20_000_000  # bytes at most from which a vocabulary is made
BLOCK = 1 << 15  # bytes that are encoded at a time
BATCH = 1 << 21  # characters of blocks that all cores encode together
HELD = 0.1  # of the end of a file, which is not sampled: it may be held out
VERSION = 1  # of what is in the cache


@dataclass(frozen=True)
class Scan:
    """A file that was read once: its SHA-256, its bytes, and parts of it from places at even distances.

    `key` is where the text is in JSON lines; empty for plain text.
    """

    path: Path
    key: str
    sha256: str
    bytes: int
    parts: tuple[str, ...]


def read_units(file: IO[bytes], key: str) -> Iterator[bytes]:
    """A file in blocks, one of JSON lines by its lines."""
    return iter(file) if key else iter(lambda: file.read(BLOCK), b"")


def scan_text(path: Path, key: str = "", *, sample: int = SAMPLE) -> Scan:
    """Read a file once, keeping at most `sample` bytes of it; a `key` says that it is JSON lines, as its name may.

    Raises:
        QkvError: no such file, or one that is not text.
    """
    key = key or ("text" if find_suffix(path) in JSON else "")
    sign, kept, stride, held, size = hashlib.sha256(), list[tuple[int, bytes]](), 1, 0, 0
    with open_text(path) as file:
        for number, unit in enumerate(read_units(file, key)):
            sign.update(unit)
            if number % stride == 0:
                kept.append((size, unit))
                held += len(unit)
            size += len(unit)
            while held > sample and len(kept) > 1:  # every second one goes, and so the rest stays even
                stride, kept = 2 * stride, kept[::2]
                held = sum(len(unit) for _, unit in kept)
    first = [unit for at, unit in kept if at < (1 - HELD) * size] or [unit for _, unit in kept]
    parts = filter(None, (read_line(unit, key) if key else cut_whole(unit) for unit in first))
    return Scan(path, key, sign.hexdigest(), size, tuple(parts))


def read_line(raw: bytes, key: str) -> str:
    """The text of a line of JSON; nothing of a bad one, which is reported when all are read."""
    try:
        return get_string(parse_object(raw.decode("utf-8"), ""), key, "")
    except (UnicodeDecodeError, QkvError):
        return ""


def cut_whole(raw: bytes) -> str:
    """The whole lines of a block, or what it holds of whole characters."""
    lines = raw[raw.find(b"\n") + 1 : raw.rfind(b"\n") + 1] or raw
    return lines.decode("utf-8", "ignore").replace("\r\n", "\n")


@dataclass(frozen=True)
class LargeText:
    """Text of one or more files; `len` is about its characters, a slice is that part of what was sampled."""

    scans: tuple[Scan, ...]
    policy: BadRowPolicy
    rows: Any = None  # whose file is read: it goes with them

    @cached_property
    def sampled(self) -> str:
        """What is kept of all files, from their beginning to their end."""
        return "".join(part for scan in self.scans for part in scan.parts)

    @property
    def bytes(self) -> int:
        """Those of all files."""
        return sum(scan.bytes for scan in self.scans)

    @cached_property
    def sampled_bytes(self) -> int:
        """Those of what is kept."""
        return len(self.sampled.encode("utf-8", "ignore"))

    def __len__(self) -> int:
        return round(self.bytes * len(self.sampled) / max(1, self.sampled_bytes))

    def __getitem__(self, part: slice) -> str:
        start, stop, _ = part.indices(len(self))
        at = start * len(self.sampled) // max(1, len(self))
        return self.sampled[at : at + stop - start]

    def describe_sample(self) -> Message:
        """The note on what a vocabulary was made from."""
        return Message("vocabulary from {sample:.3g} MB of {all:.4g} MB, drawn evenly", sample=self.sampled_bytes / 1e6,
                       all=self.bytes / 1e6)

    def encode_files(self, tokenizer: Tokenizer, *, documents: bool) -> tuple[Shard, ...]:
        """The ids of each file as a shard in the cache; with `documents` the end symbol closes what blank lines part.

        Raises:
            QkvError: a line that is not text, a file that changed after it was scanned, or a full disk.
        """
        with self.policy:
            return tuple(encode_scan(scan, tokenizer, self.policy, documents) for scan in self.scans)


def encode_scan(scan: Scan, tokenizer: Tokenizer, policy: BadRowPolicy, documents: bool) -> Shard:
    """The shard of a file, from the cache or made now."""
    end = [tokenizer.eos_id] if documents and tokenizer.eos_id is not None else []
    made_of = repr((VERSION, scan.sha256, scan.key, end, policy.action, identify_tokenizer(tokenizer)))
    name = hashlib.sha256(made_of.encode()).hexdigest()[:32]

    def describe_entry() -> dict[str, Any]:
        bad = policy.dropped.get(str(scan.path), 0)
        return {"source": str(scan.path.resolve()), "bytes": scan.bytes, "bad_rows": bad}

    def read(place: Path) -> Shard:
        shard = shards.read_shard(place, verify=True)
        gone = policy.action == "quarantine" and policy.file is None and policy.aside and not policy.aside.exists()
        if shard.index["bad_rows"] and gone:
            raise QkvError("{aside}: no such file", aside=policy.aside)  # so the bad rows are found once more
        return shard

    def write_tokens(place: Path) -> None:
        batches = encode_blocks(scan, tokenizer, policy, end)
        shards.write_shard(place, batches, vocabulary=len(tokenizer), save=tokenizer.save, about=describe_entry)

    return fetch_entry(name, read, write_tokens)


def identify_tokenizer(tokenizer: Tokenizer) -> str:
    """The SHA-256 of what makes ids of texts."""
    own = b"".join((tokenizer.backend.to_str().encode("utf-8", "backslashreplace"), *tokenizer.files.values()))
    return hashlib.sha256(own).hexdigest()


def encode_blocks(scan: Scan, tokenizer: Tokenizer, policy: BadRowPolicy, end: list[int]) -> Iterator[list[int]]:
    """The ids of a file, batch by batch: one is encoded by all cores while the one before it is written."""
    doing = Message("encoding {name}", name=scan.path.name)

    def encode_batch(batch: list[tuple[str, bool]]) -> list[int]:
        rows = tokenizer.encode_batch([text for text, _ in batch], special=False)
        closed = (row + end if last else row for row, (_, last) in zip(rows, batch, strict=True))
        return list(chain.from_iterable(closed))

    waiting = deque[tuple[Future[list[int]], int]]()
    with ThreadPoolExecutor(1) as worker:
        try:
            for batch, done in group_blocks(scan, policy, parted=bool(end)):
                waiting.append((worker.submit(encode_batch, batch), done))
                while len(waiting) > 1:
                    future, done = waiting.popleft()
                    yield future.result()
                    tell_progress(doing, done, scan.bytes)
            while waiting:
                yield waiting.popleft()[0].result()
        finally:
            worker.shutdown(cancel_futures=True)


def group_blocks(scan: Scan, policy: BadRowPolicy, *, parted: bool) -> Iterator[tuple[list[tuple[str, bool]], int]]:
    """(some texts, each with whether it ends a document; the bytes that were read for all so far)."""
    batch, letters, done = list[tuple[str, bool]](), 0, 0
    for text, done in read_blocks(scan, policy):
        *ended, last = text.split("\n\n") if parted else (text,)
        batch += [(part.strip("\n"), True) for part in ended if part.strip()]
        batch += [(last.lstrip("\n") if ended else last, False)] if last.strip() or not parted else []
        letters += len(text)
        if letters >= BATCH and len(batch) > 1:
            yield batch[:-1], done
            batch, letters = batch[-1:], 0  # the last of all ends a document
    if batch:
        text = batch[-1][0]
        yield [*batch[:-1], (text.rstrip("\n") if parted else text, parted)], done


def read_blocks(scan: Scan, policy: BadRowPolicy) -> Iterator[tuple[str, int]]:
    """A file's text in blocks, cut behind lines where there are any, and the bytes read so far.

    Raises:
        QkvError: the file is not what was scanned, or a line is bad and the policy lets none pass.
    """
    sign, path, line, done, rest = hashlib.sha256(), scan.path, 1, 0, b""
    with open_text(path) as file:
        for unit in read_units(file, scan.key):
            sign.update(unit)
            done += len(unit)
            if scan.key:
                yield read_json_block(scan, unit, line, policy), done
                line += 1
                continue
            block, rest = cut_block(rest + unit)
            if block:
                yield decode_block(path, block, line, done - len(rest) - len(block), policy), done
                line += block.count(b"\n")
    if sign.hexdigest() != scan.sha256:
        raise QkvError("{path}: the file changed while it was read; nothing was kept, so start again when it is "
                       "complete", path=path)
    if rest:
        yield decode_block(path, rest, line, done - len(rest), policy), done


def cut_block(raw: bytes) -> tuple[bytes, bytes]:
    """(a block, the rest): cut between documents, else between lines, words or characters."""
    for mark in (b"\n\n", b"\n\r\n", b"\n", b" "):
        if (at := raw.rfind(mark, 0, -1)) >= 0:  # what follows must be known: it may be one more line end
            at += len(mark) if mark != b" " else 0
            return raw[:at], raw[at:]
    if len(raw) < BLOCK:
        return b"", raw
    at = len(raw) - 1
    while at > len(raw) - 4 and raw[at] & 0xC0 == 0x80:
        at -= 1
    return raw[:at], raw[at:]


def decode_block(path: Path, raw: bytes, line: int, offset: int, policy: BadRowPolicy) -> str:
    """The text of a block that begins with a line of such a number; bad lines are left out where that is allowed."""
    try:
        text = raw.decode("utf-8")
        if "\0" not in text:
            return text.replace("\r\n", "\n")
    except UnicodeDecodeError:
        pass
    kept: list[str] = []
    for number, one in enumerate(raw.split(b"\n"), line):
        last = number == line + raw.count(b"\n")
        end = b"" if last else b"\r\n" if one.endswith(b"\r") else b"\n"
        found = Line(number, one.removesuffix(b"\r") if end else one, offset, end, len(one))
        try:
            kept.append(decode_line(path, found) + ("\n" if end else ""))
        except QkvError as error:
            policy.refuse(error, (path, found))
        offset += len(one) + 1
    return "".join(kept)


def read_json_block(scan: Scan, raw: bytes, number: int, policy: BadRowPolicy) -> str:
    """The text of a line of JSON, with the blank line that parts documents behind it."""
    path, line = scan.path, Line(number, raw.rstrip(b"\r\n"), 0, b"\n", len(raw))
    try:
        text, place = decode_line(path, line), f"{path}:{number}"
        return get_string(parse_object(text, place), scan.key, place) + "\n\n" if text.strip() else ""
    except QkvError as error:
        policy.refuse(error, (path, line))
        return ""
