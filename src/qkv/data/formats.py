"""Which files words name, how each is written and in which encoding, and lines from all over one, in bounded memory.

Next: kind.py.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.data import hf_datasets
from qkv.data.sources import JSON, LABELLED
from qkv.data.text_files import find_suffix, open_text
from qkv.errors import QkvError
from qkv.messages import Message

STRETCHES = 64  # places of a larger file that are looked at
HEAD = 1 << 20  # bytes by which a text is told from columns
PLAIN = (".txt", ".text", ".md", ".rst")  # names of texts
SKIPPED = re.compile(r"^(\.|_)|^(readme|licen[cs]e|copying|changelog)\b", re.IGNORECASE)  # files of a folder


@dataclass(frozen=True)
class Sample:
    """Lines from all over a file, and how many it has: an estimate unless `whole`."""

    lines: list[str]
    count: int
    whole: bool


def list_files(words: Sequence[str]) -> tuple[list[Path], bool]:
    """The files that words name, those of folders and globs in order, and whether one of the words names many."""
    paths, many = list[Path](), False
    for word in map(str, words):
        path, found = Path(word), [Path(word)]
        if not path.exists() and any(sign in word for sign in "*?["):
            root = Path(path.anchor or ".")
            found, many = sorted(p for p in root.glob(str(path.relative_to(path.anchor))) if p.is_file()), True
        elif path.is_dir() and not any((path / file).is_file() for file in ("index.json", *hf_datasets.SAVED)):
            inside = sorted(p for p in path.rglob("*") if p.is_file() and not any(
                SKIPPED.search(part) for part in p.relative_to(path).parts))
            refuse_mixture(path, inside)
            if not any(p.suffix == ".parquet" for p in inside):  # those are a data set, in which each split has files
                found, many = inside, True
        if not found:
            raise QkvError("{word}: found no file of data", word=word)
        paths += found
    return paths, many


def refuse_mixture(folder: Path, files: Sequence[Path]) -> None:
    """QkvError for a folder whose files end differently, unless all of them may be texts."""
    ends = Counter(find_suffix(file) or Message("without suffix") for file in files)
    if len(ends) > 1 and ends.keys() - {*PLAIN}:
        found = ", ".join(f"{count} {end}" for end, count in ends.most_common(8))
        raise QkvError("{folder}: found files of different kinds ({found}), expected one kind; name those to read, as "
                       "in '{folder}/*{end}'", folder=folder, found=found, end=ends.most_common(1)[0][0])


def find_format(path: Path, objective: str = "") -> str:
    """How a file is written: "tsv", "csv", "jsonl", "parquet" or "text"; its name and its content say it."""
    suffix = find_suffix(path)
    named = {".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", **dict.fromkeys(JSON, "jsonl")}.get(suffix, "")
    if path.exists() and (named or not path.is_file()):
        return named or "text"
    with open_text(path) as file:
        lines = [line for line in decode_lines(path, file.read(HEAD).split(b"\n")) if line.strip()]
    if lines and sum(line.lstrip()[0] + line.rstrip()[-1] == "{}" for line in lines) > 0.8 * len(lines):
        return "jsonl"
    if suffix == ".json":
        raise QkvError("{path}: expected a list of objects, or an object a line (*.jsonl)", path=path)
    tabs = sum(line.startswith(LABELLED) or ("\t" in line and all(cell.strip() for cell in line.split("\t")[:2]))
               for line in lines)
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


def describe_encoding(raw: bytes, bad: int, wide: int) -> Message:
    """The message about `bad` lines that are not UTF-8, the first of them `raw`, beside `wide` lines beyond ASCII."""
    looks = guess_encoding(raw)
    if wide:
        return Message("mixed encodings: {wide} lines are UTF-8 beyond ASCII, and {bad} are not; the first of these "
                       "looks like {looks}", wide=wide, bad=bad, looks=looks or Message("no text"))
    if looks:
        how = f"iconv -f {looks} -t UTF-8"
        return Message("not UTF-8, looks like {looks}: {how}", looks=looks, how=how)
    return Message("neither UTF-8 nor text in another known encoding")


def guess_encoding(raw: bytes) -> str:
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


def count_scripts(letters: Counter[str]) -> dict[str, float]:
    """The share of each script among the letters, largest first."""
    found = Counter[str]()
    for letter, count in letters.items():
        if unicodedata.category(letter).startswith("L"):
            found[unicodedata.name(letter, "unknown").split(" ")[0].split("-")[0].capitalize()] += count
    total = found.total()
    return {("Han" if name == "Cjk" else name): round(count / total, 4) for name, count in found.most_common(8)}
