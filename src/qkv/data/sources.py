"""Text files as they come: parallel files, TSV, JSON lines, plain text; each fault is told by file and line.

Lines end with LF or CRLF, a byte order mark is dropped, and line numbers start at 1. Files are read line by line, and a
`Sieve` says what becomes of a bad row. Next: check.py, which reports on files before they are trained on.
"""

import base64
import codecs
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Literal, TypeVar, cast

from qkv.errors import QkvError, nearest
from qkv.messages import Message

LONGEST = 1 << 24  # bytes of one line; a longer one is no row of anything, and is never held in memory
PIECE = 1 << 20  # characters of a long text at a time
HEAD = 1 << 13  # bytes that tell text from what is none
MAGIC = {
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"%PDF": "PDF", b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG",
    b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard", b"SQLite format": "SQLite",
    b"PAR1": "Parquet", b"\x7fELF": "a program", b"ARROW1": "Arrow", b"\x80\x02": "pickle", b"\x80\x04": "pickle",
}  # fmt: skip
JSON = (".jsonl", ".ndjson")  # names of files of JSON lines
TRIED = ContextVar("TRIED", default=False)  # see tried()
Policy = Literal["error", "skip", "quarantine"]
Pair = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One line as bytes without its end; of a line over LONGEST only the beginning is here."""

    number: int
    raw: bytes
    offset: int  # of its first byte in the file
    end: bytes  # LF, CRLF, or nothing at the end of the file
    size: int  # bytes of the whole line


@dataclass
class Sieve:
    """What becomes of bad rows: the first one is an error, or each is left out, or put aside into a file.

    Used in a `with` block; the file, JSON lines of {file, line, why, text}, is there when the block ends, and no other
    than before where it ends with an error. Rows that are no UTF-8 are kept in base64 too, so that nothing is lost.
    """

    policy: Policy = "error"
    aside: Path | None = None  # where rows in quarantine go
    dropped: dict[str, int] = field(default_factory=dict)  # rows left out, by file
    first: dict[str, Message] = field(default_factory=dict)  # what was wrong with the first of them, by file
    file: IO[str] | None = None

    def __post_init__(self) -> None:
        known = ("error", "skip", "quarantine")
        if self.policy not in known:
            hint = nearest(self.policy, known)
            raise QkvError("on_bad_row: found {policy!r}{hint} (known: {known})", policy=self.policy, hint=hint,
                           known=", ".join(known))
        if self.policy == "quarantine" and self.aside is None:
            raise QkvError("on_bad_row: a quarantine needs a file to put bad rows into")
        if self.policy == "quarantine" and TRIED.get():
            self.policy = "skip"

    def __enter__(self) -> "Sieve":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if self.file is not None and self.aside is not None:
            self.file.close()
            if kind is None:
                os.replace(self.file.name, self.aside)
            else:
                Path(self.file.name).unlink()
            self.file = None

    def refuse(self, error: QkvError, *rows: tuple[Path, Line]) -> None:
        """A bad row, which may be one line in each of several files; under `error` this raises."""
        if self.policy == "error":
            raise error
        name = str(rows[0][0])
        self.first.setdefault(name, error.message)
        self.dropped[name] = self.dropped.get(name, 0) + 1
        if self.policy == "quarantine" and self.aside is not None:
            if self.file is None:
                refuse_other(self.aside)
                self.aside.parent.mkdir(parents=True, exist_ok=True)
                self.file = self.aside.with_name(f".{self.aside.name}.{os.getpid()}").open("w", encoding="utf-8")
            for path, line in rows:
                self.file.write(json.dumps(_kept(path, line, str(error)), ensure_ascii=False) + "\n")

    @property
    def notes(self) -> list[Message]:
        """One sentence for each file that lost rows."""
        kept = self.policy == "quarantine"
        where = Message(", put into {aside}", aside=self.aside) if kept else ""
        return [Message("{n} bad row(s) left out{where}; the first: {first}", n=n, where=where,
                        first=self.first[name])
                for name, n in self.dropped.items()]


@contextmanager
def tried() -> Iterator[None]:
    """Within it no quarantine is written, as by what only tries whether data can be read; bad rows are left out."""
    token = TRIED.set(True)
    try:
        yield
    finally:
        TRIED.reset(token)


def refuse_other(aside: Path) -> None:
    """QkvError where something else than an earlier quarantine, or an empty file, lies."""
    try:
        with aside.open("rb") as file:
            line = file.readline()
        first = json.loads(line) if line else None
        earlier = not line or (isinstance(first, dict) and {"file", "line", "why"} <= first.keys())
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        earlier = False
    if not earlier:
        raise QkvError("{aside}: is no quarantine of ours and would be written over; name another file: "
                       "data.quarantine=FILE", aside=aside)


def _kept(path: Path, line: Line, why: str) -> dict[str, str | int]:
    text = line.raw.decode("utf-8", "replace")
    row: dict[str, str | int] = {"file": str(path), "line": line.number, "why": why, "text": text}
    whole = len(line.raw) == line.size
    if not whole:
        return row | {"bytes": line.size, "offset": line.offset}
    return row if text.encode("utf-8") == line.raw else row | {"base64": base64.b64encode(line.raw).decode("ascii")}


def opened(path: Path) -> IO[bytes]:
    """A text file for reading, behind its byte order mark.

    Raises:
        QkvError: no such file, a folder, UTF-16, or a file that is no text (gzip, zip, a program …).
    """
    path = Path(path)
    try:
        file = io.BufferedReader(path.open("rb", buffering=0), HEAD)
        head = file.peek(HEAD)  # a pipe cannot go back
    except OSError as e:
        raise missing(path, e) from None
    if kind := not_text(head):
        file.close()
        raise QkvError("{path}: not a UTF-8 text file, found {kind}", path=path, kind=kind)
    if head.startswith(b"\xef\xbb\xbf"):
        file.read(3)
    return file


def missing(path: Path, error: OSError) -> QkvError:
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


def not_text(head: bytes) -> Message:
    """What the first bytes of a file are if they are no UTF-8 text: a format, UTF-16, binary data; else nothing."""
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
    if found and not (valid and not nul):
        return Message("{found}; unpack or export it as text", found=found)
    if nul >= 8 and nul * 100 > len(head):
        return Message("binary data ({nul} NUL bytes in the first {head})", nul=nul, head=len(head))
    return Message("")


def raw_lines(path: Path) -> Iterator[Line]:
    """The lines of a text file one after another, in the memory of one line.

    Raises:
        QkvError: see `opened`.
    """
    with opened(path) as file:
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


def decoded(path: Path, line: Line) -> str:
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


def document(path: Path, *, sieve: Sieve | None = None) -> str:
    """The whole text of a file; bad lines are left out where a sieve says so.

    Raises:
        QkvError: no such file, an empty one, or bytes that are not UTF-8 (with line and byte offset).
    """
    path = Path(path)
    with opened(path) as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
        whole = "\0" not in text
    except UnicodeDecodeError:
        text, whole = "", False
    if not whole:
        kept: list[str] = []
        for line in raw_lines(path):
            try:
                kept.append(decoded(path, line) + ("\n" if line.end else ""))
            except QkvError as error:
                (sieve or Sieve()).refuse(error, (path, line))
        text = "".join(kept)
    if not text.strip():
        raise empty(path)
    if "\n" not in text:
        refuse_returns(path, text)
    return text.replace("\r\n", "\n")


def refuse_returns(path: Path, text: str) -> None:
    """QkvError for a text without line ends that has carriage returns within: so old Macs and some tables end lines."""
    if (lines := text.strip("\r").count("\r")) > 0:
        raise QkvError("{path}: {lines:,} lines that end with a carriage return alone; convert it to line feeds (tr "
                       "'\\r' '\\n')", path=path, lines=lines + 1)


def pieces(path: Path, key: str = "text") -> Iterator[tuple[str, bool]]:
    """A text of any length in pieces of about a million characters, cut between lines, and whether a document ends.

    A file is a document; of JSON lines (*.jsonl) the text under `key` in each is one.

    Raises:
        QkvError: a line that is no text or no such JSON, or nothing but blanks (with file and line).
    """
    if Path(path).suffix.lower() in JSON:
        for _, found in text_rows(path, key):
            yield found, True
        return
    held: list[str] = []
    length = seen = 0
    for line in raw_lines(path):
        if length >= PIECE:
            yield "".join(held), False
            held, length = [], 0
        held.append(decoded(path, line) + ("\n" if line.end else ""))
        length += len(held[-1])
        seen += bool(held[-1].strip())
    if not seen:
        raise empty(path)
    yield "".join(held), True


def text_rows(path: Path, key: str = "text", *, sieve: Sieve | None = None) -> Iterator[tuple[int, str]]:
    """The string under `key` of each line's JSON object, and the line; blank lines are skipped.

    Raises:
        QkvError: a line that is no JSON object, or has no string there.
    """
    return rows(path, lambda text, place: _string(json_object(text, place), key, place), sieve=sieve)


def lines(path: Path) -> list[str]:
    """The lines of a file without their ends; empty lines stay, because partners are found by number."""
    return document(path).removesuffix("\n").split("\n")


def rows(path: Path, parse: Callable[[str, str], T], *, sieve: Sieve | None = None) -> Iterator[tuple[int, T]]:
    """What `parse(text, "file:line")` makes of each line that is not blank, with its number; it raises on a bad row.

    Raises:
        QkvError: the first bad row, or no row at all is good.
    """
    path, sieve, good = Path(path), sieve or Sieve(), 0
    for line in raw_lines(path):
        try:
            text = decoded(path, line)
            if not text.strip():
                continue
            found = parse(text, f"{path}:{line.number}")
        except QkvError as error:
            sieve.refuse(error, (path, line))
            continue
        good += 1
        yield line.number, found
    _any(path, good, sieve)


def _any(path: Path, good: int, sieve: Sieve) -> None:
    """Refuse a file without a good row."""
    if good:
        return
    if bad := sieve.dropped.get(str(path)):
        first = sieve.first[str(path)]
        raise QkvError("{path}: all {bad} rows are bad; the first: {first}", path=path, bad=bad, first=first)
    raise empty(path)


def pair_rows(source: Path, target: Path, *, sieve: Sieve | None = None) -> Iterator[tuple[int, Pair]]:
    """Line n of one file with line n of the other, and n; where both are blank there is no pair.

    Raises:
        QkvError: a line that is no text or has an empty partner; files that differ in length (both counts, and the
            first line without a partner), whatever the sieve says: nobody knows which lines belong together.
    """
    source, target, sieve, good = Path(source), Path(target), sieve or Sieve(), 0
    one, two = raw_lines(source), raw_lines(target)
    for a, b in zip_longest(one, two):
        if a is None:
            assert b is not None
            raise unequal((source, b.number - 1), (target, b.number + sum(1 for _ in two)), b.number)
        if b is None:
            raise unequal((source, a.number + sum(1 for _ in one)), (target, a.number - 1), a.number)
        try:
            pair = decoded(source, a), decoded(target, b)
            if not any(side.strip() for side in pair):
                continue
            filled(pair, f"{source}:{a.number}", f"{target}:{b.number}")
        except QkvError as error:
            sieve.refuse(error, (source, a), (target, b))
            continue
        good += 1
        yield a.number, pair
    _any(source, good, sieve)


def unequal(one: tuple[Path, int], two: tuple[Path, int], first: int) -> QkvError:
    """What to say about two files with their counts of lines, of which the longer has no partner for line `first`."""
    for path, count in (one, two):
        if not count:
            return empty(path)
    longer = one[0] if one[1] > two[1] else two[0]
    return QkvError("{one} has {one2} lines and {two} has {two2}, expected as many: {longer}:{first} is the first "
                    "line without a partner", one=one[0], one2=one[1], two=two[0], two2=two[1], longer=longer,
                    first=first)


def empty(path: Path) -> QkvError:
    """What to say about a file without text."""
    return QkvError("{path}: the file is empty, expected text", path=path)


def filled(pair: Pair, one: str, two: str, names: tuple[str, str] = ("source", "target")) -> Pair:
    """A pair of which neither side is blank; a blank one is a QkvError that names the place of each."""
    for text, name, place in zip(pair, names, (one, two), strict=True):
        if not text.strip():
            beside = "" if one == two else Message(" beside {two}", two=two if place == one else one)
            raise QkvError("{place}: the {name} is empty{beside}; mend the row, or leave such rows out: on_bad_row",
                           place=place, name=name, beside=beside)
    return pair


def pairs(source: Path, target: Path, *, sieve: Sieve | None = None) -> list[Pair]:
    """The pairs of two parallel files: see `pair_rows`."""
    return [pair for _, pair in pair_rows(source, target, sieve=sieve)]


def tsv_rows(
    path: Path, columns: tuple[int, int] = (0, 1), *, sieve: Sieve | None = None
) -> Iterator[tuple[int, Pair]]:
    """Two columns (counted from 0) of a file with tabs between columns, and the line; blank lines are skipped.

    Raises:
        QkvError: a line that lacks a column, or has nothing in it.
    """

    def parse(text: str, place: str) -> Pair:
        cells = text.split("\t")
        if len(cells) <= max(columns):
            raise QkvError("{place}: found {cells} column(s), expected at least {columns} with tabs between",
                           place=place, cells=len(cells), columns=max(columns) + 1)
        names = (f"column {columns[0] + 1}", f"column {columns[1] + 1}")
        return filled((cells[columns[0]], cells[columns[1]]), place, place, names)

    return rows(path, parse, sieve=sieve)


TITLES = set[str]().union(*map(str.split, (
    "source target src tgt text texts sentence sentence1 sentence2 label labels class category score",
    "input output prompt completion question answer zh en de fr chinese english german french",
    "中文 英文 原文 译文 源文 文本 句子 标签 类别 问题 答案 输入 输出",
)))  # fmt: skip


def titled(row: Sequence[str]) -> bool:
    """Whether a row names the columns of a table, as its first line often does, instead of filling them."""
    return all(cell.strip().strip('"').lower() in TITLES for cell in row)


def tsv(path: Path, columns: tuple[int, int] = (0, 1), *, sieve: Sieve | None = None) -> list[Pair]:
    """The pairs of a TSV file: see `tsv_rows`."""
    return [pair for _, pair in tsv_rows(path, columns, sieve=sieve)]


def jsonl_rows(
    path: Path, keys: tuple[str, str] = ("source", "target"), *, sieve: Sieve | None = None
) -> Iterator[tuple[int, Pair]]:
    """Two strings of each line's JSON object, and the line; blank lines are skipped. A `label` may be a whole number,
    true or false; of a key within another the path has dots.

    Raises:
        QkvError: a line that is no JSON object, or lacks a key, or holds something other than a string there, or an
            empty one.
    """

    def parse(text: str, place: str) -> Pair:
        item = json_object(text, place)
        return filled((_string(item, keys[0], place), _string(item, keys[1], place)), place, place, keys)

    return rows(path, parse, sieve=sieve)


def jsonl(path: Path, keys: tuple[str, str] = ("source", "target"), *, sieve: Sieve | None = None) -> list[Pair]:
    """The pairs of a file of JSON lines: see `jsonl_rows`."""
    return [pair for _, pair in jsonl_rows(path, keys, sieve=sieve)]


def labelled_rows(path: Path, labels: tuple[str, ...], *, sieve: Sieve | None = None) -> Iterator[tuple[int, Pair]]:
    """(text, label) of each line, and the line: `text TAB label`, or JSON lines with "label" and "text" (*.jsonl).

    The label stands in the last column, behind a text that may hold tabs: one of `labels` by name, or its number from 0
    where none is named so.

    Raises:
        QkvError: a label that is not one of them (with the nearest), a number out of range, an empty text, a label
            that stands before its text.
    """
    lined = Path(path).suffix.lower() in (".jsonl", ".ndjson", ".json")

    def parse(text: str, place: str) -> Pair:
        if lined:
            item = json_object(text, place)
            label, said = _string(item, "label", place), _string(item, "text", place)
        else:
            said, tab, label = text.rpartition("\t")
            if not tab:
                raise QkvError("{place}: no tab, expected a text, a tab and its label; found {text!r}", place=place,
                               text=text[:40])
            first = text.partition("\t")[0].strip()
            if is_label(first, labels) and not is_label(label.strip(), labels):
                raise QkvError("{place}: the label {first!r} stands before its text; put it behind, as training reads "
                               "it: text TAB label", place=place, first=first)
        filled((said, label), place, place, ("text", "label"))
        return said, label_of(label.strip(), labels, place)

    return rows(path, parse, sieve=sieve)


def is_label(text: str, labels: tuple[str, ...]) -> bool:
    """Whether a text is the name or the number of a label."""
    return text in labels or (text.isascii() and text.isdigit() and int(text) < len(labels))


def label_of(label: str, labels: tuple[str, ...], place: str) -> str:
    """The name of a label that is given by its name or number."""
    if is_label(label, labels):
        return label if label in labels else labels[int(label)]
    digits = label.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        raise QkvError("{place}: label {label} is out of range: the {labels} labels are 0 to {labels2}", place=place,
                       label=label, labels=len(labels), labels2=len(labels) - 1)
    names = ", ".join(labels[:12])
    hint = nearest(label, labels)
    raise QkvError("{place}: unknown label {label!r}{hint} (known: {names})", place=place, label=label, hint=hint,
                   names=names)


def json_object(text: str, place: str) -> dict[str, object]:
    """The JSON object that a line holds."""
    try:
        item: object = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise QkvError("{place}: not JSON: {e}", place=place, e=e) from None
    if not isinstance(item, dict):
        raise QkvError("{place}: found a JSON {kind}, expected an object", place=place,
                       kind=type(item).__name__)
    if "\\ud" in text.lower() and any("\ud800" <= c <= "\udfff" for c in json.dumps(item, ensure_ascii=False)):
        raise QkvError("{place}: holds half of a character (a lone \\ud800 to \\udfff), which no text can hold",
                       place=place)
    return cast("dict[str, object]", item)


def _string(item: Mapping[str, object], key: str, place: str) -> str:
    return told(under(item, key, place), key, place)


def under(item: Mapping[str, object], path: str, place: str) -> object:
    """What lies under a key, or under a path of keys with dots between; QkvError where there is none."""
    if path in item:
        return item[path]
    value: object = item
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            known = [*map(str, value)] if isinstance(value, Mapping) else []
            hint, there = nearest(key, known), ", ".join(known)
            raise QkvError("{place}: no key {path!r}{hint} (found: {there})", place=place, path=path, hint=hint,
                           there=there or Message("none"))
        value = value[key]
    return value


def told(value: object, key: str, place: str) -> str:
    """The string under a key; a label may be a whole number or true or false, its name then."""
    if key.rpartition(".")[2] == "label" and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        raise QkvError("{place}: key {key!r} holds {kind}, expected a string", place=place, key=key,
                       kind=type(value).__name__)
    return value
