"""The lines of a text file as bytes and as text; what is no UTF-8 text is named with its place.

Lines end with LF or CRLF, a byte order mark is dropped, and line numbers start at 1. Next: sources.py.
"""

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from qkv.errors import Note, QkvError, nearest

LONGEST = 1 << 24  # bytes of one line; a longer one is no row of anything, and is never held in memory
HEAD = 1 << 13  # bytes that tell text from what is none
MAGIC = {
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"%PDF": "PDF", b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG",
    b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard", b"SQLite format": "SQLite",
    b"PAR1": "Parquet", b"\x7fELF": "a program", b"ARROW1": "Arrow", b"\x80\x02": "pickle", b"\x80\x04": "pickle",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line as bytes without its end; of a line over LONGEST only the beginning is here."""

    number: int
    raw: bytes
    offset: int  # of its first byte in the file
    end: bytes  # LF, CRLF, or nothing at the end of the file
    size: int  # bytes of the whole line


def open_text(path: Path) -> IO[bytes]:
    """A text file for reading, behind its byte order mark.

    Raises:
        QkvError: no such file, a folder, UTF-16, or a file that is no text (gzip, zip, a program …).
    """
    path = Path(path)
    try:
        file = io.BufferedReader(path.open("rb", buffering=0), HEAD)
        head = file.peek(HEAD)  # a pipe cannot go back
    except OSError as e:
        raise explain_missing(path, e) from None
    if kind := detect_format(head):
        file.close()
        raise QkvError(f"{path}: not a UTF-8 text file, found {kind}",
                       zh=f"{path}：不是 UTF-8 文本文件，而是 {kind.zh}")  # fmt: skip
    if head.startswith(b"\xef\xbb\xbf"):
        file.read(3)
    return file


def explain_missing(path: Path, error: OSError) -> QkvError:
    """What to say about a file that cannot be opened."""
    folder = path.parent
    if path.is_dir():
        return QkvError(f"{path}: is a directory, expected a text file", zh=f"{path}：是目录，应是文本文件")
    if not folder.is_dir():
        return QkvError(f"{path}: no such file (nor is there a folder {folder})",
                        zh=f"{path}：没有这个文件（也没有目录 {folder}）")  # fmt: skip
    hint, reason = nearest(path.name, (p.name for p in folder.iterdir())), (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        return QkvError(f"{path}: no such file or directory{hint}", zh=f"{path}：没有这个文件{hint.zh}")
    return QkvError(f"{path}: {reason}{hint}", zh=f"{path}：打不开（{reason}）{hint.zh}")


def detect_format(head: bytes) -> Note:
    """What the first bytes of a file are if they are no UTF-8 text: a format, UTF-16, binary data; else nothing."""
    nul = head.count(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (
        len(head) > 8 and max(head[::2].count(0), head[1::2].count(0)) > len(head) * 0.3 and nul < len(head) * 0.6
    ):
        how = "iconv -f UTF-16 -t UTF-8"
        return Note(f"UTF-16; convert it: {how}", zh=f"UTF-16；请转换：{how}")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
        valid = True
    except UnicodeDecodeError:
        valid = False
    found = next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")
    if found and not (valid and not nul):
        return Note(f"{found}; unpack or export it as text", zh=f"{found}；请解开或导出成文本")
    if nul >= 8 and nul * 100 > len(head):
        return Note(f"binary data ({nul} NUL bytes in the first {len(head)})",
                    zh=f"二进制数据（前 {len(head)} 字节中有 {nul} 个 NUL）")  # fmt: skip
    return Note("")


def read_raw_lines(path: Path) -> Iterator[Line]:
    """The lines of a text file one after another, in the memory of one line.

    Raises:
        QkvError: see `open_text`.
    """
    with open_text(path) as file:
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


def decode_line(path: Path, line: Line) -> str:
    """A line as text.

    Raises:
        QkvError: bytes that are not UTF-8 (with line and byte), NUL bytes, a line without end.
    """
    if line.size > LONGEST:
        raise QkvError(f"{path}:{line.number}: one line of {line.size:,} bytes, expected a row; split it into lines",
                       zh=f"{path}:{line.number}：这一行有 {line.size:,} 字节，应是一条数据；请分成多行")  # fmt: skip
    try:
        text = line.raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise QkvError(
            f"{path}:{line.number}: invalid UTF-8: byte 0x{line.raw[e.start]:02x} at offset {line.offset + e.start} "
            f"(byte {e.start + 1} of the line); convert the file to UTF-8",
            zh=f"{path}:{line.number}：不是 UTF-8：字节 0x{line.raw[e.start]:02x}，在文件的第 {line.offset + e.start} "
            f"字节处（本行第 {e.start + 1} 字节）；请把文件转成 UTF-8",
        ) from None
    if line.number == 1 and not line.end:
        refuse_returns(path, text)
    if "\0" in text:
        at = line.raw.index(0) + 1
        raise QkvError(f"{path}:{line.number}: a NUL byte (byte {at} of the line) in a text file",
                       zh=f"{path}:{line.number}：文本文件中有 NUL 字节（本行第 {at} 字节）")  # fmt: skip
    return text


def refuse_returns(path: Path, text: str) -> None:
    """QkvError for a text without line ends that has carriage returns within: so old Macs and some tables end lines."""
    if (lines := text.strip("\r").count("\r")) > 0:
        raise QkvError(f"{path}: {lines + 1:,} lines that end with a carriage return alone; convert it to line feeds "
                       "(tr '\\r' '\\n')",
                       zh=f"{path}：有 {lines + 1:,} 行只以回车符结尾；请换成换行符（tr '\\r' '\\n'）")  # fmt: skip


def explain_empty(path: Path) -> QkvError:
    """What to say about a file without text."""
    return QkvError(f"{path}: the file is empty, expected text", zh=f"{path}：文件是空的，应有文本")
