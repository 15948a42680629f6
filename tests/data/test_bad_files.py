"""Files that people train on, with what goes wrong in them: each fault is told by file and line, and nothing is lost.

A file of each kind, named in a TOML file as a user names it, has one fault in its third row.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from qkv.data import sources, text_files
from qkv.errors import QkvError
from qkv.training import recipes

TALK = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
KINDS: dict[str, tuple[str, str, list[str]]] = {  # what [data] says, the file that is spoilt, its good rows
    "parallel": ('source = "a.src"\ntarget = "a.tgt"', "a.tgt", [f"eins {i}" for i in range(12)]),
    "tsv": ('tsv = "a.tsv"', "a.tsv", [f"one {i}\teins {i}" for i in range(12)]),
    "jsonl": ('jsonl = "a.jsonl"', "a.jsonl", [json.dumps({"source": f"one {i}", "target": f"eins {i}"}) for i in
              range(12)]),
    "text": ('text = "a.txt"', "a.txt", [f"one line of text, number {i}" for i in range(12)]),
    "messages": ('messages = "m.jsonl"', "m.jsonl", [json.dumps(TALK | {"n": i}) for i in range(12)]),
}  # fmt: skip
ROWS = ("parallel", "tsv", "jsonl", "text", "messages")
WHOLE = [  # the whole file is something else
    (b"", "the file is empty, expected text"), (b"\n \n\t\n", "the file is empty, expected text"),
    (b"\xef\xbb\xbf", "the file is empty, expected text"),
    (gzip.compress(b"one\ttwo\n" * 50, mtime=0)[:30], "this compressed file is damaged or cut off"),
    (b"PK\x03\x04" + bytes(range(256)), "not a UTF-8 text file, found zip"),
    (bytes(range(8)) * 90, "not a UTF-8 text file, found binary data (90 NUL bytes in the first 720)"),
    ("one\ttwo\n".encode("utf-16"), "not a UTF-8 text file, found UTF-16; convert it: iconv -f UTF-16 -t UTF-8"),
]  # fmt: skip
BOTH = [  # a row of any kind
    ("für".encode("latin-1"), "invalid UTF-8: byte 0xfc at offset"),
    ("我爱".encode("gb18030"), "invalid UTF-8: byte 0xce at offset"),
    (b"a\0b", "a NUL byte (byte 2 of the line) in a text file"),
]
OWN: dict[str, list[tuple[bytes, str]]] = {
    "parallel": [(b"", "the target is empty beside"), (b" \t", "the target is empty beside")],
    "tsv": [(b"alone", "found 1 column(s), expected at least 2 with tabs between"), (b"\tx", "the column 1 is empty"),
            (b"x\t ", "the column 2 is empty")],
    "jsonl": [(b"{", "not JSON"), (b'["a", "b"]', "found a JSON list, expected an object"),
              (b'{"source": "x"}', "no key 'target' (found: source)"),
              (b'{"source": "x", "taget": "y"}', "no key 'target'; did you mean 'taget'?"),
              (b'{"source": "x", "target": 3}', "key 'target' holds int, expected a string"),
              (b'{"source": "x", "target": ""}', "the target is empty"), (b"[" * 100_000, "not JSON")],
    "text": [],
    "messages": [(b"{", "not JSON"), (b'{"messages": []}', ""), (b'{"messages": "hello"}', ""),
                 (b'{"mesages": []}', "no key 'messages'; did you mean 'mesages'?"),
                 (b'{"messages": [{"role": "user", "content": "x"}]}', "no message has the role 'assistant'"),
                 (b'{"messages": [{"role": "assistant"}]}', "message 1 of 1, of 'assistant', is empty"),
                 (b'{"messages": [{"role": "user", "content": " "}, {"role": "assistant", "content": "x"}]}',
                  "message 1 of 2, of 'user', is empty"),
                 (b'{"messages": [{"content": "x"}]}', "message 1 of 1: expected")],
}  # fmt: skip
CASES = [(kind, row, told) for kind in ROWS for row, told in (*BOTH, *OWN[kind])]


def data(folder: Path, kind: str, content: bytes, more: str = "") -> Any:
    """The run of a TOML file whose data are of a kind; only `content` is unlike the others."""
    said, name, _ = KINDS[kind]
    (folder / "a.src").write_text("".join(f"one {i}\n" for i in range(12)), encoding="utf-8")
    (folder / name).write_bytes(content)
    (folder / "a.toml").write_text(f"[data]\n{said}\nvalid = 2\n{more}\n", encoding="utf-8")
    return recipes.configure(folder / "a.toml").splits()


def spoilt(kind: str, row: bytes, at: int = 2, end: bytes = b"\n") -> bytes:
    rows = [good.encode() for good in KINDS[kind][2]]
    return end.join([*rows[:at], row, *rows[at + 1 :]]) + end


def kept(found: Any) -> int:
    both = found.train, found.valid
    return len("".join(both).splitlines()) if isinstance(found.train, str) else sum(map(len, both))


@pytest.mark.parametrize(("kind", "row", "told"), CASES, ids=[f"{k}-{i}" for i, (k, *_) in enumerate(CASES)])
def test_a_bad_row_is_named_by_line_and_left_out_only_when_asked(
    kind: str, row: bytes, told: str, tmp_path: Path
) -> None:
    name = KINDS[kind][1]
    with pytest.raises(QkvError, match=rf"{re.escape(name)}:3: .*{re.escape(told)}") as error:
        data(tmp_path, kind, spoilt(kind, row))
    assert len(str(error.value)) < 400
    with pytest.raises(QkvError, match=r":1: "):  # the first one is told
        data(tmp_path, kind, spoilt(kind, row, at=0))
    found = data(tmp_path, kind, spoilt(kind, row), 'on_bad_row = "quarantine"')
    assert kept(found) == 11
    assert any("1 bad row(s) left out, written to" in note and f"{name}:3: " in note for note in found.notes)
    aside = [json.loads(x) for x in (tmp_path / "quarantine.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {x["line"] for x in aside} == {3}
    assert name in {Path(x["file"]).name for x in aside}


@pytest.mark.parametrize(("content", "told"), WHOLE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_file_that_is_none_is_named_whatever_becomes_of_bad_rows(
    kind: str, content: bytes, told: str, policy: str, tmp_path: Path
) -> None:
    if kind == "parallel" and content.isspace():
        told = r":1: the target is empty" if policy == "error" else r"a\.tgt has 3, expected the same number"
        with pytest.raises(QkvError, match=told):
            data(tmp_path, kind, content, f'on_bad_row = "{policy}"')
        return
    with pytest.raises(QkvError, match=rf"{re.escape(KINDS[kind][1])}: {re.escape(told)}"):
        data(tmp_path, kind, content, f'on_bad_row = "{policy}"')


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_of_windows_and_a_mark_at_the_beginning_change_no_row(
    kind: str, mark: bytes, tmp_path: Path
) -> None:
    plain, other = (data(tmp_path, kind, first + b"".join(row.encode() + end for row in KINDS[kind][2]))
                    for first, end in ((b"", b"\n"), (mark, b"\r\n")))  # fmt: skip
    assert (plain.train, plain.valid) == (other.train, other.valid)
    assert kept(plain) == 12


@pytest.mark.parametrize("kind", ["parallel", "tsv", "jsonl", "messages"])
def test_a_huge_line_is_told_and_never_held(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST", 1000)
    with pytest.raises(QkvError, match=rf"{re.escape(KINDS[kind][1])}:3: one line of 50,000 bytes, expected a row"):
        data(tmp_path, kind, spoilt(kind, b"x" * 50_000))
    found = data(tmp_path, kind, spoilt(kind, b"x" * 50_000), 'on_bad_row = "quarantine"')
    assert kept(found) == 11
    aside = [json.loads(x) for x in (tmp_path / "quarantine.jsonl").read_text(encoding="utf-8").splitlines()]
    whole = next(x for x in aside if "bytes" in x)
    assert (whole["bytes"], len(whole["text"])) == (50_000, 1000)
    assert (tmp_path / KINDS[kind][1]).read_bytes()[whole["offset"] :].startswith(b"x" * 50_000 + b"\n")


@pytest.mark.parametrize("more", [1, -1])
def test_parallel_files_of_unequal_length_are_told_with_both_counts(more: int, tmp_path: Path) -> None:
    rows = KINDS["parallel"][2]
    rows = [*rows, "zu viel"] if more > 0 else rows[:-1]
    line = r"a\.tgt:13 is" if more > 0 else r"a\.src:12 is"
    with pytest.raises(QkvError, match=rf"a\.src has 12 lines and .*a\.tgt has {12 + more}.*{line} the first line"):
        data(tmp_path, "parallel", "".join(row + "\n" for row in rows).encode(), 'on_bad_row = "skip"')


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_a_bad_row_far_down_is_told_by_its_line(count: int, tmp_path: Path) -> None:
    good = KINDS["jsonl"][2][0].encode() + b"\n"
    with pytest.raises(QkvError, match=rf"a\.jsonl:{count}: not JSON"):
        data(tmp_path, "jsonl", good * (count - 1) + b"{oops\n" + good)


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "messages"])
def test_held_out_rows_in_training_are_told_with_both_lines(kind: str, tmp_path: Path) -> None:
    rows = [row.encode() + b"\n" for row in KINDS[kind][2]]
    name = KINDS[kind][1]
    ends = name.rpartition(".")[2]
    if kind == "messages":
        rows = [row.replace(b'"q"', b'"q%d"' % n) for n, row in enumerate(rows)]
    (tmp_path / f"v.{ends}").write_bytes(rows[7].replace(b"7", b"99") + rows[5])
    more, what = f'valid_file = "v.{ends}"', "conversation" if kind == "messages" else "pair"
    told = rf"{re.escape(name)}:6: this {what} is held out too \(.*v\.{ends}:2\); 1 training rows"
    with pytest.raises(QkvError, match=told):
        data(tmp_path, kind, b"".join(rows), more)
    found = data(tmp_path, kind, b"".join(rows), more + '\noverlap = "drop"')
    assert len(found.train) == 11
    assert "left out of training" in found.notes[0]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_held_out_text_that_stands_in_training_is_told_with_both_lines(name: str, tmp_path: Path) -> None:
    def put(file: str, lines: list[str]) -> None:
        rows = [json.dumps({"text": line}) for line in lines] if name.endswith("jsonl") else lines
        (tmp_path / file).write_text("".join(row + "\n" for row in rows), encoding="utf-8")

    lines = [f"a line of text that nobody writes twice, number {i}" for i in range(40)]
    ends = name.rpartition(".")[2]
    (tmp_path / "a.toml").write_text(f'[data]\ntext = "{name}"\nvalid_file = "v.{ends}"\n', encoding="utf-8")
    put(name, lines)
    put(f"v.{ends}", [f"{line}, or not" for line in lines[:20]])
    assert recipes.configure(tmp_path / "a.toml").splits().notes == ()
    put(f"v.{ends}", [f"{line}, or not" for line in lines[:10]] + lines[7:9])
    (note,) = recipes.configure(tmp_path / "a.toml").splits().notes
    assert re.search(rf"v\.{ends}:11: 2 of 12 held-out rows occur in training too, the first at .*a\.{ends}:8", note)


def test_a_fault_in_a_held_out_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "v.tsv").write_bytes(b"a\tb\nalone\n")
    with pytest.raises(QkvError, match=r"v\.tsv:2: found 1 column"):
        data(tmp_path, "tsv", spoilt("tsv", b"x\ty"), 'valid_file = "v.tsv"')
    (tmp_path / "v.tsv").write_bytes(b"")
    with pytest.raises(QkvError, match=r"v\.tsv: the file is empty"):
        data(tmp_path, "tsv", spoilt("tsv", b"x\ty"), 'valid_file = "v.tsv"')


def test_rows_that_would_be_taken_unread_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "refuse_blank", lambda row, *_: row)
    with pytest.raises(BaseException, match="DID NOT RAISE"):
        test_a_bad_row_is_named_by_line_and_left_out_only_when_asked(
            "tsv", b"x\t ", "the column 2 is empty", tmp_path
        )
