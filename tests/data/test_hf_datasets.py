"""A stand-in for the `datasets` library: its rows become pairs and texts, its faults are told by row."""

import dataclasses
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkv.data import hf_datasets
from qkv.data.bad_rows import BadRowPolicy
from qkv.errors import QkvError
from qkv.training.data_files import Data

ROWS = [{"translation": {"zh": f"书{i}", "en": f"book {i}"}, "text": f"book {i} ."} for i in range(50)]


def read_texts(*given: Any, **how: Any) -> Iterator[tuple[str, ...]]:
    """The texts of rows, without their numbers."""
    return (row for _, row in hf_datasets.read_rows(*given, **how))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the stand-in was asked for."""
    asked: list[Any] = []

    def load_dataset(path: str, config: str | None) -> Any:
        asked.append((path, config))
        if path == "nowhere":
            raise FileNotFoundError("no such dataset")
        return {"train": ROWS, "validation": [{"translation": {"zh": "茶", "en": "tea"}, "text": "tea ."}]}

    def load_from_disk(path: str) -> Any:
        asked.append(path)
        return ROWS

    made = types.SimpleNamespace(load_dataset=load_dataset, load_from_disk=load_from_disk)
    monkeypatch.setitem(sys.modules, "datasets", made)  # type: ignore[arg-type]
    return asked


def test_two_keys_give_pairs_and_one_gives_text(library: list[Any], tmp_path: Path) -> None:
    found = Data(dataset="opus:en-zh", keys=("translation.zh", "translation.en")).splits(tmp_path)
    assert isinstance(found.train, list)
    assert (found.kind, found.train[3], found.valid) == ("pairs", ("书3", "book 3"), [("茶", "tea")])
    assert library == [("opus", "en-zh")]
    text = Data(dataset="opus", keys=("text",)).splits(tmp_path)
    assert (text.kind, text.valid) == ("plain text", "tea .")
    assert isinstance(text.train, str)
    assert text.train.startswith("book 0 .\n\nbook 1 .\n\n")


def test_a_saved_one_without_validation_is_split(library: list[Any], tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").touch()
    found = Data(dataset="saved", keys=("translation.zh", "translation.en"), valid=5).splits(tmp_path)
    assert library == [str(tmp_path / "saved")]
    assert isinstance(found.train, list)
    assert isinstance(found.valid, list)
    assert (len(found.train), len(found.valid)) == (45, 5)
    assert not set(found.train) & set(found.valid)


def test_held_out_rows_in_training_are_told_by_row(library: list[Any], tmp_path: Path) -> None:
    pairs = [{"q": f"q {i}", "a": f"a {i}"} for i in range(20)]
    splits = {"train": [{"q": "no answer", "a": ""}, *pairs], "validation": [{"q": "q 30", "a": "a 30"}],
              "test": [pairs[7], pairs[4], {"q": "q 9", "a": "another"}]}  # fmt: skip
    sys.modules["datasets"].load_dataset = lambda *_: splits  # type: ignore[attr-defined]
    data = Data(dataset="d", keys=("q", "a"), on_bad_row="skip")
    told = r"d/train, row 5: this pair is held out too \(d/test, row 1\); 2 training rows are"
    with pytest.raises(QkvError, match=rf"{told}: the evaluation would look too good"):
        data.splits(tmp_path)
    found = dataclasses.replace(data, overlap="drop").splits(tmp_path)
    assert (len(found.train), found.valid, len(found.test)) == (18, [("q 30", "a 30")], 3)  # type: ignore[arg-type]
    assert re.search(rf"{told}; left out of training", found.notes[1])
    assert found.notes[2].startswith("1 of 4 held-out pairs have a source that also occurs in training")
    assert len(dataclasses.replace(data, overlap="keep").splits(tmp_path).train) == 20  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (Data(dataset="x", valid_file="v.tsv"), "data.valid_file: found 'v.tsv', which is not used with dataset"),
        (Data(dataset="x", test_source="a", test_target="b"), "data.test_source: .*: a data set has splits of its own"),
        (Data(text="a.txt", valid_source="v"), "data.valid_source: .* used with text; .*, or name valid_file"),
        (Data(shards=("s",), test_target="v"), "data.test_target: .* not used with shards"),
        (Data(messages="m.jsonl", test_source="v"), "data.test_source: .* not used with messages; .* name test_file"),
    ],
)
def test_held_out_files_that_nobody_would_read_are_refused(data: Data, told: str, tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=told):
        data.splits(tmp_path)


def test_faults_are_told_by_row() -> None:
    rows: list[Any] = [{"a": "x"}, {"b": "y"}, {"a": 3}, {"a": " "}]
    for keys, said in (
        (("a",), r"dataset, row 1: no key 'a'.*found: b"),
        (("a.c",), "dataset, row 0: no key 'a.c'"),
    ):
        with pytest.raises(QkvError, match=said):
            list(read_texts(rows, keys))
    policy = BadRowPolicy("skip")
    assert list(read_texts(rows, ("a",), policy=policy)) == [("x",)]
    assert policy.dropped == {"dataset": 3}


def test_bad_rows_are_put_aside_with_their_numbers(tmp_path: Path) -> None:
    rows: list[Any] = [{"a": "x"}, {"a": ["日", "\ud800"]}, {"b": {"c": b"y"}}]
    aside = tmp_path / "q.jsonl"
    aside.touch()  # an empty file is nobody's work
    for _ in range(2):  # and a second run finds a quarantine that is known as one
        with BadRowPolicy("quarantine", aside) as policy:
            assert list(read_texts(rows, ("a",), name="d/train", policy=policy)) == [("x",)]
        first, second = (json.loads(line) for line in aside.read_text(encoding="utf-8").splitlines())
        assert (first["file"], first["line"], first["text"]) == ("d/train", 1, '{"a": ["日", "\\ud800"]}')
        assert "d/train, row 1: key 'a' holds list" in first["why"]
        assert (second["line"], second["text"]) == (2, '{"b": {"c": "b\'y\'"}}')


def test_a_label_may_be_a_number() -> None:
    rows: list[Any] = [{"said": "x", "of": {"label": 1}, "label": 0}]
    assert list(read_texts(rows, ("said", "label"))) == [("x", "0")]
    assert list(read_texts(rows, ("said", "of.label"))) == [("x", "1")]


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, library: list[Any]) -> None:
    with pytest.raises(QkvError, match="'nowhere': FileNotFoundError: no such dataset"):
        hf_datasets.open_dataset("nowhere")
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with pytest.raises(QkvError, match="pip install datasets"):
        hf_datasets.open_dataset("opus")


def test_four_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="found 4 keys, expected two"):
        Data(dataset="x", keys=("a", "b", "c", "d")).splits(tmp_path)


def test_a_class_is_called_by_its_name() -> None:
    class Table(list[Any]):
        features = types.MappingProxyType({"label": types.SimpleNamespace(names=["neg", "pos"]), "said": "text"})

    rows = Table([{"said": "x", "label": 1}, {"said": "y", "label": 0}, {"said": "z", "label": -1}])
    policy = BadRowPolicy("skip")
    assert list(read_texts(rows, ("said", "label"), policy=policy)) == [("x", "pos"), ("y", "neg")]
    assert policy.dropped == {"dataset": 1}


def test_the_library_itself_opens_what_it_saved(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets", reason="the library is no part of qkv: pip install datasets")
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n', encoding="utf-8")
    made = datasets.load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), split="train",
                                 cache_dir=str(tmp_path / "cache"))  # fmt: skip
    made = made.cast_column("label", datasets.ClassLabel(names=["neg", "pos"]))
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(str(tmp_path / "saved"))
    made.to_parquet(str(tmp_path / "rows.parquet"))
    for place in ("saved", "rows.parquet"):
        found = hf_datasets.open_dataset(str(tmp_path / place))
        assert list(read_texts(found["train"], ("text", "label"))) == [("a", "pos"), ("b", "neg")]
    assert sorted(hf_datasets.open_dataset(str(tmp_path / "saved"))) == ["test", "train"]
