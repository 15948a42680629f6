"""Your own files with faults in them, trained on by a TOML file: told by line, left out, put aside, never twice."""

import json
from pathlib import Path

import pytest

from qkv.data.check import check
from qkv.errors import QkvError
from qkv.training import recipes
from qkv.training.data_files import Data
from qkv.training.splits import find_data_file

ROWS = [(f"one {i}", f"eins {i}") for i in range(40)]


def data(folder: Path, rows: list[tuple[str, str]] | None = None, **more: object) -> Data:
    rows = ROWS if rows is None else rows
    for side, name in enumerate(("a", "b")):
        (folder / name).write_text("".join(row[side] + "\n" for row in rows), encoding="utf-8")
    return Data(source="a", target="b", valid=5, **more)  # type: ignore[arg-type]


def held(folder: Path, rows: list[tuple[str, str]]) -> dict[str, str]:
    for side, name in enumerate(("va", "vb")):
        (folder / name).write_text("".join(row[side] + "\n" for row in rows), encoding="utf-8")
    return {"valid_source": "va", "valid_target": "vb"}


def test_a_zero_length_target_is_told_left_out_or_put_aside(tmp_path: Path) -> None:
    rows = [*ROWS[:7], ("nothing", ""), *ROWS[7:]]
    with pytest.raises(QkvError, match=r"b:8: the target is empty beside .*a:8"):
        data(tmp_path, rows).splits(tmp_path)
    found = data(tmp_path, rows, on_bad_row="skip").splits(tmp_path)
    assert sorted([*found.train, *found.valid]) == sorted(ROWS)
    assert "1 bad row(s) left out; the first:" in found.notes[0]
    found = data(tmp_path, rows, on_bad_row="quarantine", quarantine="q.jsonl").splits(tmp_path)
    assert str(tmp_path / "q.jsonl") in found.notes[0]
    kept = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(k["line"], k["text"]) for k in kept] == [(8, "nothing"), (8, "")]


def test_held_out_text_in_training_is_told_with_both_lines(tmp_path: Path) -> None:
    files = held(tmp_path, [("new", "neu"), ROWS[3], ROWS[5]])
    with pytest.raises(QkvError, match=r"a:4: this pair is held out too \(.*va:2\); 2 training rows are"):
        data(tmp_path, **files).splits(tmp_path)
    found = data(tmp_path, overlap="drop", **files).splits(tmp_path)
    assert len(found.train) == 38
    assert ROWS[3] not in found.train
    assert "2 training rows are; left out of training" in found.notes[0]
    found = data(tmp_path, overlap="keep", **files).splits(tmp_path)
    assert len(found.train) == 40
    assert "trained on anyway" in found.notes[0]


def test_a_first_row_that_names_the_columns_is_told(tmp_path: Path) -> None:
    rows = "".join(f"text {i}\t{'good' if i % 2 else 'bad'}\n" for i in range(20))
    for name, first in (("a.tsv", "\nText\tlabel\n"), ("b.tsv", ""), ("v.tsv", '"sentence"\tLabel \n')):
        (tmp_path / name).write_text(first + (rows if name != "v.tsv" else "new\tgood\n"), encoding="utf-8")
    first, second = Data(tsv=("a.tsv", "b.tsv"), valid_file="v.tsv").splits(tmp_path).notes
    assert "a.tsv:2: Text | label: looks like column names" in first
    assert "v.tsv:1:" in second
    assert "请删去这一行" in first.to("zh")
    assert Data(tsv="b.tsv").splits(tmp_path).notes == ()
    (tmp_path / "c.tsv").write_text("text 30\tclass\nlabel\tgood\n" + rows, encoding="utf-8")
    assert Data(tsv="c.tsv").splits(tmp_path).notes == ()
    said = [f for f in check([tmp_path / "a.tsv"]).faults if "column names" in f.text]
    assert [(f.place, f.broken) for f in said] == [(f"{tmp_path / 'a.tsv'}:2", False)]
    assert not [f for f in check([tmp_path / "b.tsv"]).faults if "names" in f.text]


