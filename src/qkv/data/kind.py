"""What files hold, by their content and their names: pairs, labelled texts, texts, conversations. Next: sources.py.

Rows are sampled over the whole of a file, in bounded memory.
"""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.data import hf_datasets
from qkv.data.bad_rows import BadRowPolicy
from qkv.data.columns import (
    FEW,
    PAIR_KEYS,
    TEXT_KEYS,
    Asked,
    Sides,
    decide_sides,
    list_commands,
    measure_column,
    names_columns,
    names_some,
    note_numbers,
    note_single_labels,
    note_two_texts,
    note_unread,
)
from qkv.data.conversations import holds_conversations
from qkv.data.formats import PLAIN, Sample, find_format, list_files, sample_lines
from qkv.data.sources import (
    JSON,
    find_delimiter,
    is_header,
    is_label_key,
    list_label_files,
    parse_object,
    read_rows,
    split_cells,
)
from qkv.data.text_files import Line, decode_line, find_suffix, read_raw_lines
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.options import flatten

LIMIT = 1 << 24  # bytes of all files together that are looked at; smaller files are read whole
SAMPLED = 20_000  # rows of a data set that are looked at


@dataclass(frozen=True)
class Kind:
    """What files hold, as a run reads it: `data` and `objective` are what a TOML file would say."""

    name: str  # "pairs", "labels", "text", "documents", "chat" or "shards"
    data: dict[str, Any]
    rows: int = 0
    whole: bool = True  # whether `rows` is exact
    one: Message | str = ""  # the column or file of the source, or of the text
    two: Message | str = ""  # and of the target, or of the label
    labels: int = 0
    notes: tuple[Message, ...] = ()

    def describe_kind(self, objective: str) -> Message:
        """What is trained, of what, and the setting that makes it otherwise."""
        rows: Any = f"{self.rows:,}" if self.whole else Message("about {rows:,}", rows=int(float(f"{self.rows:.3g}")))
        if self.name == "shards":
            return Message("a language model of token shards")
        if self.name == "chat":
            return Message("a chat model from {rows} conversations", rows=rows)
        if "folders" in self.data and objective == "labels":
            return Message("a classifier of {labels} labels from {rows} texts, by their folders (to train a language "
                           "model instead: objective=text)", labels=self.labels, rows=rows)
        if self.name == "labels" and objective == "labels":
            return Message("a classifier of {labels} labels from {rows} rows, by {column} (to train a translator "
                           "instead: objective=pairs)", labels=self.labels, rows=rows, column=self.two)
        if self.name in ("pairs", "labels") and objective == "pairs":
            if "source" in self.data:
                return Message("a translator from {rows} pairs, {one} to {two} (to train a language model of both "
                               "instead: objective=text)", rows=rows, one=self.one, two=self.two)
            return Message("a translator from {rows} pairs, {one} to {two} (to train a classifier instead: "
                           "objective=labels)", rows=rows, one=self.one, two=self.two)
        if self.name in ("pairs", "labels") and objective == "chat":
            return Message("a chat model from {rows} pairs: {one} asks, {two} answers", rows=rows, one=self.one,
                           two=self.two)
        if objective != "text":
            return Message("objective {objective} on {rows} rows or lines", objective=objective, rows=rows)
        if self.name == "documents":
            return Message("a language model from {rows} documents (to fill in masked words instead: "
                           "objective=masked)", rows=rows)
        return Message("a language model from text of {rows} lines (to fill in masked words instead: "
                       "objective=masked)", rows=rows)


