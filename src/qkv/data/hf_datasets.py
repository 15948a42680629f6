"""Rows of a Hugging Face dataset as pairs and texts; the `datasets` library, where it is installed, opens it.

Whatever gives mappings, row after row, will do. Next: sources.py, which reads files.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from qkv.data.bad_rows import BadRowPolicy
from qkv.data.json_rows import get_texts
from qkv.data.text_files import Line
from qkv.errors import QkvError

SAVED = ("dataset_dict.json", "dataset_info.json")  # one of them is where `save_to_disk` wrote
Table = Iterable[Mapping[str, Any]]


def open_dataset(name: str) -> Mapping[str, Table]:
    """The splits of a dataset: a folder that `save_to_disk` wrote or that holds files that `datasets` reads, such a
    file (Parquet, Arrow, CSV, JSON lines), or NAME or NAME:CONFIG of the hub.

    Raises:
        QkvError: `datasets` is not installed, or cannot open it.
    """
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise QkvError("data.dataset {name!r} needs the datasets library: pip install datasets", name=name) from None
    place = Path(name)
    try:
        if any((place / file).is_file() for file in SAVED):
            found = datasets.load_from_disk(name)
        elif place.is_file():
            kind = {".jsonl": "json", ".ndjson": "json"}.get(place.suffix, place.suffix[1:])
            found = datasets.load_dataset(kind, data_files=name)
        elif place.is_dir():
            found = datasets.load_dataset(name)
        else:
            path, _, config = name.partition(":")
            found = datasets.load_dataset(path, config or None)
    except Exception as e:  # its errors have no common ancestor
        raise QkvError("data.dataset {name!r}: {kind}: {e}", name=name, kind=type(e).__name__, e=str(e)[:300]) from None
    return dict(found) if isinstance(found, Mapping) else {"train": found}


def read_texts(
    table: Table, keys: tuple[str, ...], *, name: str = "dataset", policy: BadRowPolicy | None = None
) -> Iterator[tuple[str, ...]]:
    """The texts under `keys` of each row: see `read_rows`."""
    return (row for _, row in read_rows(table, keys, name=name, policy=policy))


def read_rows(
    table: Table, keys: tuple[str, ...], *, name: str = "dataset", policy: BadRowPolicy | None = None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The texts under `keys` of each row, and its number; `a.b` is key b within a. A class is called by its name.

    Raises:
        QkvError: a row without such a key (with the nearest), or with something other than text there, or none.
    """
    policy, features = policy or BadRowPolicy(), getattr(table, "features", None) or {}
    classes = {key: names for key in keys if (names := getattr(features.get(key), "names", None))}
    for number, row in enumerate(table):
        named = {key: dict(enumerate(names)).get(row[key]) for key, names in classes.items()}  # -1 means no label
        try:
            found = get_texts({**row, **named}, keys, f"{name}, row {number}")
        except QkvError as error:  # a quarantine keeps the row as a line of JSON
            raw = json.dumps(dict(row), ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
            policy.refuse(error, (Path(name), Line(number, raw, 0, b"", len(raw))))
            continue
        yield number, found
