"""The lines of a text file as bytes and as text; what is no UTF-8 text is named with its place.

Lines end with LF or CRLF, a byte order mark is dropped, and line numbers start at 1. Next: sources.py.
"""

import bz2
import codecs
import gzip
import io
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar

from qkv.data.json_list import LIST, list_objects
from qkv.data.streams import Stream
from qkv.errors import QkvError, nearest
from qkv.messages import Message

R = TypeVar("R", bound=tuple[str, ...])
LONGEST = 1 << 24  # bytes of one line; a longer one is no row of anything, and is never held in memory
HEAD = 1 << 13  # bytes that distinguish text from other data
MAGIC = {
    b"PK\x03\x04": "zip", b"%PDF": "PDF", b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG",
    b"\xfd7zXZ": "xz", b"SQLite format": "SQLite",
    b"PAR1": "Parquet", b"\x7fELF": "a program", b"ARROW1": "Arrow", b"\x80\x02": "pickle", b"\x80\x04": "pickle",
}
SPECIAL = {
    stat.S_ISFIFO: Message("a named pipe"), stat.S_ISCHR: Message("a device"), stat.S_ISBLK: Message("a device"),
    stat.S_ISSOCK: Message("a socket"),
}
PDF = re.compile(rb"%PDF-\d")  # also of one that was written in letters alone
LISTS = (".json", ".jsonl", ".ndjson")  # names of files that may hold a list of objects
COMPRESSED = (".gz", ".bz2", ".zst")  # names of files that open_text unpacks


@dataclass(frozen=True)
class Line:
    """One line as bytes without its end; of a line over LONGEST only the beginning is here."""

    number: int
    raw: bytes
    offset: int  # of its first byte in the file
    end: bytes  # LF, CRLF, or nothing at the end of the file
    size: int  # bytes of the whole line


def open_text(path: Path) -> IO[bytes]:
    """A text file for reading, behind its byte order mark; gzip, bzip2 and zstandard are unpacked on the way, and of a
    JSON list of objects each is a line.

    Raises:
        QkvError: no such file, a folder, a named pipe or a device, UTF-16, or a file that is not text (zip, a program
            …); while it is read, a compressed file that is damaged.
    """
    path = Path(path)
    refuse_special(path)
    try:
        file = io.BufferedReader(path.open("rb", buffering=0), HEAD)
        head = file.peek(HEAD)  # a pipe cannot go back
    except OSError as e:
        raise explain_missing(path, e) from None
    if unpacker := next((unpacker for magic, unpacker in UNPACKERS.items() if head.startswith(magic)), None):
        try:
            file = io.BufferedReader(decompress(path, file, unpacker(file)), HEAD)
            head = file.peek(HEAD)
        except QkvError:
            file.close()
            raise
    if kind := detect_format(head):
        file.close()
        raise QkvError("{path}: not a UTF-8 text file, found {kind}", path=path, kind=kind)
    if find_suffix(path) in LISTS and LIST.match(head):
        return io.BufferedReader(list_objects(path, file), HEAD)
    if head.startswith(b"\xef\xbb\xbf"):
        file.read(3)
    return file


def measure_text(path: Path, *, most: int) -> int:
    """The bytes of text in a file, a compressed one's when unpacked; it is read until there are `most`.

    Raises:
        QkvError: as `open_text`, of a compressed file.
    """
    with suppress(OSError), path.open("rb") as file:
        if not any(file.read(8).startswith(magic) for magic in UNPACKERS):
            return path.stat().st_size
    size = 0
    with open_text(path) as file:
        while size < most and (block := file.read(HEAD)):
            size += len(block)
    return size


def refuse_special(path: Path) -> None:
    """QkvError for a named pipe, a device or a socket, whose reading may never begin or end; what a shell passes as
    /dev/stdin or /dev/fd/N is read.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # opening it says why
        return
    kind = next((kind for test, kind in SPECIAL.items() if test(mode)), None)
    given = path.parent.as_posix() in ("/dev/fd", "/proc/self/fd") or path.as_posix() == "/dev/stdin"
    if kind and not (given and stat.S_ISFIFO(mode)):
        raise QkvError("{path}: is {kind}, expected a regular file", code="not-regular", path=path, kind=kind)


def open_zstandard(file: IO[bytes]) -> IO[bytes]:
    """A stream that unpacks zstandard; QkvError if the package for it is not installed."""
    try:
        package: Any = import_module("zstandard")
    except ImportError:
        raise QkvError("{path}: reading .zst files needs the package zstandard: pip install zstandard",
                       path=getattr(file, "name", "")) from None
    return package.ZstdDecompressor().stream_reader(file, read_across_frames=True)


UNPACKERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file), b"BZh": bz2.BZ2File, b"\x28\xb5\x2f\xfd": open_zstandard,
}


def decompress(path: Path, file: IO[bytes], inner: IO[bytes]) -> Stream:
    """The bytes that a compressed `file` holds, as `inner` reads them; a damaged one is a QkvError."""

    def take_bytes(size: int) -> bytes:
        try:
            return inner.read(size)
        except Exception as e:  # each library has errors of its own
            raise QkvError("{path}: this compressed file is damaged or cut off: {e}", path=path, e=e) from None

    return Stream(take_bytes, inner, file)


def find_suffix(path: Path) -> str:
    """How a file's name ends, in small letters, before the end that only says how it is compressed."""
    path = Path(path)
    return Path(path.stem if path.suffix.lower() in COMPRESSED else path.name).suffix.lower()


