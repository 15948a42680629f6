"""Rows of a Hugging Face dataset as pairs and texts; the `datasets` library, where it is installed, opens it.

Whatever gives mappings, row after row, will do. Next: sources.py, which reads files.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from qkv.data.bad_rows import BadRowPolicy
from qkv.data.sources import get_texts
from qkv.data.text_files import Line
from qkv.errors import QkvError

SAVED = ("dataset_dict.json", "dataset_info.json")  # one of them is where `save_to_disk` wrote
Table = Iterable[Mapping[str, Any]]
T = TypeVar("T")


def open_dataset(name: str) -> Mapping[str, Table]:
    """The splits of a dataset: a folder that `save_to_disk` wrote or that holds files that `datasets` reads, such a
    file (Parquet, Arrow, CSV, JSON lines), or NAME or NAME:CONFIG of the hub.

    Raises:
        QkvError: `datasets` is not installed, or cannot open it.
    """
    if found := open_parquet(Path(name)):
        return found
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        if Path(name).suffix == ".parquet" or (Path(name).is_dir() and any(Path(name).rglob("*.parquet"))):
            raise QkvError("{name}: reading Parquet needs the package pyarrow: pip install pyarrow",
                           name=name) from None
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


class ParquetFiles:
    """The rows of Parquet files, of which a batch at a time is in memory; `features` has the names of classes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        parquet: Any = import_module("pyarrow.parquet")
        self.paths, self.files = paths, [parquet.ParquetFile(path) for path in paths]
        known = (self.files[0].schema_arrow.metadata or {}).get(b"huggingface", b"{}")
        features = json.loads(known).get("info", {}).get("features", {})
        self.features = {key: SimpleNamespace(names=value.get("names"))
                         for key, value in features.items() if isinstance(value, dict)}

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for file, path in zip(self.files, self.paths, strict=True):
            with name_damage(path):
                yield from (row for batch in file.iter_batches(4096) for row in batch.to_pylist())

    def __len__(self) -> int:
        return sum(file.metadata.num_rows for file in self.files)

    def sample(self, count: int) -> list[Mapping[str, Any]]:
        """Rows from the beginnings of groups of rows all over the files."""
        groups = [(file, path, n) for file, path in zip(self.files, self.paths, strict=True)
                  for n in range(file.num_row_groups)]
        groups, found = groups[:: max(1, len(groups) // 64)], list[Mapping[str, Any]]()
        each = max(1, count // max(1, len(groups)))
        for file, path, n in groups:
            with name_damage(path):
                first = islice(file.iter_batches(each, row_groups=[n]), 1)
                found += [row for batch in first for row in batch.to_pylist()]
        return found


@contextmanager
def name_damage(path: Path) -> Iterator[None]:
    """QkvError with the file where its columns cannot be read."""
    try:
        yield
    except Exception as e:  # pyarrow's errors have no common ancestor
        raise QkvError("{path}: damaged Parquet: {e}", path=path, e=e) from None


def open_parquet(place: Path) -> dict[str, Table]:
    """The splits of a Parquet file, or of a folder of them whose names begin with train, validation or test.

    It is empty for anything else, and where pyarrow is not installed.
    """
    paths = [place] if place.suffix == ".parquet" and place.is_file() else sorted(place.rglob("*.parquet"))
    if not paths:
        return {}
    splits: dict[str, list[Path]] = {}
    for path in paths:
        said = re.match(r"(train|valid|dev|test)", path.name) if len(paths) > 1 else None
        splits.setdefault({"valid": "validation", "dev": "validation", "test": "test"}.get(
            said.group() if said else "", "train"), []).append(path)
    try:
        return {name: ParquetFiles(some) for name, some in splits.items()}
    except ImportError:
        return {}
    except Exception as e:  # pyarrow's errors have no common ancestor
        raise QkvError("{place}: not Parquet: {e}", place=place, e=e) from None


def sample_rows(table: Table, count: int) -> tuple[list[Mapping[str, Any]], int]:
    """About `count` rows from all over a table, and how many it has (or how many were read, where it does not say)."""
    sized: Any = table
    if isinstance(table, ParquetFiles):
        rows = table.sample(count)
    elif hasattr(table, "select") and hasattr(table, "__len__"):
        rows = list(sized.select(range(0, len(sized), max(1, len(sized) // count))))
    else:
        rows = list(islice(table, count))
    features, total = getattr(table, "features", None) or {}, len(sized) if hasattr(table, "__len__") else len(rows)
    return [{key: name_class(features.get(key), value) for key, value in row.items()} for row in rows], total


def name_class(feature: Any, value: Any) -> Any:
    """The name of a class that is given by its number; any other value is itself."""
    names = getattr(feature, "names", None)
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value


def read_rows(
    table: Table, keys: tuple[str, ...], *, name: str = "dataset", policy: BadRowPolicy | None = None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The texts under `keys` of each row, and its number; `a.b` is key b within a. A class is called by its name.

    Raises:
        QkvError: a row without such a key (with the nearest), or with something other than text there, or none.
    """
    features = getattr(table, "features", None) or {}
    classes = {key: dict(enumerate(names)) for key in keys if (names := getattr(features.get(key), "names", None))}

    def parse_row(row: Mapping[str, Any], place: str) -> tuple[str, ...]:
        named = {key: names.get(row[key]) for key, names in classes.items()}  # -1 means no label
        return get_texts({**row, **named}, keys, place)

    return parse_rows(table, parse_row, name=name, policy=policy)


def parse_rows(
    table: Table, parse: Callable[[Mapping[str, Any], str], T], *, name: str, policy: BadRowPolicy | None
) -> Iterator[tuple[int, T]]:
    """What `parse(row, "name, row N")` makes of each row, and its number; it raises on a bad one."""
    policy = policy or BadRowPolicy()
    for number, row in enumerate(table):
        try:
            found = parse(row, f"{name}, row {number}")
        except QkvError as error:  # a quarantine keeps the row as a line of JSON
            raw = json.dumps(dict(row), ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
            policy.refuse(error, (Path(name), Line(number, raw, 0, b"", len(raw))))
            continue
        yield number, found
