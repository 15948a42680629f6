"""The report on training data: a table of broken files, each told by file and line, and what is only worth knowing."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qkv.data import check as checks
from qkv.data import overlap, sources, text_files
from qkv.data.bad_rows import BadRowPolicy
from qkv.data.check import Options, check
from qkv.data.text_files import read_raw_lines
from qkv.errors import QkvError


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def said(report: checks.Report) -> list[str]:
    return [f"{f.place}: {f.text}" for f in report.faults]


GOOD = '{"source": "我", "target": "I"}\n'
BROKEN = [
    ("empty.txt", b"", "empty.txt: the file is empty"),
    ("blank.txt", b"\n \n\n", "blank.txt: the file is empty"),
    ("zip.txt", b"PK\x03\x04" + bytes(range(256)), "zip.txt: not a UTF-8 text file, found zip"),
    ("gz.txt", gzip.compress(b"hello " * 99, mtime=0)[:20], "gz.txt: this compressed file is damaged or cut off"),
    ("nul.txt", b"\0\1\2\3" * 100, "nul.txt: not a UTF-8 text file, found binary data"),
    ("utf16.txt", "one\ntwo\n".encode("utf-16"), "utf16.txt: not a UTF-8 text file, found UTF-16"),
    ("utf16le.txt", "one two three\n".encode("utf-16-le"), "utf16le.txt: not a UTF-8 text file, found UTF-16"),
    ("gbk.txt", "我爱学习\n你好\n".encode("gb18030"), "gbk.txt:1: not UTF-8, looks like GB18030"),
    ("latin.txt", "a\nfür\n".encode("latin-1"), "latin.txt:2: not UTF-8, looks like CP1252"),
    ("mixed.txt", "für\n".encode() + "für\n".encode("latin-1"), "mixed.txt:2: mixed encodings: 1 lines are UTF-8"),
    ("one-nul.txt", b"a\nb\0c\n", "one-nul.txt:2: a NUL byte (byte 2 of the line)"),
    ("a.tsv", b"a\tb\nc\n", "a.tsv:2: found 1 column(s), expected at least 2"),
    ("b.tsv", b"a\tb\n\tc\n", "b.tsv:2: the column 1 is empty"),
    ("a.jsonl", GOOD.encode() + b"{oops\n", "a.jsonl:2: not JSON"),
    ("b.jsonl", GOOD.encode() + b"[1]\n", "b.jsonl:2: found a JSON list"),
    ("c.jsonl", GOOD.encode() + b'{"source": "x"}\n', "c.jsonl:2: no key 'target' (found: source)"),
    ("f.jsonl", GOOD.encode() + b'{"source": "x", "target": 3}\n', "f.jsonl:2: key 'target' holds int, expected a str"),
    ("d.jsonl", GOOD.encode() + b'{"source": "x", "target": ""}\n', "d.jsonl:2: the target is empty"),
    ("e.jsonl", b'{"a": 1}\n', "e.jsonl:1: found the keys a; name those that hold text with --keys"),
    ("cr.txt", b"a\rb\rc", "cr.txt: 3 lines that end with only a carriage return; convert them to line feeds"),
    ("huge.tsv", b"a\tb\n" + b"c" * checks.HUGE + b"\td\n", "huge.tsv:2: a line of 1,048,578 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "told"), BROKEN, ids=[b[0] for b in BROKEN])
def test_what_is_broken_is_told_by_file_and_line(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    report = check([put(tmp_path, name, content)])
    assert not report.ok
    assert any(told in text.replace(f"{tmp_path}/", "") for text in said(report)), said(report)


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    report = check([tmp_path / "no.txt", tmp_path])
    assert [f.broken for f in report.faults] == [True, True]
    assert "no such file" in said(report)[0]
    assert "is a directory" in said(report)[1]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xef\xbb\xbfa\nb\n", "begins with a byte order mark"), (b"a\r\nb\r\n", "2 lines end with CRLF;"),
        (b"a\r\nb\nc\n", "1 lines end with CRLF, 2 end with LF"), (b"a\rb\nc\n", "carriage returns within lines"),
        (b"a\nb\na\n", "f.txt:3: duplicate rows; the first repeats line 1"), ("a\ufffd\n".encode(), "U+FFFD"),
        (b"a\n" + b"x" * 30 + b"\n", "f.txt:2: rows longer than 20; the first has 30"),
        (b"x" * checks.HUGE, "is this one file without line ends?"),
    ],
)  # fmt: skip
def test_what_is_worth_knowing_breaks_nothing(tmp_path: Path, content: bytes, told: str) -> None:
    report = check([put(tmp_path, "f.txt", content)], options=Options(longest=20))
    assert report.ok
    assert any(told in text for text in said(report)), said(report)


def test_numbers_of_a_file(tmp_path: Path) -> None:
    path = put(tmp_path, "f.txt", "\ufeffab\r\n\r\n我爱\r\nab\r\n" + "long line\r\n")
    (a,) = check([path], options=Options(longest=5)).files
    assert (a.lines, a.rows, a.empty, a.crlf, a.mark, a.duplicates, a.over_long) == (5, 4, 1, 5, True, 1, 1)
    assert (a.longest, a.longest_line, a.bad) == (9, 5, 0)
    assert a.scripts == {"Latin": round(12 / 14, 4), "Han": round(2 / 14, 4)}


def test_parallel_files_are_rows_together(tmp_path: Path) -> None:
    zh, en = put(tmp_path, "t.zh", "我\n你\n\n他\n"), put(tmp_path, "t.en", "I\n\n\nhe\n")
    report = check([zh, en])
    assert [a.kind for a in report.files] == ["parallel"] * 2
    assert [(a.rows, a.bad) for a in report.files] == [(2, 1)] * 2
    assert any(f"{en}:2: the target is empty beside {zh}:2" in text for text in said(report))
    short = put(tmp_path, "s.en", "I\nyou\n")
    report = check([zh, short], options=Options(kind="parallel"))
    assert any(f"has 4 lines and {short} has 2" in text and f"{zh}:3 is the first" in text for text in said(report))
    plain = [put(tmp_path, "source", "我\n你\n"), put(tmp_path, "target", "I\n")]  # as `qkv train` takes them
    assert any("has 2 lines and" in text for text in said(check(plain)))
    texts = [put(tmp_path, "a.txt", "a\n"), put(tmp_path, "b.txt", "b\n")]
    assert [a.kind for a in check(texts, texts).files] == ["parallel"] * 4
    assert [a.kind for a in check(texts, texts, Options(kind="text")).files] == ["text"] * 4
    assert [a.kind for a in check(texts[:1], texts).files] == ["text"] * 3  # valid_file and test_file of a text
    with pytest.raises(QkvError, match="come in pairs"):
        check([zh, en, short], options=Options(kind="parallel"))


def test_json_lines_that_training_reads_are_good_rows(tmp_path: Path) -> None:
    labels = put(tmp_path, "l.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": 0}\n')
    inner = put(tmp_path, "t.jsonl", '{"translation": {"en": "I", "fr": "je"}}\n{"translation": {"en": "you"}}\n')
    assert check([labels]).ok
    assert [row for _, row in sources.read_jsonl_rows(labels, ("text", "label"))] == [("a", "true"), ("b", "0")]
    report = check([inner], options=Options(keys=("translation.en", "translation.fr")))
    assert [(a.rows, a.bad) for a in report.files] == [(1, 1)]
    assert f"{inner}:2: no key 'translation.fr' (found: en)" in said(report)


def test_held_out_rows_in_training_are_found_with_both_lines(tmp_path: Path) -> None:
    train = put(tmp_path, "t.tsv", "a\tA\nb\tB\nc\tC\n")
    held = put(tmp_path, "v.tsv", "x\tX\n c \tC\nb\tY\n")
    report = check([train], [held])
    assert not report.ok
    assert {(o.part, o.count) for o in report.overlaps} == {("rows", 1), ("column 1", 2), ("column 2", 1)}
    fault = next(f for f in report.faults if f.broken)
    assert fault.place == f"{held}:2"
    assert f"{train}:3" in fault.text
    assert check([train], [put(tmp_path, "w.tsv", "b\tY\n")]).ok, "one side alone is worth knowing only"


def test_short_lines_of_plain_text_may_be_shared(tmp_path: Path) -> None:
    long = "this is a line that nobody writes twice by chance\n"
    train = put(tmp_path, "t.txt", "ROMEO:\n" + long)
    assert check([train], [put(tmp_path, "v.txt", "ROMEO:\n" + "something else that is long enough\n")]).ok
    assert not check([train], [put(tmp_path, "w.txt", "ROMEO:\n" + long)]).ok


def test_a_bad_row_far_down_is_found_in_the_memory_of_few_rows(tmp_path: Path) -> None:
    count = 100_000
    path = put(tmp_path, "f.jsonl", GOOD * (count - 1) + "{oops\n" + GOOD)
    tracemalloc.start()
    report = check([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"{path}:{count}: not JSON" in said(report)[0]
    assert peak < 8e6 < path.stat().st_size * 4, "the file must not lie in memory row by row"


def test_a_line_without_end_is_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST", 1000)
    path = put(tmp_path, "f.tsv", b"a\tb\n" + b"x" * 5000 + b"\nc\td\n")
    lines = list(read_raw_lines(path))
    assert [(x.number, x.size, len(x.raw)) for x in lines] == [(1, 3, 3), (2, 5000, 1000), (3, 3, 3)]
    with pytest.raises(QkvError, match=r"f\.tsv:2: one line of 5,000 bytes"):
        list(sources.read_tsv_rows(path))
    assert [row for _, row in sources.read_tsv_rows(path, policy=BadRowPolicy("skip"))] == [("a", "b"), ("c", "d")]


def test_the_length_may_be_that_of_a_tokenizer(tmp_path: Path) -> None:
    path = put(tmp_path, "f.txt", "a b c d\nabcdefg\n")
    (about,) = check([path], options=Options(longest=3, measure=lambda text: len(text.split()))).files
    assert about.over_long == 1


KINDS = st.sampled_from(["tsv", "jsonl", "parallel"])
SIDE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="\ufeff"), min_size=1, max_size=4)


@given(rows=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=12), kind=KINDS)
@settings(max_examples=40, deadline=None)
def test_good_rows_are_counted_and_repeated_ones_found(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], kind: str
) -> None:
    folder = tmp_path_factory.mktemp("r")
    if kind == "parallel":
        paths = [put(folder, f"a.{x}", "".join(r[i] + "\n" for r in rows)) for i, x in enumerate(("xx", "yy"))]
    elif kind == "tsv":
        paths = [put(folder, "a.tsv", "".join("\t".join(r) + "\n" for r in rows))]
    else:
        lines = [json.dumps({"source": a, "target": b}, ensure_ascii=False) + "\n" for a, b in rows]
        paths = [put(folder, "a.jsonl", "".join(lines))]
    report = check(paths, paths)
    stripped = [tuple(x.strip() for x in row) for row in rows]
    assert all((a.rows, a.duplicates) == (len(rows), len(rows) - len(set(stripped))) for a in report.files)
    assert next(o for o in report.overlaps if o.part == "rows").count == len(rows)


@given(data=st.binary(max_size=300), name=st.sampled_from(["f.txt", "f.tsv", "f.jsonl"]))
@example(data=b"\x1c", name="f.txt")
@example(data="\u3000\n".encode(), name="f.txt")
@settings(max_examples=80, deadline=None)
def test_no_bytes_at_all_make_it_fall_over(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    path = put(tmp_path_factory.mktemp("b"), name, data)
    report = check([path], [path])
    assert report.files[0].rows + report.files[0].bad + report.files[0].empty >= report.files[0].lines
    assert report.ok or any(f.broken for f in report.faults)


def test_a_check_that_forgot_repeats_would_be_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(100))
    monkeypatch.setattr(overlap, "hash_text", lambda text: next(numbers))
    with pytest.raises(AssertionError):
        test_what_is_worth_knowing_breaks_nothing(tmp_path, b"a\nb\na\n", "duplicate rows")
