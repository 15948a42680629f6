"""Files as people have them: line ends, marks, and every fault told by file and line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.sources import document, jsonl, lines, pairs, tsv
from qkv.errors import QkvError


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


LINES = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff")), max_size=6)


@given(rows=LINES, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), mark=st.booleans())
@settings(max_examples=60, deadline=None)
def test_lines_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], end: str, last: bool, mark: bool
) -> None:
    rows = [*rows, "x"]  # a file is never empty here
    text = ("\ufeff" if mark else "") + end.join(rows) + (end if last else "")
    assert lines(put(tmp_path_factory.mktemp("a"), "f", text)) == rows


def test_separators_of_unicode_do_not_end_a_line(tmp_path: Path) -> None:
    assert lines(put(tmp_path, "f", "a\u2028b\x0cc\x85d\n\ne\n")) == ["a\u2028b\x0cc\x85d", "", "e"]


def test_pairs(tmp_path: Path) -> None:
    zh, en = put(tmp_path, "a.zh", "我\r\n你\r\n"), put(tmp_path, "a.en", "I\nyou")
    assert pairs(zh, en) == [("我", "I"), ("你", "you")]


@pytest.mark.parametrize(("left", "right", "longer"), [("1\n2\n3\n", "1\n", "a"), ("1\n", "1\n2\n3\n", "b")])
def test_unequal_files_name_both_counts_and_the_first_lonely_line(
    tmp_path: Path, left: str, right: str, longer: str
) -> None:
    a, b = put(tmp_path, "a", left), put(tmp_path, "b", right)
    with pytest.raises(
        QkvError, match=rf"a has {left.count(chr(10))} lines.*b has {right.count(chr(10))}.*{longer}:2 is the first"
    ):
        pairs(a, b)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_names_line_and_byte(tmp_path: Path, mark: bytes) -> None:
    path = put(tmp_path, "f.txt", mark + "gut\n日\n".encode() + b"ab\xff\n")
    with pytest.raises(
        QkvError, match=rf"f\.txt:3: invalid UTF-8: byte 0xff at offset {len(mark) + 10} \(byte 3 of the line\)"
    ):
        lines(path)


@pytest.mark.parametrize("content", ["", "\n", "\ufeff", " \n\n"])
def test_an_empty_file_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(QkvError, match=r"f\.txt: the file is empty"):
        document(put(tmp_path, "f.txt", content))


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    put(tmp_path, "train.en", "a")
    with pytest.raises(QkvError, match=r"trian\.en: no such file.*did you mean 'train\.en'"):
        lines(tmp_path / "trian.en")
    with pytest.raises(QkvError, match="nor is there a folder"):
        lines(tmp_path / "no" / "train.en")
    with pytest.raises(QkvError, match="is a directory"):
        lines(tmp_path)


def test_tsv(tmp_path: Path) -> None:
    path = put(tmp_path, "f.tsv", "0\t1\t2\n\na\tb\tc\n")
    assert tsv(path, (2, 0)) == [("2", "0"), ("c", "a")]
    with pytest.raises(QkvError, match=r"f\.tsv:1: found 3 column\(s\), expected at least 4"):
        tsv(path, (0, 3))


@pytest.mark.parametrize(
    ("line", "told"),
    [("{", "not JSON"), ("[]", "found a JSON list"), ('{"source": "a", "targt": "b"}', "no key 'target'; did.*'targt'"),
     ('{"source": 1, "target": "b"}', "'source' holds int")],
)  # fmt: skip
def test_jsonl(tmp_path: Path, line: str, told: str) -> None:
    good = '{"source": "我", "target": "I", "more": 1}\n'
    assert jsonl(put(tmp_path, "f", good * 2)) == [("我", "I")] * 2
    with pytest.raises(QkvError, match=f"f:2: .*{told}"):
        jsonl(put(tmp_path, "f", good + line))
