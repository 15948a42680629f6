"""Files as people have them: line ends, marks, and every fault told by file and line."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qkv.data import sources
from qkv.data.bad_rows import BadRowPolicy, dry_run
from qkv.data.check import Options, check
from qkv.data.labelled_rows import read_labelled_rows
from qkv.data.sources import read_document, read_lines, read_tsv_rows
from qkv.data.text_files import detect_format
from qkv.errors import QkvError


def read_pairs(*args: Any, **options: Any) -> list[tuple[str, ...]]:
    return [row for _, row in sources.read_pair_rows(*args, **options)]


def read_tsv(*args: Any, **options: Any) -> list[tuple[str, ...]]:
    return [row for _, row in sources.read_tsv_rows(*args, **options)]


def read_jsonl(*args: Any, **options: Any) -> list[tuple[str, ...]]:
    return [row for _, row in sources.read_jsonl_rows(*args, **options)]


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


LINES = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff\0")), max_size=6)


@given(rows=LINES, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), mark=st.booleans())
@settings(max_examples=60, deadline=None)
def test_lines_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], end: str, last: bool, mark: bool
) -> None:
    rows = [*rows, "x"]  # a file is never empty here
    text = ("\ufeff" if mark else "") + end.join(rows) + (end if last else "")
    assert read_lines(put(tmp_path_factory.mktemp("a"), "f", text)) == rows


def test_separators_of_unicode_do_not_end_a_line(tmp_path: Path) -> None:
    assert read_lines(put(tmp_path, "f", "a\u2028b\x0cc\x85d\n\ne\n")) == ["a\u2028b\x0cc\x85d", "", "e"]


def test_pairs(tmp_path: Path) -> None:
    zh, en = put(tmp_path, "a.zh", "我\r\n你\r\n"), put(tmp_path, "a.en", "I\nyou")
    assert read_pairs(zh, en) == [("我", "I"), ("你", "you")]


@pytest.mark.parametrize(("left", "right", "longer"), [("1\n2\n3\n", "1\n", "a"), ("1\n", "1\n2\n3\n", "b")])
def test_unequal_files_name_both_counts_and_the_first_lonely_line(
    tmp_path: Path, left: str, right: str, longer: str
) -> None:
    a, b = put(tmp_path, "a", left), put(tmp_path, "b", right)
    with pytest.raises(
        QkvError, match=rf"a has {left.count(chr(10))} lines.*b has {right.count(chr(10))}.*{longer}:2 is the first"
    ):
        read_pairs(a, b)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_names_line_and_byte(tmp_path: Path, mark: bytes) -> None:
    path = put(tmp_path, "f.txt", mark + "gut\n日\n".encode() + b"ab\xff\n")
    with pytest.raises(
        QkvError, match=rf"f\.txt:3: invalid UTF-8: byte 0xff at offset {len(mark) + 10} \(byte 3 of the line\)"
    ):
        read_lines(path)


@pytest.mark.parametrize("content", ["", "\n", "\ufeff", " \n\n"])
def test_an_empty_file_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(QkvError, match=r"f\.txt: the file is empty"):
        read_document(put(tmp_path, "f.txt", content))


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    put(tmp_path, "train.en", "a")
    with pytest.raises(QkvError, match=r"trian\.en: no such file.*did you mean 'train\.en'"):
        read_lines(tmp_path / "trian.en")
    with pytest.raises(QkvError, match="nor is there a folder"):
        read_lines(tmp_path / "no" / "train.en")
    with pytest.raises(QkvError, match="is a directory"):
        read_lines(tmp_path)


def test_tsv(tmp_path: Path) -> None:
    path = put(tmp_path, "f.tsv", "0\t1\t2\n\na\tb\tc\n")
    assert read_tsv(path, (2, 0)) == [("2", "0"), ("c", "a")]
    with pytest.raises(QkvError, match=r"f\.tsv:1: found 3 column\(s\), expected at least 4"):
        read_tsv(path, (0, 3))


@pytest.mark.parametrize(
    ("line", "told"),
    [("{", "not JSON"), ("[]", "found a JSON list"), ('{"source": "a", "targt": "b"}', "no key 'target'; did.*'targt'"),
     ('{"source": 1, "target": "b"}', "'source' holds int")],
)  # fmt: skip
def test_jsonl(tmp_path: Path, line: str, told: str) -> None:
    good = '{"source": "我", "target": "I", "more": 1}\n'
    assert read_jsonl(put(tmp_path, "f", good * 2)) == [("我", "I")] * 2
    with pytest.raises(QkvError, match=f"f:2: .*{told}"):
        read_jsonl(put(tmp_path, "f", good + line))


def test_a_label_may_be_a_number_or_a_truth_and_nothing_else_may(tmp_path: Path) -> None:
    labelled = put(tmp_path, "f", '{"text": "a", "label": 1}\n{"text": "b", "label": "1"}\n')
    assert read_jsonl(labelled, ("text", "label")) == [("a", "1"), ("b", "1")]
    truths = put(tmp_path, "f", '{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    assert read_jsonl(truths, ("text", "label")) == [("a", "true"), ("b", "false")]
    for value in ("[1]", "1.5", "null"):
        with pytest.raises(QkvError, match="f:1: key 'label' holds"):
            read_jsonl(put(tmp_path, "f", f'{{"text": "a", "label": {value}}}'), ("text", "label"))


def test_a_key_may_lie_within_another(tmp_path: Path) -> None:
    inner = put(tmp_path, "f", '{"say": {"zh": "我", "en": "I"}, "a.b": "x"}\n')
    assert read_jsonl(inner, ("say.zh", "say.en")) == [("我", "I")]
    assert read_jsonl(inner, ("a.b", "say.en")) == [("x", "I")]
    with pytest.raises(QkvError, match=r"f:1: no key 'say.zhh'; did you mean 'zh'\? \(found: zh, en\)"):
        read_jsonl(inner, ("say.zhh", "say.en"))


BAD = "a\tA\nno tab\nb\tB\n\tempty\nc\tC\n"


def test_bad_rows_are_an_error_or_left_out_or_put_aside(tmp_path: Path) -> None:
    path, aside = put(tmp_path, "f.tsv", BAD.encode() + b"\xff\tx\n"), tmp_path / "q" / "bad.jsonl"
    with pytest.raises(QkvError, match=r"f\.tsv:2: found 1 column"):
        read_tsv(path)
    with BadRowPolicy("skip") as policy:
        assert read_tsv(path, policy=policy) == [("a", "A"), ("b", "B"), ("c", "C")]
    assert policy.dropped == {str(path): 3}
    assert "3 bad row(s) left out; the first:" in policy.notes[0]
    with BadRowPolicy("quarantine", aside) as policy:
        assert len(read_tsv(path, policy=policy)) == 3
        assert not aside.exists(), "it appears whole, when all is read"
    rows = [json.loads(line) for line in aside.read_text(encoding="utf-8").splitlines()]
    assert [(r["line"], r["file"]) for r in rows] == [(2, str(path)), (4, str(path)), (6, str(path))]
    assert [r["text"] for r in rows][:2] == ["no tab", "\tempty"]
    assert base64.b64decode(rows[2]["base64"]) == b"\xff\tx"
    assert "column 1 is empty" in rows[1]["why"]
    assert [p.name for p in aside.parent.iterdir()] == ["bad.jsonl"]


def test_a_quarantine_stays_where_reading_ends_early_or_is_only_tried(tmp_path: Path) -> None:
    path, aside = put(tmp_path, "f.tsv", BAD), tmp_path / "bad.jsonl"
    with BadRowPolicy("quarantine", aside) as policy:
        assert len(read_tsv(path, policy=policy)) == 3
    whole = aside.read_bytes()

    def stopped() -> None:
        with BadRowPolicy("quarantine", aside) as policy:
            found = read_tsv_rows(path, policy=policy)
            assert [next(found)[0], next(found)[0]] == [1, 3], "a bad line lies between"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert aside.read_bytes() == whole
    aside.unlink()
    with dry_run(), BadRowPolicy("quarantine", aside) as policy:
        assert len(read_tsv(path, policy=policy)) == 3
    assert policy.notes[0].startswith("2 bad row(s) left out; the first:")
    assert [p.name for p in tmp_path.iterdir()] == ["f.tsv"]


def test_a_bad_line_takes_its_partner_along_and_the_others_stay_together(tmp_path: Path) -> None:
    zh, en = put(tmp_path, "a.zh", "我\n\n他\n她\n".encode()), put(tmp_path, "a.en", b"I\nyou\n\xffhe\nshe\n")
    with pytest.raises(QkvError, match=r"a\.zh:2: the source is empty beside .*a\.en:2"):
        read_pairs(zh, en)
    aside = tmp_path / "bad.jsonl"
    with BadRowPolicy("quarantine", aside) as policy:
        assert read_pairs(zh, en, policy=policy) == [("我", "I"), ("她", "she")]
    rows = [json.loads(line) for line in aside.read_text(encoding="utf-8").splitlines()]
    assert [(Path(r["file"]).name, r["line"]) for r in rows] == [("a.zh", 2), ("a.en", 2), ("a.zh", 3), ("a.en", 3)]


def test_unequal_files_are_an_error_whatever_the_sieve_says(tmp_path: Path) -> None:
    a, b = put(tmp_path, "a", "1\n2\n"), put(tmp_path, "b", "1\n")
    with pytest.raises(QkvError, match="without a partner"):
        read_pairs(a, b, policy=BadRowPolicy("skip"))


def test_a_file_without_a_good_row_and_an_unknown_policy_are_errors(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"all 2 rows are bad; the first: .*f\.tsv:1"):
        read_tsv(put(tmp_path, "f.tsv", "a\nb\n"), policy=BadRowPolicy("skip"))
    with pytest.raises(QkvError, match="did you mean 'skip'"):
        BadRowPolicy("skp")  # type: ignore[arg-type]
    with pytest.raises(QkvError, match="needs a file"):
        BadRowPolicy("quarantine")


def test_a_text_loses_its_bad_lines_only_where_a_sieve_says_so(tmp_path: Path) -> None:
    path = put(tmp_path, "f.txt", b"one\r\ntw\xff\nthree\nfo\0ur\nfive")
    with pytest.raises(QkvError, match=r"f\.txt:2: invalid UTF-8"):
        read_document(path)
    with BadRowPolicy("skip") as policy:
        assert read_document(path, policy=policy) == "one\nthree\nfive"
    assert policy.dropped == {str(path): 2}


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"PK\x03\x04\xff\xfe", "zip"), ("ab\n".encode("utf-16"), "iconv -f UTF-16"),
     (b"\0" * 50, "binary"), (b"\x7fELF\x02\0\0\0\0\0", "a program")],
)  # fmt: skip
def test_a_file_that_is_no_text_is_named(tmp_path: Path, content: bytes, kind: str) -> None:
    for read in (read_document, read_lines, read_tsv):
        with pytest.raises(QkvError, match=rf"f\.txt: not a UTF-8 text file, found .*{kind}"):
            read(put(tmp_path, "f.txt", content))


def test_text_that_begins_like_a_format_is_text(tmp_path: Path) -> None:
    assert read_document(put(tmp_path, "f.txt", "%PDF is a format\n")) == "%PDF is a format\n"
    assert read_document(put(tmp_path, "f.txt", "日" * 5000)).startswith("日")  # the head ends within a character


def test_a_compressed_file_is_no_pipe_to_a_check(tmp_path: Path) -> None:
    path = put(tmp_path, "f.tsv.gz", gzip.compress(b"one\ttwo\nthree\tfour\n"))
    report = check([path], (), Options())
    assert [file.lines for file in report.files] == [2]
    assert not report.faults


def test_a_line_of_fasttext_is_a_label_and_a_text(tmp_path: Path) -> None:
    path = put(tmp_path, "f.txt", "__label__a one\ttwo\n__label__b\tthree\nfour\t__label__c\n")
    assert read_tsv(path) == [("a", "one\ttwo"), ("b", "three"), ("four", "__label__c")]
    with pytest.raises(QkvError, match=r"f\.txt:2: found several labels"):
        read_tsv(put(tmp_path, "f.txt", "__label__a one\n__label__a __label__b two\n"))


LABELS = ("no", "yes")


def test_labels_by_name_or_number(tmp_path: Path) -> None:
    path = put(tmp_path, "f.tsv", "a\tb\tyes\nc\t0\n\nd\tno\nyes\tno\n")
    found = [(1, ("a\tb", "yes")), (2, ("c", "no")), (4, ("d", "no")), (5, ("yes", "no"))]
    assert list(read_labelled_rows(path, LABELS)) == found
    rows = [{"label": 1, "text": "a"}, {"label": "no", "text": "b"}]
    path = put(tmp_path, "f.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    assert [row for _, row in read_labelled_rows(path, LABELS)] == [("a", "yes"), ("b", "no")]


@pytest.mark.parametrize(
    ("line", "told"),
    [("a\t2", "label 2 is out of range: the 2 labels are 0 to 1"), ("a\t-1", "label -1 is out of range"),
     ("a\tyse", "unknown label 'yse'; did you mean 'yes'"), ("a yes", "no tab"), (" \tyes", "the text is empty"),
     ("a\t", "the label is empty"), ("a\t²", "unknown label"),
     ("no\ta", "the label 'no' comes before its text; put it after the text, as training reads it: text TAB label"),
     ("1\ta\tb", "the label '1' comes before its text")],
)  # fmt: skip
def test_a_label_that_is_none_is_told_by_file_and_line(tmp_path: Path, line: str, told: str) -> None:
    path = put(tmp_path, "f.tsv", f"good\tyes\n{line}\n")
    with pytest.raises(QkvError, match=rf"f\.tsv:2: .*{re.escape(told)}"):
        list(read_labelled_rows(path, LABELS))


ANY = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b""))


@given(rows=st.lists(ANY, min_size=1, max_size=8))
@settings(max_examples=80, deadline=None)
def test_nothing_is_lost_between_good_rows_and_quarantine(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("q")
    path, aside = put(folder, "f.tsv", b"one\ttwo\n" + b"".join(row + b"\n" for row in rows)), folder / "bad.jsonl"
    assume(not detect_format(path.read_bytes()))
    with BadRowPolicy("quarantine", aside) as policy:
        good = [number for number, _ in read_tsv_rows(path, policy=policy)]
    kept = [json.loads(line) for line in aside.read_text(encoding="utf-8").splitlines()] if aside.exists() else []
    for row in kept:
        raw = base64.b64decode(row["base64"]) if "base64" in row else row["text"].encode()
        assert raw == rows[row["line"] - 2].removesuffix(b"\r")
    blank = [n for n, row in enumerate(rows, 2) if not row.decode("utf-8", "replace").strip()]
    assert sorted([*good, *(row["line"] for row in kept), *blank]) == list(range(1, len(rows) + 2))


@pytest.mark.parametrize("text", ["a\tb\rc\td\r", "a b c\rd e f"])
def test_lines_that_end_with_a_carriage_return_alone_are_told(tmp_path: Path, text: str) -> None:
    path = put(tmp_path, "f.tsv", text)
    for read in (read_tsv, read_document, read_jsonl):
        with pytest.raises(QkvError, match=r"f\.tsv: 2 lines that end with only a carriage return"):
            read(path)
    assert read_document(put(tmp_path, "g", "a\rb\nc\r\n")) == "a\rb\nc\n"