def find_kind(words: Sequence[str], data: Mapping[str, Any], objective: str = "") -> Kind:
    """What files, folders and globs hold; `data` and `objective` are what a person said of them, which counts.

    Raises:
        QkvError: files of several kinds, preferences, a format that is not read, or what may be one thing or another.
    """
    if labelled := decide_folders(words, objective):
        return labelled
    (paths, many), asked = list_files(words), Asked(words, data, objective)
    names = [str(path) for path in paths]
    if any(path.is_dir() for path in paths):
        if all((path / "index.json").is_file() for path in paths):
            return Kind("shards", {"shards": names})
        if len(paths) > 1:
            raise QkvError("{names}: found files of different kinds; token shards, a data set and other files are not "
                           "read together (qkv data pack writes texts as shards)", names=", ".join(names))
        return read_dataset(names[0], asked)
    formats = {path: find_format(path, objective) for path in paths}
    if len({*formats.values()}) > 1:
        each = ", ".join(f"{path} ({kind})" for path, kind in list(formats.items())[:8])
        raise QkvError("found files of different kinds: {each}; use one format for all rows, and name what to read",
                       each=each)
    kind = formats[paths[0]]
    if kind == "text":
        return decide_texts(paths, objective, many=many)
    if kind == "parquet":
        if len(paths) > 1:
            raise QkvError("{names}: found several Parquet files; name the folder that holds them",
                           names=", ".join(names))
        return read_dataset(names[0], asked)
    return read_json_lines(paths, asked) if kind == "jsonl" else read_table(paths, asked)


def decide_folders(words: Sequence[str], objective: str) -> Kind | None:
    """Folders whose folders hold texts, if these are named as labels; None where there are none.

    Raises:
        QkvError: short texts in folders, which may be labels or not.
    """
    if objective not in ("", "labels") or not all(Path(word).is_dir() for word in words):
        return None
    files = [path for word in words for path in list_label_files(Path(word))]
    labels, ends = {path.parent.name for path in files}, {find_suffix(path) for path in files}
    if len(labels) < 2 or ends - {"", *PLAIN} or {*files} != {*list_files(words)[0]}:
        return None
    if not objective:
        if ends - {"", ".txt"} or len(files) < FEW * len(labels):
            return None
        raise QkvError("{words}: {files:,} texts in {labels} folders ({some}): are the folders labels?{commands}",
                       words=", ".join(words), files=len(files), labels=len(labels),
                       some=", ".join(sorted(labels)[:5]), commands=list_commands(words, ("labels", "text")))
    return Kind("labels", {"folders": [*words]}, len(files), labels=len(labels))


def decide_texts(paths: Sequence[Path], objective: str, *, many: bool) -> Kind:
    """Texts, or two parallel files: two with one stem, or with as many lines."""
    names, ends = [str(path) for path in paths], {find_suffix(path) for path in paths}
    two = len(paths) == 2 and objective != "text"
    if two and (not many or objective == "pairs" or Path(paths[0].name).stem == Path(paths[1].name).stem):
        one, other = map(count_lines, paths)
        if one != other and ends == {".txt"} and objective != "pairs":
            raise QkvError("{names}: found {one:,} and {two:,} lines; two texts, or parallel files of which one lacks "
                           "lines?{commands}", names=", ".join(names), one=one, two=other,
                           commands=list_commands(names, ("text", "pairs")))
        return Kind("pairs", {"source": names[0], "target": names[1]}, one, one=paths[0].name, two=paths[1].name)
    if len(paths) > 1 and not many and len(ends) > 1:
        raise QkvError("{names}: found {paths} files, expected two parallel ones, or files of one kind; name others "
                       "in a TOML file", names=", ".join(names), paths=len(paths))
    if len(paths) > 1:
        return Kind("documents", {"text": names}, len(paths))
    return Kind("text", {"text": names}, count_lines(paths[0]))


def count_lines(path: Path) -> int:
    """The lines of a text file; 0 of what can be read only once."""
    return sample_lines(path, LIMIT).count if path.is_file() else 0


