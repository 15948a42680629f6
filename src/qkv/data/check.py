"""What files of training data hold, before anything is trained on them: counts, faults with file and line, overlap.

Files are read line by line; of each row only a hash of 8 bytes is kept, to find repeated ones. Next: sources.py.
"""

import hashlib
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from qkv.data import sources
from qkv.errors import QkvError
from qkv.messages import Message, Trimmed

Kind = Literal["auto", "text", "tsv", "jsonl", "parallel"]
Row = tuple[str, ...]  # one text, or a pair
Talk = Callable[[Mapping[str, object], str], Sequence[Mapping[str, object]]]  # (row, place) -> messages
HUGE = 1 << 20  # bytes from which a line is told of
TELLING = 30  # bytes from which a line of plain text is no phrase that everybody writes
NAMED = Message("looks like the names of the columns, and is read as a row like any other; remove the line")
LEAK = 0.1  # the share of such lines, found in training too, from which held-out text is no longer held out
PARTS = {"rows": Message("rows"), "source": Message("source"), "target": Message("target"),
         "column 1": Message("column 1"), "column 2": Message("column 2")}
KEYS = (("source", "target"), ("prompt", "completion"), ("label", "text"), ("text",))
WHERE = re.compile(r"^.*?:\d+(?:: |\uff1a)")  # file:line before a message, English or Chinese


@dataclass(frozen=True)
class Options:
    """How files are read: what they are, which columns or keys matter, and from which length a row is over-long."""

    kind: Kind = "auto"
    columns: tuple[int, int] = (0, 1)
    keys: tuple[str, ...] = ()  # of JSON lines; empty: the first row decides
    longest: int = 1000
    measure: Callable[[str], int] = len  # the length of a text, in characters or in a tokenizer's tokens
    tell: Callable[[Path, int], None] | None = None  # progress: a file, and the lines read of it
    talk: Talk | None = None  # reads the conversation of a row


@dataclass(frozen=True)
class Fault:
    """Something found: how often, the place of the first, and whether it must be mended (`broken`) or only known."""

    place: str
    text: Message
    count: int = 1
    broken: bool = True


@dataclass
class About:
    """One file in numbers: `scripts` are shares of its letters, `rows` are its lines without blank and bad ones."""

    path: Path
    kind: str
    bytes: int = 0
    lines: int = 0
    rows: int = 0
    bad: int = 0
    empty: int = 0
    crlf: int = 0
    mark: bool = False
    duplicates: int = 0
    over_long: int = 0
    longest: int = 0  # characters
    longest_line: int = 0
    characters: int = 0  # different ones
    scripts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Overlap:
    """How many held-out rows (or their sides: `part`) occur in training, of how many, and the first of them."""

    kind: str
    training: str
    held: str
    part: str
    count: int
    of: int
    place: str
    twin: str


