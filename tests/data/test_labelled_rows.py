"""Labelled rows in every form that training reads are found by the labels that a model knows."""

import json
from pathlib import Path

import pytest

from qkv.data.labelled_rows import read_labelled_rows
from qkv.errors import QkvError

LABELS = ("neg", "pos")
ROWS = [(f"{a} text, number {i}", LABELS[i % 2]) for i, a in enumerate(("A", "The", "One", "Some", "Any", "No"))]
JSON_ROWS = [{"id": i, "said": text, "mood": label} for i, (text, label) in enumerate(ROWS)]
WHEN = [f"20{10 + i}-0{1 + i}-1{i} 1{i}:30:00 +08 00" for i in range(6)]  # longer than the texts, and no text
FORMS = {
    "dated.tsv": "".join(f"{at}\t{text}\t{label}\n" for at, (text, label) in zip(WHEN, ROWS, strict=True)),
    "dated.csv": "at,said,mood\n" + "".join(f'{at},"{text}",{b}\n' for at, (text, b) in zip(WHEN, ROWS, strict=True)),
    "last.tsv": "".join(f"{text}\t{label}\n" for text, label in ROWS),
    "first.txt": "".join(f"{label}\t{text}\n" for text, label in ROWS),
    "middle.tsv": "id\tlabel\ttext\n" + "".join(f"{i}\t{label}\t{text}\n" for i, (text, label) in enumerate(ROWS)),
    "numbers.tsv": "".join(f"{text}\t{LABELS.index(label)}\n" for text, label in ROWS),
    "rows.csv": "id,mood,said\n" + "".join(f'{i},{label},"{text}"\n' for i, (text, label) in enumerate(ROWS)),
    "bare.csv": "".join(f'"{text}",{label}\n' for text, label in ROWS),
    "half.csv": "text;label\n" + "".join(f'"{text}";{label}\n' for text, label in ROWS),
    "rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in JSON_ROWS),
    "fold.jsonl": "".join(f"{json.dumps({'text': text, 'label': b, 'fold': 1 - i % 2})}\n"
                          for i, (text, b) in enumerate(ROWS)),
    "rows.json": json.dumps(JSON_ROWS),
    "deep.jsonl": "".join(f"{json.dumps({'data': {'text': text}, 'label': LABELS.index(b)})}\n" for text, b in ROWS),
    "fasttext.txt": "".join(f"__label__{label} {text}\n" for text, label in ROWS),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_texts_and_labels(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FORMS[name], encoding="utf-8")
    assert [row for _, row in read_labelled_rows(path, LABELS)] == ROWS


def test_parquet_and_folders_are_read_too(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(JSON_ROWS), tmp_path / "rows.parquet")
    assert [row for _, row in read_labelled_rows(tmp_path / "rows.parquet", LABELS)] == ROWS
    for n, (text, label) in enumerate(ROWS):
        (tmp_path / "folder" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / label / f"{n}.txt").write_text(text, encoding="utf-8")
    assert sorted(row for _, row in read_labelled_rows(tmp_path / "folder", LABELS)) == sorted(ROWS)


@pytest.mark.parametrize(("name", "text", "told"), [
    ("a.csv", "said,mood\nfine,pos\nbad,ngeative\n", r"a\.csv:3: unknown label 'ngeative'; did you mean 'neg"),
    ("a.jsonl", '{"said": "x", "mood": "pos"}\n{"said": "x"}\n', r"a\.jsonl:2: no key 'mood'"),
    ("b.jsonl", '{"said": "x", "mood": "good"}\n', r"b\.jsonl:1: no key 'text'"),
    ("a.tsv", "fine\tpos\n\tneg\n", r"a\.tsv:2: the text is empty"),
])  # fmt: skip
def test_a_bad_row_is_named(name: str, text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(QkvError, match=told):
        [*read_labelled_rows(tmp_path / name, ("negative", "neg", "pos"))]


def test_two_texts_are_joined_for_a_model_that_judges_both(tmp_path: Path) -> None:
    rows = [{"label": LABELS[i % 2], "premise": f"{a} was seen by all", "hypothesis": f"{a} was never seen"}
            for i, a in enumerate(("apple", "bear", "cloud", "dog", "eagle", "fish"))]  # fmt: skip
    both = [(f"{row['premise']}\t{row['hypothesis']}", row["label"]) for row in rows]
    (tmp_path / "two.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    bare = "".join("\t".join(row.values()) + "\n" for row in rows)
    (tmp_path / "two.tsv").write_text("\t".join(rows[0]) + "\n" + bare)
    (tmp_path / "bare.tsv").write_text(bare)
    for name in ("two.jsonl", "two.tsv", "bare.tsv"):
        assert [row for _, row in read_labelled_rows(tmp_path / name, LABELS, texts="two")] == both
        found = [row for _, row in read_labelled_rows(tmp_path / name, LABELS)]
        assert [text.count("\t") for text, _ in found] == [0] * len(rows)


def test_two_texts_are_joined_however_short_the_second_is(tmp_path: Path) -> None:
    rows = [("red blue green", "red", LABELS[0]), ("blue black", "red", LABELS[1])] * 3
    (tmp_path / "short.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    found = [row for _, row in read_labelled_rows(tmp_path / "short.tsv", LABELS, texts="two")]
    assert found == [(f"{a}\t{b}", label) for a, b, label in rows]