def read_table(paths: Sequence[Path], asked: Asked) -> Kind:
    """Files of columns."""
    tables = [read_cells(path, LIMIT // len(paths)) for path in paths]
    rows, place = [row for cells, _, _ in tables for row in cells], ", ".join(map(str, paths))
    if not rows:
        for line in read_raw_lines(paths[0]):  # names what is no line of text
            decode_line(paths[0], line)
        raise QkvError("{path}: no row of data", path=paths[0])
    headers = {bool(titles) for _, titles, _ in tables}
    if len(headers) > 1:
        raise QkvError("{names}: some of these files have column names in their first row, and some have not",
                       names=place)
    width = Counter(map(len, rows)).most_common(1)[0][0]
    if width < 2:
        raise QkvError("{path}: found 1 column, expected two: a text and its translation, or its label; for text alone "
                       "use a file of text (*.txt)", path=paths[0])
    titles = tables[0][1] if len(tables[0][1]) == width else []
    given = asked.data.get("columns")
    fits = isinstance(given, list) and len({*given}) == len(given) in (2, 3) and all(n in range(width) for n in given)
    order = given if fits else None  # any other is refused with the rest of the settings

    def name_column(n: int) -> Message:
        return Message("column {n} ({name})", n=n + 1, name=titles[n]) if titles else Message("column {n}", n=n + 1)

    def decide_rows(some: Sequence[Sequence[str]]) -> Sides:
        columns = [measure_column(name_column(n), n, [row[n] for row in some if len(row) == width])
                   for n in order or range(width)]
        return decide_sides(place, columns, [] if order else titles, asked)

    found = decide_rows(rows)
    columns = [column.index for column in found.read]
    for path, (cells, _, _) in zip(paths, tables, strict=True) if len(paths) > 1 and not asked.objective else ():
        here = decide_rows(cells) if len(cells) > 50 else found
        if here.kind == "labels" and (here.kind, [c.index for c in here.read]) != (found.kind, columns):
            raise QkvError("{path}: found labels in {column}, unlike in the other files; read it by itself, or set "
                           "data.columns or objective", path=path, column=here.two.name)
    made = {"tsv": [str(path) for path in paths], "columns": columns} | ({"header": True} if True in headers else {})
    return make_rows_kind(found, made, [sample for _, _, sample in tables])


def read_cells(path: Path, limit: int) -> tuple[list[list[str]], list[str], Sample]:
    """(rows from all over a file of columns, the names of these, the lines with the count of its rows)."""
    found = sample_lines(path, limit)
    lines, comma = [line for line in found.lines if line.strip()], find_suffix(path) == ".csv"
    mark = find_delimiter(Line(1, lines[0].encode(), 0, b"", 0)) if lines and comma else "\t"
    rows = [row for row in csv.reader(lines, delimiter=mark) if row] if comma else [*map(split_cells, lines)]
    named = bool(rows) and (is_header(rows[0]) or ((comma or names_some(rows[0])) and names_columns(rows)))
    titles = [cell.strip() for cell in rows[0]] if named else []
    rows = rows[1:] if named else rows
    return rows, titles, Sample([], len(rows) if found.whole else found.count - named, found.whole)


def read_json_lines(paths: Sequence[Path], asked: Asked) -> Kind:
    """Files of JSON lines, by their keys."""
    items, samples, names = list[Mapping[str, Any]](), list[Sample](), [str(path) for path in paths]
    lenient = asked.data.get("on_bad_row", "error") != "error"
    for path in paths:
        found = sample_lines(path, LIMIT // len(paths))
        next(read_rows(path, parse_object, policy=BadRowPolicy("skip" if lenient else "error")))  # names a bad one
        lines = [line for line in found.lines if line.strip()]
        for line in lines:
            try:
                item: Any = json.loads(line)
            except (ValueError, RecursionError):
                continue  # named by its number when it is read
            items += [item] if isinstance(item, dict) else []
        samples.append(Sample([], len(lines) if found.whole else found.count, found.whole))
    kind = decide_keys(names, items, asked)
    if kind == "messages":
        return make_rows_kind("chat", {"messages": names}, samples)
    if isinstance(kind, str):
        plain = kind == "text" and all(find_suffix(path) in JSON for path in paths)
        return make_rows_kind("documents", {"text": names, **({} if plain else {"keys": [kind]})}, samples)
    return make_rows_kind(kind, {"jsonl": names, "keys": [str(column.name) for column in kind.read]}, samples)


def decide_keys(names: Sequence[str], items: Sequence[Mapping[str, Any]], asked: Asked) -> str | Sides:
    """Of rows with keys: "messages", the key of texts, or what `decide_sides` finds."""
    place, given = ", ".join(names), asked.data.get("keys")
    rows = [flatten(item) for item in items]
    keys = Counter(key for row in rows for key in row)
    common, known = [key for key, n in keys.items() if n > 0.5 * len(rows)], ", ".join(keys) or Message("none")
    if holds_conversations(common, asked.objective) and not given:
        return "messages"
    if not given:
        refuse_untrained(place, items[0] if items else {}, common, asked)
    texts = [key for key in common if any(isinstance(row.get(key), str) for row in rows)
             or (is_label_key(key) and isinstance(rows[0].get(key), int))]
    if not texts:
        raise QkvError("{place}: no column holds text (found: {found})", place=place, found=known)
    if isinstance(given, list):
        if len(given) == 1:
            return given[0]
        if not all(key in keys for key in given) or not given:
            raise QkvError("{place}: found the keys {found}, expected {given}", place=place, found=known,
                           given=", ".join(map(str, given)))
        texts = given
    columns = [measure_column(key, n, [as_text(row[key]) for row in rows if key in row]) for n, key in enumerate(texts)]
    named = any(map(is_label_key, texts)) or any({*two} <= {*texts} for two in PAIR_KEYS)
    usual = [key for key in texts if key.lower() in TEXT_KEYS]
    if not given and not named and (usual or len(texts) == 1) and isinstance(rows[0].get(texts[0]), str):
        return (usual or texts)[0]
    if not given and len(texts) != 2 and (not named or len(texts) < 2):
        raise QkvError("{place}: found the keys {found}; name those to learn from: data.keys='[\"A\", \"B\"]', or one "
                       "of texts: data.keys='[\"A\"]'", place=place, found=known)
    return decide_sides(place, columns, [] if given else texts, asked)


def refuse_untrained(place: str, first: Mapping[str, Any], keys: Sequence[str], asked: Asked) -> None:
    """QkvError for rows of preferences, or of several labels for a text, of which the first says so."""
    if {"chosen", "rejected"} <= {*keys}:
        raise QkvError("{place}: found preferences (chosen and rejected), which are not trained here; for the chosen "
                       "answers alone: data.keys='[\"prompt\", \"chosen\"]'", place=place)
    many = next((key for key in keys if is_label_key(key) and isinstance(first.get(key), list)), "")
    if many and asked.objective in ("", "labels"):
        raise QkvError("{place}: key {key!r} holds lists, expected one label for each text; for a language model of "
                       "the texts: objective=text", place=place, key=many)


def as_text(value: object) -> str:
    """A cell as text; of a class the number."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def read_dataset(name: str, asked: Asked) -> Kind:
    """A Parquet file or a data-set folder, by its columns."""
    splits = hf_datasets.open_dataset(name)
    rows, count = hf_datasets.sample_rows(splits.get("train", next(iter(splits.values()))), SAMPLED)
    if not rows:
        raise QkvError("{name}: no row of data", name=name)
    kind, samples = decide_keys([name], rows, asked), [Sample([], count, whole=True)]
    if kind == "messages":
        parts = {part: getattr(some, "paths", ()) for part, some in splits.items()}
        apart = {f"{part[:5]}_file": paths for part, paths in parts.items() if part != "train"}
        if not parts.get("train") or any(len(paths) != 1 for paths in apart.values()):
            raise QkvError("{name}: conversations are read from Parquet files or JSON lines (*.jsonl), with one file "
                           "each for validation and test; name them: data.messages, data.valid_file, data.test_file",
                           name=name)
        held = {key: str(path) for key, paths in apart.items() for path in paths}
        return make_rows_kind("chat", {"messages": [str(path) for path in parts["train"]], **held}, samples)
    keys = [kind] if isinstance(kind, str) else [str(column.name) for column in kind.read]
    return make_rows_kind("documents" if isinstance(kind, str) else kind, {"dataset": name, "keys": keys}, samples)


def make_rows_kind(kind: str | Sides, data: dict[str, Any], samples: Sequence[Sample]) -> Kind:
    """The kind of rows, with two sides or without."""
    count, whole = sum(sample.count for sample in samples), all(sample.whole for sample in samples)
    if isinstance(kind, str):
        return Kind(kind, data, count, whole)
    name, texts, two, unread, said = kind
    labels = two.different if name == "labels" else 0
    notes = said + note_unread(unread) + (note_two_texts(texts, data) if labels else note_numbers(texts[0], two))
    notes += note_single_labels(two.counts) if labels and whole else ()
    return Kind(name, data, count, whole, texts[0].name, two.name, labels, notes)
