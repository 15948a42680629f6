"""Texts with labels that a model knows: what a column or key holds says which it is. Next: tasks/evaluate.py."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from qkv.data import hf_datasets
from qkv.data.columns import TEXT_KEYS, find_two_texts, measure_column
from qkv.data.formats import find_format, sample_lines
from qkv.data.kind import as_text, read_cells
from qkv.data.sources import (
    LABELLED,
    Pair,
    is_label_key,
    join_texts,
    read_folder_rows,
    read_jsonl_rows,
    read_rows,
    read_tsv_rows,
    split_cells,
)
from qkv.data.text_files import refuse_blank
from qkv.errors import QkvError, nearest
from qkv.options import flatten

LOOKED = 1 << 20  # bytes from all over a file, by which its columns are told
SAMPLED = 1000  # rows of Parquet
FEWEST = 0.3  # of a column's cells are labels, however many are misspelt


Texts = Literal["one", "two", "all"]  # of a row: one; two that are judged together; as many as have tabs between


def read_labelled_rows(path: Path, labels: tuple[str, ...], *, texts: Texts = "one") -> Iterator[tuple[int, Pair]]:
    """(text, label) of each row of a file in any form that training reads, and its number; several texts are joined.

    A label is one of `labels` by name, or its number from 0 where none is named so. Between tabs it is in the last
    column, after a text that may contain tabs, unless another column holds more of them, or all rows have three or more
    columns, of which as many are read as `texts` says.

    Raises:
        QkvError: a label that is not one of them (with the nearest), a number out of range, an empty text, a label
            that stands before its text.
    """
    for number, (text, label) in open_rows(Path(path), labels, texts):
        yield number, (text, parse_label(label.strip(), labels, f"{path}:{number}"))


def open_rows(path: Path, labels: tuple[str, ...], texts: Texts) -> Iterator[tuple[int, Pair]]:
    """The texts and labels of a file's rows as they stand."""
    if path.is_dir():
        return read_folder_rows(path)
    two = texts == "two"
    kind = find_format(path, "labels") if path.is_file() else "tsv"  # a pipe is read only once
    if kind == "parquet":
        table = next(iter(hf_datasets.open_dataset(str(path)).values()))
        keys = find_sides(by_key(hf_datasets.sample_rows(table, SAMPLED)[0]), labels, two=two) or ("text", "label")
        return ((n, join_texts(row)) for n, row in hf_datasets.read_rows(table, keys, name=str(path)))
    if kind == "jsonl":
        items = list[Any]()
        for line in sample_lines(path, LOOKED).lines:
            with suppress(ValueError, RecursionError):  # named by its number when it is read
                items.append(json.loads(line))
        rows = [item for item in items if isinstance(item, dict)]
        return read_jsonl_rows(path, find_sides(by_key(rows), labels, two=two) or ("text", "label"))
    rows, titles, _ = read_cells(path, LOOKED) if path.is_file() else ([], [], None)
    width = max(map(len, rows), default=0)
    by_column = {n: [row[n] for row in rows if n < len(row)] for n in range(width)}
    columns = find_sides(by_column, labels, two=two)
    last = sum(bool(row) and is_label(row[-1].strip(), labels) for row in rows)
    several = texts != "all" and width > 2 and all(len(row) == width for row in rows)
    if kind == "csv" or titles or (columns and (several or 2 * last < len(rows))):
        at = columns[-1] if columns else width
        known = [len(row) > at and is_label(row[at].strip(), labels) for row in rows]
        named = bool(titles) or (kind == "csv" and known[:2] == [False, True])
        return read_tsv_rows(path, columns or (0, max(1, width - 1)), header=named)
    return read_rows(path, lambda text, place: parse_row(text, place, labels))


def by_key(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The values of each key that holds texts or numbers."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for key, value in flatten(row).items():
            if isinstance(value, str | int):
                found.setdefault(key, []).append(as_text(value))
    return found


def find_sides(columns: Mapping[Any, Sequence[str]], labels: tuple[str, ...], *, two: bool) -> Any:
    """(where the text is, where the label is) of columns; None where none holds labels, or nothing is beside it.

    Where `two` texts are judged together and there are two, both are before the label.
    """

    def rank(key: Any) -> tuple[float, bool]:
        cells = columns[key]
        return sum(is_label(cell.strip(), labels) for cell in cells) / len(cells), is_label_key(str(key))

    filled = [key for key in columns if columns[key]]
    label = max(reversed(filled), key=rank, default=None)
    rest = [key for key in filled if key != label]
    if not rest or rank(label)[0] < FEWEST:
        return None
    measured = {str(key): measure_column(str(key), n, columns[key]) for n, key in enumerate(rest)}
    if two and (both := rest if len(rest) == 2 else
                [rest[c.index] for c in find_two_texts([*measured.values()], measured)]):
        return *both, label
    text = max(rest, key=lambda key: (key in TEXT_KEYS, measured[str(key)].is_text, sum(map(len, columns[key]))))
    return text, label


def parse_row(text: str, place: str, labels: tuple[str, ...]) -> Pair:
    """The text before the last tab and the label behind it, or those of a line that fastText reads."""
    said, tab, label = text.rpartition("\t")
    if text.startswith(LABELLED):
        label, tab, said = "\t".join(split_cells(text, place)).partition("\t")
    if not tab:
        raise QkvError("{place}: no tab, expected a text, a tab and its label; found {text!r}", place=place,
                       text=text[:40])
    first = text.partition("\t")[0].strip()
    if is_label(first, labels) and not is_label(label.strip(), labels):
        raise QkvError("{place}: the label {first!r} comes before its text; put it after the text, as "
                       "training reads it: text TAB label", place=place, first=first)
    refuse_blank((said, label), ("text", "label"), place)
    return said, label


def is_label(text: str, labels: tuple[str, ...]) -> bool:
    """Whether a text is the name or the number of a label."""
    return text in labels or (text.isascii() and text.isdigit() and int(text) < len(labels))


def parse_label(label: str, labels: tuple[str, ...], place: str) -> str:
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
