"""Text files as they come: parallel files, TSV, JSON lines, plain text; each fault is told by file and line.

Lines end with LF or CRLF, a byte order mark is dropped, and line numbers start at 1.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from qkv.errors import QkvError, nearest


def document(path: Path) -> str:
    """The whole text of a file.

    Raises:
        QkvError: no such file, an empty one, or bytes that are not UTF-8 (with line and byte offset).
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as e:
        folder = path.parent
        if path.is_dir():
            raise QkvError(f"{path}: is a directory, expected a text file") from None
        if not folder.is_dir():
            raise QkvError(f"{path}: no such file (nor is there a folder {folder})") from None
        hint = nearest(path.name, (p.name for p in folder.iterdir()))
        raise QkvError(f"{path}: {(e.strerror or str(e)).lower()}{hint}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        start = e.start + len(data) - len(e.object)  # utf-8-sig counts from behind the mark
        line, column = data.count(b"\n", 0, start) + 1, start - data.rfind(b"\n", 0, start)
        raise QkvError(
            f"{path}:{line}: invalid UTF-8: byte 0x{data[start]:02x} at offset {start} "
            f"(byte {column} of the line); convert the file to UTF-8"
        ) from None
    if not text.strip():
        raise QkvError(f"{path}: the file is empty, expected text")
    return text.replace("\r\n", "\n")


def lines(path: Path) -> list[str]:
    """The lines of a file without their ends; empty lines stay, because partners are found by number."""
    return document(path).removesuffix("\n").split("\n")


def pairs(source: Path, target: Path) -> list[tuple[str, str]]:
    """Line n of one file with line n of the other.

    Raises:
        QkvError: the files differ in length (both counts, and the first line without a partner).
    """
    left, right = lines(source), lines(target)
    if len(left) != len(right):
        longer = source if len(left) > len(right) else target
        line = min(len(left), len(right)) + 1
        raise QkvError(
            f"{source} has {len(left)} lines and {target} has {len(right)}, expected as many: "
            f"{longer}:{line} is the first line without a partner"
        )
    return list(zip(left, right, strict=True))


def tsv(path: Path, columns: tuple[int, int] = (0, 1)) -> list[tuple[str, str]]:
    """Two columns (counted from 0) of a file with tabs between columns; empty lines are skipped.

    Raises:
        QkvError: a line that lacks a column.
    """
    found: list[tuple[str, str]] = []
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) <= max(columns):
            raise QkvError(
                f"{path}:{number}: found {len(cells)} column(s), expected at least {max(columns) + 1} with tabs between"
            )
        found.append((cells[columns[0]], cells[columns[1]]))
    return found


def jsonl(path: Path, keys: tuple[str, str] = ("source", "target")) -> list[tuple[str, str]]:
    """Two strings of each line's JSON object; empty lines are skipped.

    Raises:
        QkvError: a line that is no JSON object, or lacks a key, or holds something other than a string there.
    """
    return [
        (_string(item, keys[0], f"{path}:{number}"), _string(item, keys[1], f"{path}:{number}"))
        for number, item in _objects(path)
    ]


def _objects(path: Path) -> Sequence[tuple[int, dict[str, object]]]:
    found: list[tuple[int, dict[str, object]]] = []
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            item: object = json.loads(line)
        except ValueError as e:
            raise QkvError(f"{path}:{number}: not JSON: {e}") from None
        if not isinstance(item, dict):
            raise QkvError(f"{path}:{number}: found a JSON {type(item).__name__}, expected an object")
        found.append((number, cast("dict[str, object]", item)))
    return found


def _string(item: dict[str, object], key: str, place: str) -> str:
    if key not in item:
        raise QkvError(f"{place}: no key {key!r}{nearest(key, item)} (found: {', '.join(item) or 'none'})")
    value = item[key]
    if not isinstance(value, str):
        raise QkvError(f"{place}: key {key!r} holds {type(value).__name__}, expected a string")
    return value
