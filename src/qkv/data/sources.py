"""Text files as they come: parallel files, TSV, CSV, JSON lines, plain text; each fault is reported with file and line.

Lines end with LF or CRLF, a byte order mark is dropped, and line numbers start at 1. Files are read line by line, and a
`BadRowPolicy` says what becomes of a bad row. Next: check.py, which reports on files before they are trained on.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar, cast

from qkv.data.bad_rows import BadRowPolicy
from qkv.data.text_files import (
    Line,
    decode_line,
    explain_empty,
    find_suffix,
    open_text,
    read_raw_lines,
    refuse_blank,
    refuse_returns,
)
from qkv.errors import QkvError, nearest
from qkv.json_files import TOO_DEEP
from qkv.messages import Message

PIECE = 1 << 20  # characters of a long text at a time
JSON = (".jsonl", ".ndjson")  # names of files of JSON lines
LABELLED = "__label__"  # before the label in each line of fastText's files
LABEL_KEYS = ("label", "labels", "class", "category", "sentiment", "stars", "rating", "score", "topic", "intent",
              "标签", "类别", "情感")
Pair = tuple[str, str]
T = TypeVar("T")


def read_document(path: Path, *, policy: BadRowPolicy | None = None) -> str:
    """The whole text of a file; bad lines are skipped if a policy says so.

    Raises:
        QkvError: no such file, an empty one, or bytes that are not UTF-8 (with line and byte offset).
    """
    path = Path(path)
    with open_text(path) as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
        whole = "\0" not in text
    except UnicodeDecodeError:
        text, whole = "", False
    if not whole:
        kept: list[str] = []
        for line in read_raw_lines(path):
            try:
                kept.append(decode_line(path, line) + ("\n" if line.end else ""))
            except QkvError as error:
                (policy or BadRowPolicy()).refuse(error, (path, line))
        text = "".join(kept)
    if not text.strip():
        raise explain_empty(path)
    if "\n" not in text:
        refuse_returns(path, text)
    return text.replace("\r\n", "\n")


def read_pieces(path: Path) -> Iterator[tuple[str, bool]]:
    """A text of any length in pieces of about a million characters, cut between lines, and whether a document ends.

    A file is a document; of JSON lines (*.jsonl) the `text` in each is one.

    Raises:
        QkvError: a line that is not text or not such JSON, or only blanks (with file and line).
    """
    if find_suffix(path) in JSON:
        for _, found in read_texts(path):
            yield found, True
        return
    held: list[str] = []
    length = seen = 0
    for line in read_raw_lines(path):
        if length >= PIECE:
            yield "".join(held), False
            held, length = [], 0
        held.append(decode_line(path, line) + ("\n" if line.end else ""))
        length += len(held[-1])
        seen += bool(held[-1].strip())
    if not seen:
        raise explain_empty(path)
    yield "".join(held), True


def read_texts(path: Path, key: str = "text", *, policy: BadRowPolicy | None = None) -> Iterator[tuple[int, str]]:
    """The string under `key` of each line's JSON object, and the line; blank lines are skipped.

    Raises:
        QkvError: a line that is not a JSON object, or has no string there.
    """
    return read_rows(path, lambda text, place: get_string(parse_object(text, place), key, place), policy=policy)


def read_lines(path: Path) -> list[str]:
    """The lines of a file without their ends; empty lines stay, because partners are found by number."""
    return read_document(path).removesuffix("\n").split("\n")


def read_rows(
    path: Path, parse: Callable[[str, str], T], *, policy: BadRowPolicy | None = None
) -> Iterator[tuple[int, T]]:
    """What `parse(text, "file:line")` makes of each line that is not blank, with its number; it raises on a bad row.

    Raises:
        QkvError: the first bad row, or no row at all is good.
    """
    path, policy, good = Path(path), policy or BadRowPolicy(), 0
    for line in read_raw_lines(path):
        try:
            text = decode_line(path, line)
            if not text.strip():
                continue
            found = parse(text, f"{path}:{line.number}")
        except QkvError as error:
            policy.refuse(error, (path, line))
            continue
        good += 1
        yield line.number, found
    refuse_no_rows(path, good, policy)


def refuse_no_rows(path: Path, good: int, policy: BadRowPolicy) -> None:
    """Refuse a file without a good row."""
    if good:
        return
    if bad := policy.dropped.get(str(path)):
        first = policy.first[str(path)]
        raise QkvError("{path}: all {bad} rows are bad; the first: {first}", path=path, bad=bad, first=first)
    raise explain_empty(path)


def read_pair_rows(source: Path, target: Path, *, policy: BadRowPolicy | None = None) -> Iterator[tuple[int, Pair]]:
    """Line n of one file with line n of the other, and n; where both are blank there is no pair.

    Raises:
        QkvError: a line that is not text or has an empty partner; files that differ in length (both counts, and the
            first line without a partner), whatever the policy says, since it is unknown which lines belong together.
    """
    source, target, policy, good = Path(source), Path(target), policy or BadRowPolicy(), 0
    one, two = read_raw_lines(source), read_raw_lines(target)
    for a, b in zip_longest(one, two):
        if a is None:
            assert b is not None
            raise explain_unequal((source, b.number - 1), (target, b.number + sum(1 for _ in two)), b.number)
        if b is None:
            raise explain_unequal((source, a.number + sum(1 for _ in one)), (target, a.number - 1), a.number)
        try:
            pair = decode_line(source, a), decode_line(target, b)
            if not any(side.strip() for side in pair):
                continue
            refuse_blank(pair, ("source", "target"), f"{source}:{a.number}", f"{target}:{b.number}")
        except QkvError as error:
            policy.refuse(error, (source, a), (target, b))
            continue
        good += 1
        yield a.number, pair
    refuse_no_rows(source, good, policy)


def explain_unequal(one: tuple[Path, int], two: tuple[Path, int], first: int) -> QkvError:
    """What to say about two files with their counts of lines, of which the longer has no partner for line `first`."""
    for path, count in (one, two):
        if not count:
            return explain_empty(path)
    longer = one[0] if one[1] > two[1] else two[0]
    return QkvError("{one} has {one2} lines and {two} has {two2}, expected the same number: {longer}:{first} is the "
                    "first line without a partner", one=one[0], one2=one[1], two=two[0], two2=two[1], longer=longer,
                    first=first)


def read_tsv_rows(
    path: Path, columns: tuple[int, ...] = (0, 1), *, header: bool = False, policy: BadRowPolicy | None = None
) -> Iterator[tuple[int, Pair]]:
    """Two columns (counted from 0) of a file with tabs between columns, of CSV (*.csv) or of fastText's lines (label,
    text), and the line; of more columns see `join_texts`.

    Blank lines are skipped; with `header` so is the first row, which names the columns.

    Raises:
        QkvError: a line that lacks a column, or has nothing in it.
    """
    ahead = header

    def parse(cells: list[str], place: str) -> Pair | None:
        nonlocal ahead
        if ahead:
            ahead = False
            return None
        if len(cells) <= max(columns):
            raise QkvError("{place}: found {cells} column(s), expected at least {columns}{tabs}{chosen}", place=place,
                           cells=len(cells), columns=max(columns) + 1, tabs=tabs, chosen=chosen)
        names = [f"column {n + 1}" for n in columns]
        return join_texts(refuse_blank(tuple(cells[n] for n in columns), names, place))

    comma = find_suffix(path) == ".csv"
    tabs = "" if comma else Message(" with tabs between")
    chosen = "" if columns == (0, 1) else Message(" for data.columns={chosen}, counted from 0", chosen=list(columns))
    found = (read_csv_rows(path, parse, policy=policy) if comma else
             read_rows(path, lambda text, place: parse(split_cells(text, place), place), policy=policy))
    return ((number, row) for number, row in found if row is not None)


def read_folder_rows(folder: Path, *, policy: BadRowPolicy | None = None) -> Iterator[tuple[int, Pair]]:
    """(text, label) of each file in the folders of a folder, which are named as the labels, and its number.

    Raises:
        QkvError: a file that is empty or no text, unless the policy says otherwise; no file at all.
    """
    folder, policy, good = Path(folder), policy or BadRowPolicy(), 0
    for number, path in enumerate(list_label_files(folder), 1):
        try:
            text = read_document(path)
        except QkvError as error:
            policy.refuse(error, (folder, Line(number, b"", 0, b"", 0)))
            continue
        good += 1
        yield number, (text.strip(), path.parent.name)
    refuse_no_rows(folder, good, policy)


def list_label_files(folder: Path) -> list[Path]:
    """The files in the folders of a folder, in order, without hidden ones."""
    return sorted(p for p in Path(folder).glob("*/*") if p.is_file() and not p.name.startswith(".")
                  and not p.parent.name.startswith("."))


def split_cells(text: str, place: str = "") -> list[str]:
    """The cells of a row between tabs; of a line as fastText reads it, `__label__NAME text`, the label and the text.

    Raises:
        QkvError: such a line with several labels, where its place is given.
    """
    if not text.startswith(LABELLED):
        return text.split("\t")
    label, *rest = text.split(None, 1)
    if place and rest and rest[0].startswith(LABELLED):
        raise QkvError("{place}: found several labels, expected one for each text; fix the row, or skip such rows with "
                       "on_bad_row", place=place)
    return [label.removeprefix(LABELLED), *rest]


def read_csv_rows(
    path: Path, parse: Callable[[list[str], str], T], *, policy: BadRowPolicy | None = None
) -> Iterator[tuple[int, T]]:
    """What `parse(cells, "file:line")` makes of each row of CSV, as `read_rows`; a cell in quotes may hold line ends.

    Raises:
        QkvError: the first bad row, or no row at all is good.
    """
    path, policy, good = Path(path), policy or BadRowPolicy(), 0
    taken: list[Line] = []  # those of the row that is being read

    def feed() -> Iterator[str]:
        for line in read_raw_lines(path):
            try:
                text = decode_line(path, line)
            except QkvError as error:
                policy.refuse(error, (path, line))
                continue
            taken.append(line)
            yield f"{text}\n"

    rows = csv.reader(feed(), delimiter=find_delimiter(next(read_raw_lines(path), None)))
    while True:
        taken.clear()
        try:
            if (cells := next(rows, None)) is None:
                break
        except csv.Error as e:
            number = taken[0].number
            error = QkvError("{path}:{number}: not CSV: {e}; is a quotation mark left open?", path=path, number=number,
                             e=e)
            policy.refuse(error, *((path, line) for line in taken))
            continue
        if not any(cell.strip() for cell in cells):
            continue
        number = taken[0].number
        try:
            found = parse(cells, f"{path}:{number}")
        except QkvError as error:
            policy.refuse(error, *((path, line) for line in taken))
            continue
        good += 1
        yield number, found
    refuse_no_rows(path, good, policy)


def find_delimiter(line: Line | None) -> str:
    """What stands between the cells of CSV, by its first line: a comma, a semicolon or a tab."""
    first = re.sub(r'"[^"]*"', "", line.raw.decode("utf-8", "replace")) if line else ""
    return max(",;\t", key=first.count)


HEADER_WORDS = set[str]().union(*map(str.split, (
    "source target src tgt text texts sentence sentence1 sentence2 label labels class category score",
    "input output prompt completion question answer zh en de fr chinese english german french id index review",
    "sentiment title content comment stars rating topic intent premise hypothesis",
    "中文 英文 原文 译文 源文 文本 句子 标签 类别 问题 答案 输入 输出 评论 内容 情感 标题 编号",
)))


def is_label_key(key: str) -> bool:
    """Whether a column or key is called as labels are: label, gold_label, is_spam."""
    name = key.rpartition(".")[2].lower()
    return name in LABEL_KEYS or "label" in name or name.startswith(("is_", "has_", "class"))


def is_header(row: Sequence[str]) -> bool:
    """Whether a row names the columns of a table, as its first line often does, instead of filling them."""
    return all(cell.strip().strip('"').lower() in HEADER_WORDS for cell in row)


def read_jsonl_rows(
    path: Path, keys: tuple[str, ...] = ("source", "target"), *, policy: BadRowPolicy | None = None
) -> Iterator[tuple[int, Pair]]:
    """Two strings of each line's JSON object, and the line; blank lines are skipped. A `label` may be a whole number,
    true or false; of a key within another the path has dots; of more keys see `join_texts`.

    Raises:
        QkvError: a line that is not a JSON object, or lacks a key, or holds something other than a string there, or an
            empty one.
    """
    return read_rows(path, lambda text, place: join_texts(get_texts(parse_object(text, place), keys, place)),
                     policy=policy)


def join_texts(row: Sequence[str]) -> Pair:
    """Of a row of texts that are judged together, and their label: the texts with tabs between, and the label."""
    return "\t".join(text.replace("\t", " ") for text in row[:-1]) if len(row) > 2 else row[0], row[-1]


def parse_object(text: str, place: str) -> dict[str, object]:
    """The JSON object that a line holds."""
    try:
        item: object = json.loads(text)
    except json.JSONDecodeError as e:
        raise QkvError("{place}: not JSON: {e}", place=place, e=e) from None
    except (ValueError, RecursionError):
        raise QkvError("{place}: not JSON: {e}", place=place, e=TOO_DEEP) from None
    if not isinstance(item, dict):
        raise QkvError("{place}: found a JSON {kind}, expected an object", place=place, kind=type(item).__name__)
    if "\\ud" in text.lower() and any("\ud800" <= c <= "\udfff" for c in json.dumps(item, ensure_ascii=False)):
        raise QkvError('{place}: contains half of a character (an unpaired \\ud800 to \\udfff), which is not valid '
                       "text",
                       place=place)
    return cast("dict[str, object]", item)


def get_texts(item: Mapping[str, object], keys: Sequence[str], place: str) -> tuple[str, ...]:
    """The strings under keys, none of them blank."""
    return refuse_blank(tuple(get_string(item, key, place) for key in keys), keys, place)


def get_string(item: Mapping[str, object], path: str, place: str) -> str:
    """The string under a key, or under a path of keys with dots between.

    A label may be a whole number or true or false, its name then; see `is_label_key`.

    Raises:
        QkvError: no such key, or something other than a string there.
    """
    value: object = item
    for key in [path] if path in item else path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            known = [*map(str, value)] if isinstance(value, Mapping) else []
            hint, there = nearest(key, known), ", ".join(known)
            raise QkvError("{place}: no key {path!r}{hint} (found: {there})", place=place, path=path, hint=hint,
                           there=there or Message("none"))
        value = value[key]
    if is_label_key(path) and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        raise QkvError("{place}: key {key!r} holds {kind}, expected a string", place=place, key=path,
                       kind=type(value).__name__)
    return value
