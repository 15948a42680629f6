"""Bad data that are too large to be held in memory: each fault is named by its file and line, nothing half is kept."""

import json
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qkv.data import kind, text_files
from qkv.data.cache import encoded_dir
from qkv.data.kind import find_kind
from qkv.data.mapped_rows import MappedRows
from qkv.errors import QkvError
from qkv.training import assemble, large_text, recipes
from qkv.training.data_files import Data

SMALL = ["model.width=16", "model.layers=1", "model.heads=2", "model.ffn=32", "model.context=32", "training.tokens=128",
         "training.steps=2", "tokenizer.kind=char", "tokenizer.size=200"]  # fmt: skip
TALK = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
ROWS = 3000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything of more than some kilobytes is large."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(large_text, "LARGE", 2000)
    monkeypatch.setattr("qkv.data.mapped_rows.HEAVY", 5000)
    monkeypatch.setattr("qkv.data.mapped_rows.CHUNK", 500)
    monkeypatch.setattr(kind, "LIMIT", 1 << 14)
    return tmp_path


def write_rows(name: str, count: int = ROWS) -> list[str]:
    """A file of pairs, labels or chats by its name; its lines."""
    rows = {
        "pairs.tsv": [f"one {i} of many\teins {i}" for i in range(count)],
        "labels.tsv": [f"text {i} is {('bad', 'good')[i % 2]}\t{'好评' if i % 2 else '差评'}" for i in range(count)],
        "chat.jsonl": [json.dumps(TALK | {"n": i}) for i in range(count)],
        "book.txt": [f"line {i} of a long book" for i in range(count)],
    }[name]
    Path(name).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return rows


def list_kept() -> list[Path]:
    """What there is in the cache, but for locks."""
    return [path for path in encoded_dir().iterdir() if path.suffix != ".lock"] if encoded_dir().exists() else []


@pytest.mark.parametrize(("name", "bad", "told"), [
    ("pairs.tsv", b"alone", "found 1 column"), ("pairs.tsv", b"f\xfcr\tx", "invalid UTF-8: byte 0xfc"),
    ("labels.tsv", b"a text\t ", "the column 2 is empty"), ("chat.jsonl", b'{"messages": []}', "messages"),
    ("chat.jsonl", b"{oops", "not JSON"), ("book.txt", b"f\xfcr", "invalid UTF-8: byte 0xfc"),
])  # fmt: skip
def test_a_bad_line_in_the_middle_is_named_by_its_number(name: str, bad: bytes, told: str) -> None:
    lines = [row.encode() for row in write_rows(name)]
    lines[1700] = bad
    Path(name).write_bytes(b"\n".join(lines))
    with pytest.raises(QkvError, match=rf"{name}:1701: .*{told}"):
        assemble.assemble(recipes.configure(name, SMALL))
    assert list_kept() == []


def test_of_several_files_the_one_in_another_encoding_is_named(folder: Path) -> None:
    for name in ("labels.tsv", "book.txt"):
        text = "\n".join(f"第{row}行" for row in write_rows(name, 300))
        Path("d").mkdir(exist_ok=True)
        for file in (folder / "d").iterdir():
            file.unlink()
        ends = name.partition(".")[2]
        Path(f"d/a.{ends}").write_text(text, encoding="utf-8")
        Path(f"d/b.{ends}").write_bytes(text.encode("gb18030"))
        with pytest.raises(QkvError, match=rf"b\.{ends}:?.*(GB18030|invalid UTF-8)"):
            assemble.assemble(recipes.configure("d", SMALL))


@pytest.mark.parametrize("name", ["pairs.tsv", "chat.jsonl"])
def test_rows_that_change_while_they_are_read_are_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, read = write_rows(name), text_files.decode_line

    def append(path: Path, line: text_files.Line) -> str:
        if line.number == 2000:
            with path.open("a", encoding="utf-8") as file:
                file.write(rows[0][:9])  # whoever writes it is not at the end of its line
        return read(path, line)

    monkeypatch.setattr("qkv.data.sources.decode_line", append)
    data = Data(tsv=(name,)) if name.endswith("tsv") else Data(messages=(name,))
    with pytest.raises(QkvError, match=rf"{name}(: the file changed while it was read|:3001: )"):
        data.splits(Path())
    Path(name).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    monkeypatch.setattr("qkv.data.sources.decode_line", lambda path, line: (path.touch(), read(path, line))[1])
    with pytest.raises(QkvError, match="the file changed while it was read"):
        data.splits(Path())