def test_a_held_out_source_that_is_trained_on_with_another_target_is_told(tmp_path: Path) -> None:
    files = held(tmp_path, [("new", "neu"), (ROWS[3][0], "another"), (ROWS[5][0], "others"), ("old", ROWS[6][1])])
    (note,) = data(tmp_path, **files).splits(tmp_path).notes
    assert note.startswith("2 of 4 held-out pairs have a source that also occurs in training, with ")
    assert f"{ROWS[3][0]!r}: held out 'another', trained on {ROWS[3][1]!r}" in note
    assert "2 对的源文" in note.to("zh")
    (note,) = data(tmp_path, apart="target", **files).splits(tmp_path).notes
    assert note.startswith("1 of 4 held-out pairs have a target that also occurs in training")
    assert data(tmp_path).splits(tmp_path).notes == ()  # what the hash holds out shares no source
    alike = held(tmp_path, [("new", "neu"), ROWS[3]])
    (note,) = data(tmp_path, overlap="drop", **alike).splits(tmp_path).notes
    assert "left out of training" in note
    (note,) = data(tmp_path, overlap="keep", **alike).splits(tmp_path).notes
    assert "trained on anyway" in note


def test_a_run_tells_its_notes_and_keeps_them(tmp_path: Path) -> None:
    data(tmp_path, [*ROWS, ("x", "")])
    (tmp_path / "m.toml").write_text(
        '[data]\nsource = "a"\ntarget = "b"\nvalid = 5\non_bad_row = "quarantine"\n'
        "[model]\nwidth = 16\nlayers = 1\nheads = 2\nffn = 32\ncontext = 32\n"
        '[tokenizer]\nkind = "char"\n[training]\nsteps = 2\ntokens = 64\nprecision = "fp32"\nevaluate_every = 2\n'
        "average = 0\nepochs = 0\n",
        encoding="utf-8",
    )
    recipes.estimate(recipes.configure(tmp_path / "m.toml"), device="cpu")
    assert "bad row(s) left out; the first" in recipes.configure(tmp_path / "m.toml", smoke=True).splits().notes[0]
    assert not (tmp_path / "quarantine.jsonl").exists(), "a run that is only tried writes nothing"
    told: list[dict] = []
    recipes.train(tmp_path / "m.toml", out=tmp_path / "out", device="cpu", report=told.append)
    assert "1 bad row(s) left out" in told[0]["text"]
    said = json.loads((tmp_path / "out" / "train" / "run.json").read_text(encoding="utf-8"))
    assert said["notes"] == [told[0]["text"]]
    assert (tmp_path / "quarantine.jsonl").is_file()
    (tmp_path / "m.toml").write_text('[data]\ntext = "a"\non_bad_row = "skipp"\n', encoding="utf-8")
    with pytest.raises(QkvError, match=r"data\.on_bad_row: found 'skipp'.*did you mean 'skip'"):
        recipes.configure(tmp_path / "m.toml")


def test_recipes_find_what_was_fetched_and_say_how_to_fetch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    with pytest.raises(QkvError, match=r"no such file\. qkv data get tinyshakespeare fetches it; or set QKV_DATA"):
        find_data_file("lm", "tinyshakespeare", "input.txt")
    with pytest.raises(QkvError, match=r"no such file\. Set QKV_DATA"):
        find_data_file("lm", "other", "input.txt")
    path = tmp_path / "cache" / "data" / "lm" / "tinyshakespeare" / "input.txt"
    path.parent.mkdir(parents=True)
    path.write_text("x", encoding="utf-8")
    assert find_data_file("lm", "tinyshakespeare", "input.txt") == path


def test_rows_that_are_all_alike_leave_nothing_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("ein haus\ta house\n" * 20, encoding="utf-8")
    (tmp_path / "a.toml").write_text('[data]\ntsv = "a.tsv"\nvalid = 3\n', encoding="utf-8")
    with pytest.raises(QkvError, match=r"a\.tsv: no data to train on; rows with the same text are kept together"):
        recipes.train(tmp_path / "a.toml", device="cpu")
