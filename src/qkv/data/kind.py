"""What files hold, by their content and their names: pairs, labelled texts, texts, conversations. Next: sources.py.

Rows are sampled over the whole of a file, in bounded memory. What cannot be decided is an error that shows the command
for each way to read it.
"""

import csv
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.data import hf_datasets
from qkv.data.bad_rows import BadRowPolicy
from qkv.data.encodings import describe_encoding
from qkv.data.json_rows import LABEL_KEYS, parse_object
from qkv.data.sources import JSON, find_delimiter, is_header, read_rows
from qkv.data.text_files import Line, find_suffix, open_text
from qkv.errors import QkvError
from qkv.messages import Message, join

LIMIT = 1 << 24  # bytes of all files together that are looked at; smaller files are read whole
STRETCHES = 64  # places of a larger file that are looked at
HEAD = 1 << 20  # bytes by which a text is told from columns
SAMPLED = 20_000  # rows of a data set that are looked at
MANY = 500  # labels; whether more are meant is asked
FEW = 3  # rows that each label has, on average
NARROW = 40  # columns of a terminal that a label takes at most
SHORT = 12  # and what may be a label or a translation
TEXT_KEYS = ("text", "sentence", "content", "review", "document", "body", "comment", "文本", "句子", "内容", "评论")
PAIR_KEYS = (
    ("source", "target"), ("src", "tgt"), ("prompt", "completion"), ("instruction", "output"), ("input", "output"),
    ("question", "answer"), ("zh", "en"), ("en", "zh"), ("原文", "译文"), ("中文", "英文"), ("问题", "答案"),
)
SKIPPED = re.compile(r"^(\.|_)|^(readme|licen[cs]e|copying|changelog)\b", re.IGNORECASE)  # files of a folder


@dataclass(frozen=True)
class Sample:
    """Lines from all over a file, and how many it has: an estimate unless `whole`."""

    lines: list[str]
    count: int
    whole: bool


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
        if self.name == "labels" and objective == "labels":
            return Message("a classifier of {labels} labels from {rows} rows, by {column} (to train a translator "
                           "instead: objective=pairs)", labels=self.labels, rows=rows, column=self.two)
        if self.name in ("pairs", "labels") and objective == "pairs":
            if "source" in self.data:
                return Message("a translator from {rows} pairs, {one} to {two} (to train a language model of both "
                               "instead: objective=text)", rows=rows, one=self.one, two=self.two)
            return Message("a translator from {rows} pairs, {one} to {two} (to train a classifier instead: "
                           "objective=labels)", rows=rows, one=self.one, two=self.two)
        if objective != "text":
            return Message("objective {objective} on {rows} rows or lines", objective=objective, rows=rows)
        if self.name == "documents":
            return Message("a language model from {rows} documents (to fill in masked words instead: "
                           "objective=masked)", rows=rows)
        return Message("a language model from text of {rows} lines (to fill in masked words instead: "
                       "objective=masked)", rows=rows)


@dataclass(frozen=True)
class Column:
    """What the sampled cells of a column are like."""

    name: Message | str
    index: int
    different: int
    rows: int
    width: float  # columns of a terminal, on average
    words: float
    counts: Counter[str]

    @property
    def is_label(self) -> bool:
        """Whether few different short texts fill it, each seen several times."""
        return self.different >= 2 and self.rows >= FEW * self.different and self.width <= NARROW and self.words <= 5

    @property
    def is_number(self) -> bool:
        """Whether it numbers the rows."""
        return self.different == self.rows and all(cell.isdigit() for cell in self.counts)


