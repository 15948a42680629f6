"""What files of training data hold, before anything is trained on them: counts, faults with file and line, overlap.

Files are read line by line; of each row only a hash of 8 bytes is kept, to find repeated ones. Next: sources.py.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qkv.data import sources
from qkv.data.bad_rows import BadRowPolicy, Fault, FaultCounter
from qkv.data.conversations import holds_conversations
from qkv.data.formats import count_scripts, describe_encoding, find_format
from qkv.data.overlap import Overlap, Row, RowHashes, find_overlaps, find_repeats, judge_overlap
from qkv.data.text_files import Line, find_suffix, open_text, read_raw_lines
from qkv.errors import QkvError
from qkv.messages import Message, Trimmed

Kind = Literal["auto", "text", "tsv", "jsonl", "parallel"]
ReadTalk = Callable[[Mapping[str, object], str], Sequence[Mapping[str, object]]]  # (row, place) -> messages
HUGE = 1 << 20  # bytes from which a line is reported
NAMED = Message("looks like column names but is read as a row; remove the line, or set data.header=true")
KEYS = (("source", "target"), ("prompt", "completion"), ("label", "text"), ("text",))


@dataclass(frozen=True)
class Options:
    """How files are read: what they are, which columns or keys matter, and from which length a row is over-long."""

    kind: Kind = "auto"
    columns: tuple[int, int] = (0, 1)
    keys: tuple[str, ...] = ()  # of JSON lines; empty: the first row decides
    longest: int = 1000
    measure: Callable[[str], int] = len  # the length of a text, in characters or in a tokenizer's tokens
    tell: Callable[[Path, int], None] | None = None  # progress: a file, and the lines read of it
    talk: ReadTalk | None = None  # reads the conversation of a row


@dataclass
class FileReport:
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
class Report:
    """What was found in all files. `ok` is False where something must be mended."""

    files: tuple[FileReport, ...]
    faults: tuple[Fault, ...]
    overlaps: tuple[Overlap, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not any(fault.broken for fault in self.faults)


def check(training: Sequence[Path], held: Sequence[Path] = (), options: Options | None = None) -> Report:
    """Read the files of training, and those that are held out for evaluation, and report on them.

    With kind `parallel`, or two files whose names say of neither that it holds rows (train.en and train.de, or two
    *.txt), files belong together two by two, as `qkv train` takes them. Beside other training, two held-out *.txt are
    a text each.

    Raises:
        QkvError: an odd number of parallel files.
    """
    options = options or Options()
    files: list[FileReport] = []
    faults: list[Fault] = []
    read: list[list[RowHashes]] = [[], []]
    for i, paths in enumerate((training, held)):
        apart = i == 1 and not any(about.kind == "parallel" for about in files)
        for unit in group_files([Path(p) for p in paths], options.kind, apart=apart):
            kind = detect_kind(unit, options.kind)
            abouts = [FileReport(path, kind) for path in unit]
            for about in abouts:
                faults += survey(about, options)
            files += abouts
            if all(about.lines > about.empty for about in abouts):
                read[i].append(read_contents(unit, abouts, faults, options))
    overlaps = [o for one in read[0] for other in read[1] for o in find_overlaps(one, other)]
    faults += [judge_overlap(o) for o in overlaps if o.count]
    return Report(tuple(files), tuple(faults), tuple(overlaps))


def detect_kind(unit: Sequence[Path], kind: Kind) -> str:
    """The kind of files, from their names and content if it is not given."""
    if len(unit) > 1:
        return "parallel"
    if kind != "auto":
        return kind
    try:
        return {"csv": "tsv", "parquet": "text"}.get(found := find_format(unit[0]), found)
    except QkvError:  # reported when it is surveyed
        return "text"


def group_files(paths: Sequence[Path], kind: Kind, *, apart: bool = False) -> list[tuple[Path, ...]]:
    """Files one by one, or in pairs if they are parallel; with `apart`, *.txt are not parallel."""
    two = len(paths) == 2 and all(detect_kind((p,), "auto") == "text" for p in paths) and not (
        apart and any(find_suffix(p) == ".txt" for p in paths))
    if kind == "parallel" or (kind == "auto" and two):
        if len(paths) % 2:
            raise QkvError("parallel files come in pairs, source then target; found {paths}: {paths2} has no partner",
                           paths=len(paths), paths2=paths[-1])
        return [(paths[i], paths[i + 1]) for i in range(0, len(paths), 2)]
    return [(path,) for path in paths]


def survey(about: FileReport, options: Options) -> Iterator[Fault]:
    """Fill in bytes and lines of a file and report what is odd about it; faults of rows are found later."""
    path, letters = about.path, Counter[str]()
    wide = bad = huge = returns = lost = 0
    first: dict[str, Line] = {}
    try:
        about.bytes = path.stat().st_size if path.exists() else 0
        with open_text(path) as file:
            if not (file.seekable() or path.is_file()):
                raise QkvError("{path}: is a pipe, and a check reads its file more than once; save it first", path=path)
            about.mark = file.tell() > 0
        for line in read_raw_lines(path):
            about.lines = line.number
            about.crlf += line.end == b"\r\n"
            returns += b"\r" in line.raw
            if line.size >= HUGE:
                huge += 1
                first.setdefault("huge", line)
            try:
                text = line.raw.decode("utf-8")
            except UnicodeDecodeError:
                bad += 1
                first.setdefault("bad", line)
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
        yield Fault(str(path), Trimmed(error.message, rf"^{re.escape(str(path))}(?:: |\uff1a)"))
        return
    about.characters, about.scripts = len(letters), count_scripts(letters)
    if about.lines == about.empty:
        yield Fault(str(path), Message("the file is empty, expected text"))
    if bad:
        yield Fault(f"{path}:{first['bad'].number}", describe_encoding(first["bad"].raw, bad, wide), bad)
    if huge:
        size = first["huge"].size
        text = Message("a line of {size:,} bytes; lines are rows: is this one file without line ends?", size=size)
        yield Fault(f"{path}:{first['huge'].number}", text, huge, broken=about.kind != "text")
    yield from find_oddities(about, returns, lost)


def find_oddities(about: FileReport, returns: int, lost: int) -> Iterator[Fault]:
    """What is worth knowing about a file that can be read all the same."""
    lf = about.lines - about.crlf if about.crlf < about.lines - 1 else 0
    mixed = Message(", {lf} end with LF", lf=lf) if lf else ""
    blank = about.empty if about.kind != "text" and about.lines > about.empty else 0
    notes = (
        (about.mark, Message("begins with a byte order mark, which is ignored")),
        (about.crlf, Message("{crlf} lines end with CRLF{mixed}; both are read alike", crlf=about.crlf, mixed=mixed)),
        (returns, Message("carriage returns within lines; old Mac files end their lines this way")),
        (lost, Message("lines contain U+FFFD: text lost in an earlier conversion")),
        (blank, Message("blank lines, which are not rows")),
    )
    yield from (Fault(str(about.path), text, int(count), broken=False) for count, text in notes if count)


def read_contents(unit: Sequence[Path], abouts: list[FileReport], faults: list[Fault], options: Options) -> RowHashes:
    """Read the rows, note what is wrong with them, and what repeats."""
    tally, hashes = FaultCounter(), RowHashes(" + ".join(map(str, unit)), abouts[0].kind)
    over = [0] * len(unit)
    at: tuple[int, str] = (0, "")
    try:
        for number, row in read_unit(unit, abouts[0].kind, options, tally):
            long = [options.measure(text) > options.longest for text in row]
            for i in range(len(unit)):
                over[i] += long[i] if len(unit) > 1 else any(long)
            if any(long) and not at[0]:
                at = (number, max(row, key=len))
            if abouts[0].kind == "tsv" and not hashes.lines and sources.is_header(row):
                faults.append(Fault(f"{unit[0]}:{number}", NAMED, 1, broken=False))
            hashes.add(number, row)
            if options.tell and number % 10_000 == 0:
                options.tell(unit[0], number)
    except QkvError as error:
        if hashes.lines or not tally.count:  # else the tally says it
            faults.append(Fault(str(unit[0]), error.message))
    faults += [f for f in tally.faults() if not any(f.place == old.place for old in faults)]
    repeats, line, twin = find_repeats(hashes)
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


def read_unit(unit: Sequence[Path], kind: str, options: Options, policy: BadRowPolicy) -> Iterator[tuple[int, Row]]:
    """The rows of files that belong together, with their lines."""
    if kind == "parallel":
        yield from sources.read_pair_rows(unit[0], unit[1], policy=policy)
    elif kind == "tsv":
        yield from sources.read_tsv_rows(unit[0], options.columns, policy=policy)
    elif kind == "jsonl":
        yield from sources.read_rows(unit[0], read_json_texts(options.keys, options.talk), policy=policy)
    else:
        yield from sources.read_rows(unit[0], lambda text, _: (text,), policy=policy)


def read_json_texts(keys: tuple[str, ...] = (), talk: ReadTalk | None = None) -> Callable[[str, str], Row]:
    """Reads a line of JSON into the texts of some keys, as training does; without keys the first line decides which.

    Of `messages` it makes one text, where `talk` reads them.
    """
    chosen = keys

    def read_row(text: str, place: str) -> Row:
        nonlocal chosen
        item = sources.parse_object(text, place)
        if talk and (chosen == ("messages",) or (not chosen and holds_conversations(item, ""))):
            chosen = ("messages",)
            return ("\n".join(f"{m['role']}: {m.get('content') or ''}" for m in talk(item, place)),)
        chosen = chosen or next((keys for keys in KEYS if all(k in item for k in keys)), ())
        if not chosen:
            raise QkvError("{place}: found the keys {found}; name those that hold text with --keys", place=place,
                           found=", ".join(item) or Message("none"))
        return sources.get_texts(item, chosen, place)

    return read_row


def find_leaks(training: Path, held: Path) -> tuple[str, ...]:
    """The note about a held-out text of which much also occurs in the training text; empty if little does."""
    one, two = (read_contents((path,), [FileReport(path, detect_kind((path,), "auto"))], [], Options(keys=("text",)))
                for path in (training, held))
    found = judge_overlap(next(find_overlaps(one, two)))
    said = Message("{place}: {text}: the evaluation looks too good", place=found.place, text=found.text)
    return (said,) if found.broken and found.count else ()