CHILD = """
    import resource, signal, sys
    from qkv.data import mapped_rows
    from qkv.errors import QkvError

    mapped_rows.HEAVY, mapped_rows.CHUNK = 1000, 50
    spooled, limit = sys.argv[1] == "encode", int(sys.argv[2])
    rows = ((f"row {i}" * 3, "x" * 9) for i in range(2000))
    found = mapped_rows.collect_rows(rows) if spooled else None
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    encode = lambda some: [[list(side.encode()) for side in row] for row in some]
    try:
        found = found or mapped_rows.collect_rows(rows)
        ids = mapped_rows.encode_rows(found, encode, sides=2, vocabulary=256, maker="bytes")
        print(len(ids), ids.sha256)
    except QkvError as error:
        print(error)
"""


def start_child(what: str, limit: int) -> "subprocess.Popen[str]":
    code = textwrap.dedent(CHILD)
    return subprocess.Popen([sys.executable, "-c", code, what, str(limit)], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_disk_that_fills_leaves_nothing_and_two_runs_make_one_entry() -> None:
    full = [start_child(what, 20_000) for what in ("spool", "encode")]
    told = [child.communicate(timeout=120)[0] for child in full]
    assert "the rows cannot be written there" in told[0]
    assert "could not be written" in told[1]
    assert list_kept() == []
    both = [start_child("encode", 10**9) for _ in range(2)]
    one, two = (child.communicate(timeout=120)[0] for child in both)
    assert one == two
    assert one.startswith("2000 ")
    (entry,) = list_kept()
    assert {path.name for path in entry.iterdir()} == {"index.json", "tokens.bin", "ends.bin"}


def test_a_label_that_only_one_row_has_is_noted_at_any_size() -> None:
    rows = [*write_rows("labels.tsv"), "a text of its own\t中评"]
    Path("labels.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    assert find_kind(["labels.tsv"], {}).notes == ()  # of a large file some rows are looked at
    a = assemble.assemble(recipes.configure("labels.tsv", SMALL))
    assert isinstance(a.splits.train, MappedRows)
    assert [note for note in a.plan.notes if "1 labels stand in only one row each ('中评')" in note]


def test_ten_thousand_labels_are_asked_about_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"a longer text of number {i} here\tclass{i % 10_000}" for i in range(60_000)]
    random.Random(0).shuffle(rows)
    Path("many.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    monkeypatch.setattr(kind, "LIMIT", 1 << 21)  # a part in which a label comes again
    with pytest.raises(QkvError, match=r"are these labels\?.*(?s:.)*objective=labels.*(?s:.)*objective=pairs"):
        find_kind(["many.tsv"], {})


@pytest.mark.parametrize(("name", "text", "told"), [
    ("few.tsv", "a\tb\nc\td\n", r"few\.tsv: 2 rows are too few to hold some out .*data\.valid_file=FILE"),
    ("short.txt", "a", r"short\.txt: 1 characters are too few to hold some out"),
    ("chat.jsonl", json.dumps(TALK) + "\n", r"chat\.jsonl: 1 rows are too few to hold some out"),
])  # fmt: skip
def test_data_that_leave_nothing_to_validate_say_what_to_do(name: str, text: str, told: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(QkvError, match=told):
        assemble.assemble(recipes.configure(name, [word for word in SMALL if "tokenizer" not in word]))


def test_a_validation_file_without_a_row_is_named() -> None:
    write_rows("pairs.tsv")
    Path("empty.tsv").write_text("\n\n", encoding="utf-8")
    with pytest.raises(QkvError, match=r"empty\.tsv: the file is empty"):
        recipes.configure("pairs.tsv", ["data.valid_file=empty.tsv"])


def test_parquet_without_text_lists_its_columns(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist([{"a": i, "b": i / 2} for i in range(9)]), tmp_path / "n.parquet")
    with pytest.raises(QkvError, match=r"n\.parquet: no column holds text \(found: a, b\)"):
        find_kind(["n.parquet"], {})


@pytest.mark.parametrize(("names", "told"), [
    (["pairs.tsv", "book.txt"], r"found files of different kinds \(1 \.t\w\w, 1 \.t\w\w\)"),
    (["labels.tsv", "chat.jsonl"], r"found files of different kinds \(1 \.\w+, 1 \.\w+\)"),
])  # fmt: skip
def test_a_folder_of_large_files_of_several_kinds_is_refused(names: list[str], told: str) -> None:
    Path("mixed").mkdir()
    for name in names:
        write_rows(name)
        Path(name).rename(f"mixed/{name}")
    with pytest.raises(QkvError, match=told):
        find_kind(["mixed"], {})