@dataclass(frozen=True)
class Report:
    """What was found in all files. `ok` is False where something must be mended."""

    files: tuple[About, ...]
    faults: tuple[Fault, ...]
    overlaps: tuple[Overlap, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not any(fault.broken for fault in self.faults)


@dataclass
class Hashes:
    """The rows of one file or of files that belong together: a hash of each row and of each of its sides, its line."""

    name: str
    kind: str
    lines: "array[int]" = field(default_factory=lambda: array("Q"))
    whole: "array[int]" = field(default_factory=lambda: array("Q"))
    sides: tuple["array[int]", ...] = ()
    telling: "array[int]" = field(default_factory=lambda: array("b"))  # 1: no short line of plain text

    def add(self, number: int, row: Row) -> None:
        """Remember a row."""
        if not self.sides:
            self.sides = tuple(array("Q") for _ in row) if len(row) > 1 else ()
        self.lines.append(number)
        self.telling.append(len(row) > 1 or sum(len(text.encode("utf-8", "replace")) for text in row) >= TELLING)
        hashes = [hashed(text) for text in row]
        self.whole.append(hashed(" ".join(map(str, hashes))) if len(row) > 1 else hashes[0])
        for side, value in zip(self.sides, hashes, strict=False):
            side.append(value)


def hashed(text: str) -> int:
    """64 bits of a text, without regard to spaces at its ends."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode("utf-8", "replace"), digest_size=8).digest(), "little")


def bare(said: Message) -> Message:
    """A message without the place before it."""
    return Trimmed(said, WHERE.pattern)


class Tally(sources.Sieve):
    """A sieve that counts each kind of fault and keeps the first of each kind."""

    def __init__(self) -> None:
        super().__init__("skip")
        self.kinds: dict[str, tuple[int, Message]] = {}
        self.count = 0

    def refuse(self, error: QkvError, *rows: tuple[Path, sources.Line]) -> None:
        """Count a bad row."""
        super().refuse(error, *rows)
        self.count += 1
        what = re.sub(r"0x\w+|[\d,]+|'[^']*'", "", WHERE.sub("", str(error))).split(":")[0].split(";")[0]
        seen, first = self.kinds.get(what, (0, error.message))
        self.kinds[what] = (seen + 1, first)

    def faults(self) -> Iterator[Fault]:
        """One fault for each kind."""
        for count, first in self.kinds.values():
            found = WHERE.match(first)
            place = found.group().removesuffix(": ") if found else ""
            yield Fault(place, bare(first), count)


def check(training: Sequence[Path], held: Sequence[Path] = (), options: Options | None = None) -> Report:
    """Read the files of training, and those that are held out for evaluation, and report on them.

    With kind `parallel`, or two files whose names say of neither that it holds rows (train.en and train.de, or two
    *.txt), files belong together two by two, as `qkv train` takes them. Beside other training, two held-out *.txt are
    a text each.

    Raises:
        QkvError: an odd number of parallel files.
    """
    options = options or Options()
    files: list[About] = []
    faults: list[Fault] = []
    read: list[list[Hashes]] = [[], []]
    for i, paths in enumerate((training, held)):
        apart = i == 1 and not any(about.kind == "parallel" for about in files)
        for unit in units([Path(p) for p in paths], options.kind, apart=apart):
            kind = kind_of(unit, options.kind)
            abouts = [About(path, kind) for path in unit]
            for about in abouts:
                faults += survey(about, options)
            files += abouts
            if all(about.lines > about.empty for about in abouts):
                read[i].append(contents(unit, abouts, faults, options))
    overlaps = [o for one in read[0] for other in read[1] for o in overlap(one, other)]
    faults += [leak(o) for o in overlaps if o.count]
    return Report(tuple(files), tuple(faults), tuple(overlaps))


def kind_of(unit: Sequence[Path], kind: Kind) -> str:
    """What files are, by their names where nobody said it."""
    if len(unit) > 1:
        return "parallel"
    ends = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
    return ends.get(unit[0].suffix.lower(), "text") if kind == "auto" else kind


def units(paths: Sequence[Path], kind: Kind, *, apart: bool = False) -> list[tuple[Path, ...]]:
    """Files one by one, or two by two where they are parallel; with `apart`, *.txt are none of these."""
    alone = (".tsv", *sources.JSON, *((".txt",) if apart else ()))
    two = len(paths) == 2 and not any(p.suffix.lower() in alone for p in paths)
    if kind == "parallel" or (kind == "auto" and two):
        if len(paths) % 2:
            raise QkvError("parallel files come in twos, source then target; found {paths}: {paths2} is alone",
                           paths=len(paths), paths2=paths[-1])
        return [(paths[i], paths[i + 1]) for i in range(0, len(paths), 2)]
    return [(path,) for path in paths]


def survey(about: About, options: Options) -> Iterator[Fault]:
    """Fill in what a file is as bytes and lines, and tell what is odd about it; faults of rows are found later."""
    path, letters = about.path, Counter[str]()
    wide = bad = huge = returns = lost = 0
    first = {"bad": sources.Line(0, b"", 0, b"", 0), "huge": sources.Line(0, b"", 0, b"", 0)}
    try:
        about.bytes = path.stat().st_size if path.exists() else 0
        with sources.opened(path) as file:
            about.mark = file.tell() > 0
        for line in sources.raw_lines(path):
            about.lines = line.number
            about.crlf += line.end == b"\r\n"
            returns += b"\r" in line.raw
            if line.size >= HUGE:
                huge, first["huge"] = huge + 1, first["huge"] if huge else line
            try:
                text = line.raw.decode("utf-8")
            except UnicodeDecodeError:
                bad, first["bad"] = bad + 1, first["bad"] if bad else line
                continue
            about.empty += not text.strip()  # as the readers see it: a row of text separators is blank too
            wide += not text.isascii()
            lost += "\ufffd" in text
            letters.update(text)
            if len(text) > about.longest:
                about.longest, about.longest_line = len(text), line.number
            if options.tell and line.number % 10_000 == 0:
                options.tell(path, line.number)
    except QkvError as error:
        yield Fault(str(path), Trimmed(error.message, f"^{re.escape(str(path))}(?:: |\uff1a)"))
        return
    about.characters, about.scripts = len(letters), scripts(letters)
    if about.lines == about.empty:
        yield Fault(str(path), Message("the file is empty, expected text"))
    if bad:
        yield Fault(f"{path}:{first['bad'].number}", foreign(first["bad"].raw, bad, wide), bad)
    if huge:
        size = first["huge"].size
        text = Message("a line of {size:,} bytes; lines are rows: is this one file without line ends?",
                       size=size)
        yield Fault(f"{path}:{first['huge'].number}", text, huge, broken=about.kind != "text")
    yield from odd(about, returns, lost)


def foreign(raw: bytes, bad: int, wide: int) -> Message:
    """What is said of `bad` lines that are not UTF-8, the first of them `raw`, beside `wide` that are beyond ASCII."""
    looks = guess(raw)
    if wide:
        return Message("mixed encodings: {wide} lines are UTF-8 beyond ASCII, and {bad} are not; the first of these "
                       "looks like {looks}", wide=wide, bad=bad, looks=looks or Message("no text"))
    if looks:
        how = f"iconv -f {looks} -t UTF-8"
        return Message("not UTF-8, looks like {looks}: {how}", looks=looks, how=how)
    return Message("not UTF-8, nor text in another encoding")


def odd(about: About, returns: int, lost: int) -> Iterator[Fault]:
    """What is worth knowing about a file that can be read all the same."""
    place, known = str(about.path), about.lines - about.empty
    if about.mark:
        text = Message("begins with a byte order mark; it is dropped")
        yield Fault(place, text, broken=False)
    if about.crlf:
        lf = about.lines - about.crlf if about.crlf < about.lines - 1 else 0
        mixed = Message(", {lf} end with LF", lf=lf) if lf else Message("")
        text = Message("{crlf} lines end with CRLF{mixed}; both are read alike", crlf=about.crlf, mixed=mixed)
        yield Fault(place, text, about.crlf, broken=False)
    if returns:
        text = Message("carriage returns within lines; an old Mac's file ends its lines so")
        yield Fault(place, text, returns, broken=False)
    if lost:
        text = Message("lines hold U+FFFD: text that was lost in an earlier conversion")
        yield Fault(place, text, lost, broken=False)
    if about.kind != "text" and about.empty and known:
        yield Fault(place, Message("blank lines; they are no rows"), about.empty, broken=False)


def guess(raw: bytes) -> str:
    """The likely encoding of a line that is not UTF-8, as iconv calls it."""
    for name in ("GB18030", "BIG5", "SHIFT_JIS"):
        try:
            text = raw.decode(name)
        except UnicodeDecodeError:
            continue
        wide = [c for c in text if not c.isascii()]
        common = sum("\u4e00" <= c <= "\u9fff" or "\u3000" <= c <= "\u30ff" or "\uff00" <= c <= "\uffef" for c in wide)
        if len(wide) > 1 and common >= 0.8 * len(wide):
            return name
    return "CP1252" if all(byte >= 32 or byte in b"\t\r\f" for byte in raw) else ""


def scripts(letters: Counter[str]) -> dict[str, float]:
    """The share of each script among the letters, largest first."""
    found = Counter[str]()
    for letter, count in letters.items():
        if unicodedata.category(letter).startswith("L"):
            found[unicodedata.name(letter, "unknown").split(" ")[0].split("-")[0].capitalize()] += count
    total = found.total()
    return {("Han" if name == "Cjk" else name): round(count / total, 4) for name, count in found.most_common(8)}


def contents(unit: Sequence[Path], abouts: list[About], faults: list[Fault], options: Options) -> Hashes:
    """Read the rows, note what is wrong with them, and what repeats."""
    tally, hashes = Tally(), Hashes(" + ".join(map(str, unit)), abouts[0].kind)
    over = [0] * len(unit)
    at: tuple[int, str] = (0, "")
    try:
        for number, row in read_rows(unit, abouts[0].kind, options, tally):
            long = [options.measure(text) > options.longest for text in row]
            for i in range(len(unit)):
                over[i] += long[i] if len(unit) > 1 else any(long)
            if any(long) and not at[0]:
                at = (number, max(row, key=len))
            if abouts[0].kind == "tsv" and not hashes.lines and sources.titled(row):
                faults.append(Fault(f"{unit[0]}:{number}", NAMED, 1, broken=False))
            hashes.add(number, row)
            if options.tell and number % 10_000 == 0:
                options.tell(unit[0], number)
    except QkvError as error:
        if hashes.lines or not tally.count:  # else the tally says it
            faults.append(Fault(str(unit[0]), error.message))
    faults += [f for f in tally.faults() if not any(f.place == old.place for old in faults)]
    repeats, line, twin = repeated(hashes)
    for about, long in zip(abouts, over, strict=True):
        about.rows, about.bad, about.over_long, about.duplicates = len(hashes.lines), tally.count, long, repeats
    if repeats:
        text = Message("duplicate rows; the first repeats line {twin}", twin=twin)
        faults.append(Fault(f"{unit[0]}:{line}", text, repeats, False))
    if at[0]:
        size = options.measure(at[1])
        text = Message("rows longer than {longest}; the first has {size}", longest=options.longest, size=size)
        faults.append(Fault(f"{unit[0]}:{at[0]}", text, max(over), broken=False))
    return hashes


def read_rows(unit: Sequence[Path], kind: str, options: Options, sieve: sources.Sieve) -> Iterator[tuple[int, Row]]:
    """The rows of files that belong together, with their lines."""
    if kind == "parallel":
        yield from sources.pair_rows(unit[0], unit[1], sieve=sieve)
    elif kind == "tsv":
        yield from sources.tsv_rows(unit[0], options.columns, sieve=sieve)
    elif kind == "jsonl":
        yield from sources.rows(unit[0], Keyed(options.keys, options.talk), sieve=sieve)
    else:
        yield from sources.rows(unit[0], lambda text, _: (text,), sieve=sieve)


class Keyed:
    """Reads a line of JSON into the texts of some keys, as training does; without keys the first line decides which.

    Of `messages` it makes one text, where `talk` reads them.
    """

    def __init__(self, keys: tuple[str, ...] = (), talk: Talk | None = None) -> None:
        self.keys, self.talk = keys, talk

    def __call__(self, text: str, place: str) -> Row:
        """The texts of a line."""
        item = sources.json_object(text, place)
        if self.talk and (self.keys == ("messages",) or (not self.keys and "messages" in item)):
            self.keys = ("messages",)
            return ("\n".join(f"{m['role']}: {m.get('content') or ''}" for m in self.talk(item, place)),)
        if not self.keys:
            self.keys = next((keys for keys in KEYS if all(k in item for k in keys)), ())
            if not self.keys:
                found = ", ".join(item)
                raise QkvError("{place}: found the keys {found}; say which hold text with --keys", place=place,
                               found=found or Message("none"))
        row = tuple(sources.told(sources.under(item, key, place), key, place) for key in self.keys)
        for key, value in zip(self.keys, row, strict=True):
            if not value.strip():
                raise QkvError("{place}: the {key} is empty", place=place, key=key)
        return row


def repeated(hashes: Hashes) -> tuple[int, int, int]:
    """How many rows repeat an earlier one, the line of the first that does, and the line that it repeats."""
    values = np.frombuffer(hashes.whole, dtype=np.uint64) if hashes.whole else np.zeros(0, np.uint64)
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    again = np.flatnonzero(ranked[1:] == ranked[:-1]) + 1
    if not len(again):
        return 0, 0, 0
    first = int(order[again].min())
    twin = int(np.flatnonzero(values == values[first])[0])
    return len(again), hashes.lines[first], hashes.lines[twin]


def overlap(training: Hashes, held: Hashes) -> Iterator[Overlap]:
    """The rows of `held`, whole or by their sides, that occur in `training` too."""
    parts: list[tuple[str, array[int], array[int]]] = []
    if len(training.sides) == len(held.sides):
        parts.append(("rows", training.whole, held.whole))
        names = ("source", "target") if training.kind == held.kind == "parallel" else ("column 1", "column 2")
        parts += [(name, a, b) for name, a, b in zip(names, training.sides, held.sides, strict=False)]
    for part, a, b in parts:
        known = np.frombuffer(a, dtype=np.uint64) if a else np.zeros(0, np.uint64)
        asked = np.frombuffer(b, dtype=np.uint64) if b else np.zeros(0, np.uint64)
        telling = np.array(held.telling, dtype=bool)
        inside = np.isin(asked, known) & telling
        place = twin = ""
        if inside.any():
            first = int(np.flatnonzero(inside)[0])
            place = f"{held.name.split(' + ')[0]}:{held.lines[first]}"
            twin = f"{training.name.split(' + ')[0]}:{training.lines[int(np.flatnonzero(known == asked[first])[0])]}"
        yield Overlap(held.kind, training.name, held.name, part, int(inside.sum()), int(telling.sum()), place, twin)


def leak(found: Overlap) -> Fault:
    """What an overlap means: whole rows must not be shared; single sides and a few lines of text are worth knowing."""
    share = Message("{count} of {of} held-out", count=found.count, of=found.of)
    if found.part != "rows":
        text = Message("{share} texts ({parts}) occur in training, the first at {twin}", share=share,
                       parts=PARTS[found.part], twin=found.twin)
        return Fault(found.place, text, found.count, broken=False)
    broken = found.kind != "text" or found.count > LEAK * found.of
    text = Message("{share} rows occur in training too, the first at {twin}", share=share, twin=found.twin)
    return Fault(found.place, text, found.count, broken)


def leaked(training: Path, held: Path) -> tuple[str, ...]:
    """What is said about a held-out text of which much stands in the training text too; nothing where little does."""
    one, two = (contents((path,), [About(path, kind_of((path,), "auto"))], [], Options(keys=("text",)))
                for path in (training, held))  # fmt: skip
    found = leak(next(overlap(one, two)))
    said = Message("{place}: {text}: the evaluation flatters the model", place=found.place, text=found.text)
    return (said,) if found.broken and found.count else ()