def explain_missing(path: Path, error: OSError) -> QkvError:
    """What to say about a file that cannot be opened."""
    folder = path.parent
    if path.is_dir():
        return QkvError("{path}: is a directory, expected a text file", path=path)
    if not folder.is_dir():
        return QkvError("{path}: no such file (nor is there a folder {folder})", path=path, folder=folder)
    hint, reason = nearest(path.name, (p.name for p in folder.iterdir())), (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        return QkvError("{path}: no such file or directory{hint}", path=path, hint=hint)
    return QkvError("{path}: {reason}{hint}", path=path, reason=reason, hint=hint)


def detect_format(head: bytes) -> Message:
    """What the first bytes of a file are if not UTF-8 text: a format, UTF-16, binary data; otherwise nothing."""
    nul = head.count(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (
        len(head) > 8 and max(head[::2].count(0), head[1::2].count(0)) > len(head) * 0.3 and nul < len(head) * 0.6
    ):
        how = "iconv -f UTF-16 -t UTF-8"
        return Message("UTF-16; convert it: {how}", how=how)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
        valid = True
    except UnicodeDecodeError:
        valid = False
    found = next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")
    if found and not (valid and not nul and not PDF.match(head)):
        return Message("{found}; unpack or export it as text", found=found)
    if nul >= 8 and nul * 100 > len(head):
        return Message("binary data ({nul} NUL bytes in the first {head})", nul=nul, head=len(head))
    return Message("")


def read_raw_lines(path: Path) -> Iterator[Line]:
    """The lines of a text file one after another, in the memory of one line.

    Raises:
        QkvError: see `open_text`; or at its end, the file changed meanwhile.
    """
    with open_text(path) as file:
        begun = identify_state(path)
        offset, number = file.tell() if file.seekable() else 0, 0
        while raw := file.readline(LONGEST):
            number += 1
            size = len(raw)
            rest = raw
            while rest and not rest.endswith(b"\n") and len(rest) == LONGEST:
                rest = file.readline(LONGEST)
                size += len(rest)
            end = b"\r\n" if rest.endswith(b"\r\n") else b"\n" if rest.endswith(b"\n") else b""
            kept = raw.removesuffix(end) if size == len(raw) else raw[:1000]
            yield Line(number, kept, offset, end, size - len(end))
            offset += size
    if identify_state(path) != begun:
        raise QkvError("{path}: the file changed while it was read; nothing was kept, so start again when it is "
                       "complete", path=path)


def identify_state(path: Path) -> tuple[int, int] | None:
    """The size of a file and when it was written; of what is no file, such as a pipe, nothing."""
    found = Path(path).stat()
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def decode_line(path: Path, line: Line) -> str:
    """A line as text.

    Raises:
        QkvError: bytes that are not UTF-8 (with line and byte), NUL bytes, a line without end.
    """
    if line.size > LONGEST:
        raise QkvError("{path}:{number}: one line of {size:,} bytes, expected a row; split it into lines", path=path,
                       number=line.number, size=line.size)
    try:
        text = line.raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise QkvError("{path}:{number}: invalid UTF-8: byte 0x{raw:02x} at offset {offset} (byte {start} of the "
                       "line); convert the file to UTF-8", path=path, number=line.number, raw=line.raw[e.start],
                       offset=line.offset + e.start, start=e.start + 1) from None
    if line.number == 1 and not line.end:
        refuse_returns(path, text)
    if "\0" in text:
        at = line.raw.index(0) + 1
        raise QkvError("{path}:{number}: a NUL byte (byte {at} of the line) in a text file", path=path,
                       number=line.number, at=at)
    return text


def refuse_returns(path: Path, text: str) -> None:
    """QkvError for a text without line ends that has carriage returns within: so old Macs and some tables end lines."""
    if (lines := text.strip("\r").count("\r")) > 0:
        raise QkvError("{path}: {lines:,} lines that end with only a carriage return; convert them to line feeds (tr "
                       "'\\r' '\\n')", path=path, lines=lines + 1)


def refuse_blank(row: R, names: Sequence[str], place: str, other: str = "") -> R:
    """A row of which no text is blank; a blank one is a QkvError that names its place, `other` behind the first."""
    for i, (text, name) in enumerate(zip(row, names, strict=True)):
        if not text.strip():
            at, two = (other, place) if other and i else (place, other)
            beside = Message(" beside {two}", two=two) if two else ""
            raise QkvError("{place}: the {name} is empty{beside}; fix the row, or skip such rows with on_bad_row",
                           place=at, name=name, beside=beside)
    return row


def explain_empty(path: Path) -> QkvError:
    """What to say about a file without text."""
    return QkvError("{path}: the file is empty, expected text", path=path)
