"""Labelled texts: `text TAB label`, or JSON lines with "label" and "text"."""

from collections.abc import Iterator
from pathlib import Path

from qkv.data.bad_rows import BadRowPolicy
from qkv.data.json_rows import get_string, parse_object
from qkv.data.sources import Pair, read_rows
from qkv.data.text_files import refuse_blank
from qkv.errors import QkvError, nearest


def read_labelled_rows(
    path: Path, labels: tuple[str, ...], *, policy: BadRowPolicy | None = None
) -> Iterator[tuple[int, Pair]]:
    """(text, label) of each line, and the line: `text TAB label`, or JSON lines with "label" and "text" (*.jsonl).

    The label is in the last column, after a text that may contain tabs: one of `labels` by name, or its number from 0
    where none is named so.

    Raises:
        QkvError: a label that is not one of them (with the nearest), a number out of range, an empty text, a label
            that stands before its text.
    """
    lined = Path(path).suffix.lower() in (".jsonl", ".ndjson", ".json")

    def parse_row(text: str, place: str) -> Pair:
        if lined:
            item = parse_object(text, place)
            label, said = get_string(item, "label", place), get_string(item, "text", place)
        else:
            said, tab, label = text.rpartition("\t")
            if not tab:
                raise QkvError("{place}: no tab, expected a text, a tab and its label; found {text!r}", place=place,
                               text=text[:40])
            first = text.partition("\t")[0].strip()
            if is_label(first, labels) and not is_label(label.strip(), labels):
                raise QkvError("{place}: the label {first!r} comes before its text; put it after the text, as "
                               "training reads it: text TAB label", place=place, first=first)
        refuse_blank((said, label), ("text", "label"), place)
        return said, parse_label(label.strip(), labels, place)

    return read_rows(path, parse_row, policy=policy)


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