def find_kind(words: Sequence[str], data: Mapping[str, Any], objective: str = "") -> Kind:
    """What files, folders and globs hold; `data` and `objective` are what a person said of them, which counts.

    Raises:
        QkvError: files of several kinds, preferences, a format that is not read, or what may be one thing or another.
    """
    paths, many = list_files(words)
    if any(path.is_dir() for path in paths):
        return read_folders(paths, data, objective)
    formats = {path: find_format(path, objective) for path in paths}
    found = set(formats.values())
    names = [str(path) for path in paths]
    if len(found) > 1:
        each = ", ".join(f"{path} ({kind})" for path, kind in list(formats.items())[:8])
        raise QkvError("found files of different kinds: {each}; use one format for all rows, and name what to read",
                       each=each)
    (kind,) = found
    if kind == "text":
        return decide_texts(paths, objective, many=many)
    if kind == "parquet":
        if len(paths) > 1:
            raise QkvError("{names}: found several Parquet files; name the folder that holds them",
                           names=", ".join(names))
        return read_dataset(names[0], data, objective)
    if kind == "jsonl":
        return read_json_lines(paths, words, data, objective)
    return read_table(paths, words, data, objective)


def list_files(words: Sequence[str]) -> tuple[list[Path], bool]:
    """The files that words name, those of folders and globs in order, and whether one of the words names many."""
    paths, many = list[Path](), False
    for word in map(str, words):
        path = Path(word)
        if path.exists() or not any(sign in word for sign in "*?["):
            inside = path.is_dir() and not any((path / file).is_file() for file in ("index.json", *hf_datasets.SAVED))
            found = sorted(p for p in path.rglob("*") if p.is_file() and not any(
                SKIPPED.search(part) for part in p.relative_to(path).parts)) if inside else [path]
            if inside and any(p.suffix == ".parquet" for p in found):  # a data set, in which each split has files
                refuse_mixture(path, found)
                found = [path]
            elif inside:
                many = True
                refuse_mixture(path, found)
        else:
            root = Path(path.anchor or ".")
            found, many = sorted(p for p in root.glob(str(path.relative_to(path.anchor))) if p.is_file()), True
        if not found:
            raise QkvError("{word}: found no file of data", word=word)
        paths += found
    return paths, many


def refuse_mixture(folder: Path, files: Sequence[Path]) -> None:
    """QkvError for a folder whose files end differently, unless all of them may be texts."""
    ends = Counter(find_suffix(file) or Message("without suffix") for file in files)
    if len(ends) > 1 and ends.keys() - {".txt", ".text", ".md", ".rst"}:
        found = ", ".join(f"{count} {end}" for end, count in ends.most_common(8))
        raise QkvError("{folder}: found files of different kinds ({found}), expected one kind; name those to read, as "
                       "in '{folder}/*{end}'", folder=folder, found=found, end=ends.most_common(1)[0][0])


def find_format(path: Path, objective: str = "") -> str:
    """How a file is written: "tsv", "csv", "jsonl", "parquet" or "text"; its name and its content say it."""
    suffix = find_suffix(path)
    if suffix == ".parquet":
        return "parquet"
    if suffix == ".csv":
        return "csv"
    if suffix in (".tsv", *JSON) or not path.is_file():
        if not path.exists():
            open_text(path)
        return "tsv" if suffix == ".tsv" else "jsonl" if suffix in JSON else "text"
    with open_text(path) as file:
        lines = [line for line in decode_lines(path, file.read(HEAD).split(b"\n")) if line.strip()]
    objects = sum(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines)
    if lines and objects > 0.8 * len(lines):
        return "jsonl"
    if suffix == ".json":
        raise QkvError('{path}: expected an object a line (*.jsonl); to convert a list of objects: python -c "import '
                       "json,sys; [print(json.dumps(row, ensure_ascii=False)) for row in json.load(sys.stdin)]\" < "
                       "{path} > {out}", path=path, out=path.with_suffix(".jsonl"))
    tabs = sum(all(cell.strip() for cell in line.split("\t")[:2]) and "\t" in line for line in lines)
    return "tsv" if lines and tabs > 0.8 * len(lines) and objective != "text" else "text"


