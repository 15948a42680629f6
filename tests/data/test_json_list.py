"""A JSON list is read as lines are: any objects, however written and cut; what is broken is named by its number."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import json_list
from qkv.data.json_list import list_objects
from qkv.data.sources import parse_object, read_jsonl_rows, read_rows
from qkv.errors import QkvError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=8,
)


def read(data: bytes) -> list[bytes]:
    return io.BufferedReader(list_objects(Path("rows.json"), io.BytesIO(data))).read().split(b"\n")[:-1]


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), max_size=8), st.sampled_from([None, 0, 3]),
       st.booleans(), st.integers(1, 60))
def test_each_object_is_a_line(rows: list[dict[str, Any]], indent: int | None, escaped: bool, piece: int) -> None:
    text = json.dumps(rows, indent=indent, ensure_ascii=escaped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_list, "PIECE", piece)
        assert [json.loads(line) for line in read(text.encode("utf-8"))] == rows
        returns = text.replace("\n", "\r\n").encode("utf-8")
        assert [json.loads(line) for line in read(b"\xef\xbb\xbf" + returns)] == rows


@pytest.mark.parametrize(("text", "told"), [
    ('[{"a": 1}, {"a": }]', "element 2 of the list is not JSON"),
    ('[{"a": 1}, {"a": 2}', "element 3 of the list is not JSON, or the file is cut off: the list has no ]"),
    ('[{"a": 1}, {"a": "x', "element 2 .* cut off"),
    ('[{"a": 1}] {"a": 2}', "more follows behind the list"),
    ("[" + '{"a":' * 100_000, "element 1 of the list"),
])  # fmt: skip
def test_what_is_broken_is_named(text: str, told: str) -> None:
    with pytest.raises(QkvError, match=f"rows.json: .*{told}"):
        read(text.encode())


def test_an_object_beyond_the_bound_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_list, "PIECE", 100)
    monkeypatch.setattr(json_list, "LONGEST", 1000)
    file = io.BytesIO(b'[{"a": "' + b"x" * 1_000_000)
    reader = io.BufferedReader(list_objects(Path("rows.json"), file))
    with pytest.raises(QkvError, match="element 1"):
        reader.read()
    assert file.tell() < 100_000


def test_a_list_in_a_file_is_read_as_lines_are(tmp_path: Path) -> None:
    rows = [{"source": f"一 {i}", "target": "two\nlines"} for i in range(300)]
    listed, packed = tmp_path / "rows.json", tmp_path / "rows.json.gz"
    listed.write_text(json.dumps(rows, indent=2, ensure_ascii=False), encoding="utf-8")
    packed.write_bytes(gzip.compress(listed.read_bytes()))
    for path in (listed, packed):
        assert [row for _, row in read_jsonl_rows(path)] == [(r["source"], r["target"]) for r in rows]
    listed.write_text(json.dumps([*rows[:2], {"source": "x"}]), encoding="utf-8")
    with pytest.raises(QkvError, match=r"rows\.json:3: no key 'target'"):
        [*read_jsonl_rows(listed)]
    listed.write_bytes(b'[{"source": "\xff"}]')
    with pytest.raises(QkvError, match=r"rows\.json:1: invalid UTF-8: byte 0xff"):
        [*read_rows(listed, parse_object)]