def sample_lines(path: Path, limit: int) -> Sample:
    """Lines of a text file from all over it, of at most `limit` bytes; errors as of decode_lines and open_text."""
    blocks, step, count, last = list[bytes](), 1, 0, b"\n"
    with open_text(path) as file:
        for n, block in enumerate(iter(lambda: file.read(max(1, limit // STRETCHES)), b"")):
            count, last = count + block.count(b"\n"), block[-1:]
            if n % step == 0:
                blocks.append(block)
            if len(blocks) > STRETCHES:
                blocks, step = blocks[::2], 2 * step
    if step == 1:
        raws = b"".join(blocks).split(b"\n")
    else:  # a block begins and ends within a line
        raws = blocks[0].split(b"\n")[:-1] + [raw for block in blocks[1:] for raw in block.split(b"\n")[1:-1]]
    return Sample(decode_lines(path, raws), count + (last != b"\n"), step == 1)


def decode_lines(path: Path, raws: Sequence[bytes]) -> list[str]:
    """The lines that are UTF-8; the others are named by their numbers when they are read.

    Raises:
        QkvError: of what lies beyond ASCII, most is in another encoding, which is named.
    """
    lines, bad, wide, first = list[str](), 0, 0, b""
    for raw in raws:
        try:
            lines.append(raw.decode("utf-8").rstrip("\r"))
            wide += not raw.isascii()
        except UnicodeDecodeError:
            bad, first = bad + 1, first or raw
    if bad > max(wide, 2):
        raise QkvError("{path}: {found}", path=path, found=describe_encoding(first, bad, wide))
    return lines


def decide_texts(paths: Sequence[Path], objective: str, *, many: bool) -> Kind:
    """Texts, or two parallel files: two with one stem, or with as many lines."""
    names = [str(path) for path in paths]
    two = len(paths) == 2 and objective != "text"
    same = two and Path(paths[0].name).stem == Path(paths[1].name).stem
    if two and (same or not many or objective == "pairs"):
        counts = [count_lines(path) if path.is_file() else 0 for path in paths]
        if counts[0] != counts[1] and {find_suffix(path) for path in paths} == {".txt"} and objective != "pairs":
            raise QkvError("{names}: found {one:,} and {two:,} lines; two texts, or parallel files of which one lacks "
                           "lines?{commands}", names=", ".join(names), one=counts[0], two=counts[1],
                           commands=list_commands(names, ("text", "pairs")))
        return Kind("pairs", {"source": names[0], "target": names[1]}, counts[0], one=paths[0].name,
                    two=paths[1].name)
    if len(paths) > 1 and not many and len({find_suffix(path) for path in paths}) > 1:
        raise QkvError("{names}: found {paths} files, expected two parallel ones, or files of one kind; name others "
                       "in a TOML file", names=", ".join(names), paths=len(paths))
    if len(paths) > 1:
        return Kind("documents", {"text": names}, len(paths))
    return Kind("text", {"text": names}, count_lines(paths[0]) if paths[0].is_file() else 0)


def count_lines(path: Path) -> int:
    """The lines of a text file."""
    count, last = 0, b"\n"
    with open_text(path) as file:
        while piece := file.read(1 << 20):
            count, last = count + piece.count(b"\n"), piece[-1:]
    return count + (last != b"\n")


def read_table(paths: Sequence[Path], words: Sequence[str], data: Mapping[str, Any], objective: str) -> Kind:
    """Files of columns."""
    tables = [read_cells(path, LIMIT // len(paths)) for path in paths]
    rows, titles = [row for table in tables for row in table.rows], tables[0].titles
    if not rows:
        raise QkvError("{path}: no row of data", path=paths[0])
    headers = {bool(table.titles) for table in tables}
    if len(headers) > 1:
        raise QkvError("{names}: some of these files have column names in their first row, and some have not",
                       names=", ".join(map(str, paths)))
    width = Counter(map(len, rows)).most_common(1)[0][0]
    titles = titles if len(titles) == width else []
    names = [Message("column {n} ({name})", n=n + 1, name=titles[n]) if titles else Message("column {n}", n=n + 1)
             for n in range(width)]
    given = data.get("columns")
    fits = isinstance(given, list) and len({*given}) == len(given) == 2 and all(n in range(width) for n in given)
    order = given if fits else None  # any other is refused with the rest of the settings
    if width < 2:
        raise QkvError("{path}: found 1 column, expected two: a text and its translation, or its label; for text alone "
                       "use a file of text (*.txt)", path=paths[0])

    def decide_rows(some: Sequence[Sequence[str]]) -> tuple[str, tuple[Column, Column]]:
        cells = ([row[n] for row in some if len(row) == width] for n in order or range(width))
        columns = [measure_column(names[n], n, found) for n, found in zip(order or range(width), cells, strict=True)]
        return decide(", ".join(map(str, paths)), columns, [] if order else titles, words, objective)

    found = decide_rows(rows)
    columns = [column.index for column in found[1]]
    for path, table in zip(paths, tables, strict=True) if len(paths) > 1 and not objective else ():
        name, sides = decide_rows(table.rows) if len(table.rows) > 50 else found
        if name == "labels" and (name, [column.index for column in sides]) != (found[0], columns):
            raise QkvError("{path}: found labels in {column}, unlike in the other files; read it by itself, or set "
                           "data.columns or objective", path=path, column=sides[1].name)
    made = {"tsv": [str(path) for path in paths], "columns": columns} | ({"header": True} if True in headers else {})
    return make_rows_kind(found, made, sum(t.count for t in tables), all(t.whole for t in tables))


@dataclass(frozen=True)
class Table:
    """Rows from all over a file of columns, the names of these, and how many rows it has: exactly if `whole`."""

    rows: list[list[str]]
    titles: list[str]
    count: int
    whole: bool


def read_cells(path: Path, limit: int) -> Table:
    """A sample of a file of columns."""
    found = sample_lines(path, limit)
    lines, comma = [line for line in found.lines if line.strip()], find_suffix(path) == ".csv"
    mark = find_delimiter(Line(1, lines[0].encode(), 0, b"", 0)) if lines and comma else "\t"
    rows = [row for row in csv.reader(lines, delimiter=mark) if row] if comma else [line.split(mark) for line in lines]
    named = bool(rows) and (is_header(rows[0]) or (comma and names_columns(rows)))
    titles = [cell.strip() for cell in rows[0]] if named else []
    rows = rows[1:] if named else rows
    return Table(rows, titles, len(rows) if found.whole else found.count - named, found.whole)


def names_columns(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row of CSV names columns: single words that do not come again, over longer or numeric cells."""
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if not rest or not all(re.fullmatch(r"[^\W\d]\w*", cell.strip()) for cell in first) or len({*first}) < len(first):
        return False
    if any(row[n] == cell for row in rest for n, cell in enumerate(first)):
        return False
    return any(
        all(row[n].strip().lstrip("-").replace(".", "", 1).isdigit() for row in rest)
        or sum(len(row[n]) for row in rest) > 2 * len(cell) * len(rest)
        for n, cell in enumerate(first)
    )


def read_json_lines(paths: Sequence[Path], words: Sequence[str], data: Mapping[str, Any], objective: str) -> Kind:
    """Files of JSON lines, by their keys."""
    items, count, whole, names = list[Mapping[str, Any]](), 0, True, [str(path) for path in paths]
    lenient = data.get("on_bad_row", "error") != "error"
    for path in paths:
        found = sample_lines(path, LIMIT // len(paths))
        next(read_rows(path, parse_object, policy=BadRowPolicy("skip" if lenient else "error")))  # names a bad one
        for line in found.lines:
            try:
                item: Any = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                continue  # named by its number when it is read
            if isinstance(item, dict):
                items.append(item)
        whole = whole and found.whole
        count += sum(1 for line in found.lines if line.strip()) if found.whole else found.count
    kind = decide_keys(names, items, words, data, objective)
    texts = isinstance(kind, str)
    if kind == "messages":
        return Kind("chat", {"messages": names}, count, whole)
    if texts:
        plain = kind == "text" and all(find_suffix(path) in JSON for path in paths)
        return Kind("documents", {"text": names, **({} if plain else {"keys": [kind]})}, count, whole)
    return make_rows_kind(kind, {"jsonl": names, "keys": [str(c.name) for c in kind[1]]}, count, whole)


def decide_keys(names: Sequence[str], items: Sequence[Mapping[str, Any]], words: Sequence[str],
                data: Mapping[str, Any], objective: str) -> Any:
    """Of rows with keys: "messages", the key of texts, or what `decide` finds."""
    place, given = ", ".join(names), data.get("keys")
    rows = [dict(flatten(item)) for item in items]
    keys = Counter(key for row in rows for key in row)
    common = [key for key, n in keys.items() if n > 0.5 * len(rows)]
    if "messages" in common and not given:
        return "messages"
    if {"chosen", "rejected"} <= {*common} and not given:
        raise QkvError("{place}: found preferences (chosen and rejected), which are not trained here; for the chosen "
                       "answers alone: data.keys='[\"prompt\", \"chosen\"]'", place=place)
    texts = [key for key in common if any(isinstance(row.get(key), str) for row in rows)
             or (key.rpartition(".")[2].lower() in LABEL_KEYS and isinstance(rows[0].get(key), int))]
    if not texts:
        raise QkvError("{place}: no column holds text (found: {found})", place=place,
                       found=", ".join(keys) or Message("none"))
    if isinstance(given, list):
        if len(given) == 1:
            return given[0]
        texts = [key for key in given if key in keys] if all(key in keys for key in given) else []
    if isinstance(given, list) and not texts:
        raise QkvError("{place}: found the keys {found}, expected {given}", place=place,
                       found=", ".join(keys) or Message("none"), given=", ".join(map(str, given)))
    columns = [measure_column(key, n, [as_text(row[key]) for row in rows if key in row]) for n, key in enumerate(texts)]
    known = [key for key in texts if key.lower() in TEXT_KEYS]
    named = any(key.lower() in LABEL_KEYS for key in texts) or any({*two} <= {*texts} for two in PAIR_KEYS)
    if not given and not named and (known or len(texts) == 1) and isinstance(rows[0].get(texts[0]), str):
        return known[0] if known else texts[0]
    if not given and not named and len(texts) != 2:
        raise QkvError("{place}: found the keys {found}; name those to learn from: data.keys='[\"A\", \"B\"]', or one "
                       "of texts: data.keys='[\"A\"]'", place=place, found=", ".join(keys) or Message("none"))
    return decide(place, columns, [] if given else texts, words, objective)


def flatten(item: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an object and of those within it, by keys with dots between."""
    for key, value in item.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def as_text(value: object) -> str:
    """A cell as text; of a class the number."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def read_folders(paths: Sequence[Path], data: Mapping[str, Any], objective: str) -> Kind:
    """Folders of token shards, or one data set."""
    names = [str(path) for path in paths]
    if all((path / "index.json").is_file() for path in paths):
        return Kind("shards", {"shards": names})
    if len(paths) > 1:
        raise QkvError("{names}: found files of different kinds; token shards, a data set and other files are not "
                       "read together (qkv data pack writes texts as shards)", names=", ".join(names))
    return read_dataset(names[0], data, objective)


def read_dataset(name: str, data: Mapping[str, Any], objective: str) -> Kind:
    """A Parquet file or a data-set folder, by its columns."""
    splits = hf_datasets.open_dataset(name)
    table = splits.get("train", next(iter(splits.values())))
    rows, count = hf_datasets.sample_rows(table, SAMPLED)
    if not rows:
        raise QkvError("{name}: no row of data", name=name)
    kind = decide_keys([name], rows, [name], data, objective)
    if kind == "messages":
        parts = {part: getattr(some, "paths", ()) for part, some in splits.items()}
        apart = {f"{part[:5]}_file": paths for part, paths in parts.items() if part != "train"}
        if not parts.get("train") or any(len(paths) != 1 for paths in apart.values()):
            raise QkvError("{name}: conversations are read from Parquet files or JSON lines (*.jsonl), with one file "
                           "each for validation and test; name them: data.messages, data.valid_file, data.test_file",
                           name=name)
        held = {key: str(paths[0]) for key, paths in apart.items()}
        return Kind("chat", {"messages": [str(path) for path in parts["train"]], **held}, count)
    if isinstance(kind, str):
        return Kind("documents", {"dataset": name, "keys": [kind]}, count)
    return make_rows_kind(kind, {"dataset": name, "keys": [str(c.name) for c in kind[1]]}, count, whole=True)


def measure_column(name: Message | str, index: int, cells: Sequence[str]) -> Column:
    """What cells are like."""
    counts, some = Counter(cell[:200].strip() for cell in cells), cells[:: max(1, len(cells) // 2000)]
    width = sum(len(cell) + sum(c > "\u2e7f" for c in cell) for cell in some) / max(1, len(some))
    words = sum(len(cell.split()) for cell in some) / max(1, len(some))
    return Column(name, index, len(counts), len(cells), width, words, counts)


def decide(place: str, columns: Sequence[Column], titles: Sequence[str], words: Sequence[str],
           objective: str) -> tuple[str, tuple[Column, Column]]:
    """("pairs" or "labels", the columns of both sides): by the names of columns, and by what is in them.

    Raises:
        QkvError: it may be either; or so many labels that they may be none.
    """
    by_name = {title.lower(): column for title, column in zip(titles, columns, strict=False)}
    label = next((by_name[key] for key in LABEL_KEYS if key in by_name), None)
    pair = next(((by_name[a], by_name[b]) for a, b in PAIR_KEYS if a in by_name and b in by_name), None)
    texts = [by_name[key] for key in TEXT_KEYS if key in by_name]
    if label and not (label.is_label or objective == "labels" or str(titles[columns.index(label)]).lower() in (
            "label", "labels", "class", "category", "标签", "类别")):
        label = None
    rest = [column for column in columns if not column.is_number] if len(columns) > 2 else list(columns)
    if len(rest) < 2:
        rest = list(columns)
    if label is None and objective != "pairs":
        label = find_label(list(pair) if pair else rest)
    two = pair or (rest[0], rest[1])
    if objective == "labels" and label is None:
        label = min(two, key=lambda c: c.different) if two[0].different != two[1].different else two[1]
    if label and objective != "pairs":
        others = [column for column in (texts or (list(pair) if pair else rest)) if column is not label]
        text = max(others or [c for c in columns if c is not label], key=lambda c: c.width)
        if label.different > MANY and objective != "labels":
            ask(place, label, words)
        return "labels", (text, label)
    if not objective and len(rest) == 2:
        one, other = two
        narrow = other.width <= SHORT and other.words <= 2 and one.width >= 2 * other.width
        if narrow and 2 <= other.different < 0.8 * other.rows:
            ask(place, other, words)
        if single := next((side for side in two if side.different == 1 and side.rows >= 20), None):
            ask(place, single, words)
    return "pairs", two


def find_label(columns: Sequence[Column]) -> Column | None:
    """The column that holds labels: few different texts, and far fewer than another column has."""
    found = [c for c in columns if c.is_label and any(4 * c.different <= other.different for other in columns)]
    return min(found, key=lambda c: c.different, default=None)


def ask(place: str, column: Column, words: Sequence[str]) -> None:
    """QkvError that shows the command for labels and the one for pairs."""
    raise QkvError("{place}: {column} holds {different:,} different short texts in {rows:,} rows: are these labels?"
                   "{commands}", place=place, column=column.name, different=column.different, rows=column.rows,
                   commands=list_commands(words, ("labels", "pairs")))


def list_commands(words: Sequence[object], objectives: Sequence[str]) -> Message:
    """A command for each objective, ready to be pasted."""
    says = {"labels": Message("a classifier"), "pairs": Message("a translator"), "text": Message("a language model")}
    typed = shlex.join(map(str, words))
    return join("", [Message("\n  {what}: {command}", what=says[name], command=f"qkv train {typed} objective={name}")
                     for name in objectives])


def make_rows_kind(kind: tuple[str, tuple[Column, Column]], data: dict[str, Any], rows: int, whole: bool) -> Kind:
    """The kind of rows with two sides."""
    name, (one, two) = kind
    notes = note_single_labels(two.counts) if name == "labels" and whole else ()
    return Kind(name, data, rows, whole, one.name, two.name, two.different if name == "labels" else 0, notes)


def note_single_labels(counts: Mapping[str, int]) -> tuple[Message, ...]:
    """The note on labels that only one row has."""
    once = [label for label, count in counts.items() if count == 1]
    some = ", ".join(repr(label[:20]) for label in once[:4])
    return (Message("{count:,} labels stand in only one row each ({some}): such a label is either learnt or judged, "
                    "not both", count=len(once), some=some),) if once else ()
