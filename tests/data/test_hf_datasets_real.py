"""The `datasets` library itself: what it saved, its files on disk, streams, and its faults; without it these skip."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkv.data import hf_datasets
from qkv.errors import QkvError
from qkv.training import recipes
from qkv.training.data_files import Data

datasets: Any = pytest.importorskip("datasets", reason="the datasets library is not installed: pip install datasets")
ROWS = [{"translation": {"zh": f"书 {i}", "en": f"book {i}"}, "text": f"book {i} .", "n": i} for i in range(50)]
KEYS = ("translation.zh", "translation.en")


def read_texts(*given: Any, **how: Any) -> Iterator[tuple[str, ...]]:
    """The texts of rows, without their numbers."""
    return (row for _, row in hf_datasets.read_rows(*given, **how))


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's cache is read or written, and nothing is asked of a network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def test_what_it_saved_gives_pairs_and_text(tmp_path: Path) -> None:
    whole = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": whole, "validation": whole.select([1])}).save_to_disk(tmp_path / "both")
    whole.save_to_disk(tmp_path / "one")
    found = Data(dataset="both", keys=KEYS).splits(tmp_path)
    assert (len(found.train), found.train[3], found.valid) == (50, ("书 3", "book 3"), [("书 1", "book 1")])  # type: ignore[arg-type,index]
    alone = Data(dataset="one", keys=("text",)).splits(tmp_path)
    assert isinstance(alone.train, str)
    assert alone.train.startswith("book 0 .\n\nbook 1 .")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "a folder of parquet"])
def test_files_on_disk_give_the_same_rows(tmp_path: Path, kind: str) -> None:
    whole = datasets.Dataset.from_list([{"zh": f"书 {i}", "en": f"book {i}"} for i in range(50)])
    if kind == "jsonl":
        whole.to_json(tmp_path / "rows.jsonl", force_ascii=False)
    elif kind == "csv":
        whole.to_csv(tmp_path / "rows.csv")
    else:
        (tmp_path / "rows").mkdir()
        place = tmp_path / ("rows.parquet" if kind == "parquet" else "rows/train-00000-of-00001.parquet")
        whole.to_parquet(place)
    name = "rows" if kind == "a folder of parquet" else f"rows.{kind}"
    found = Data(dataset=name, keys=("zh", "en"), valid=5).splits(tmp_path)
    assert sorted([*found.train, *found.valid]) == sorted((f"书 {i}", f"book {i}") for i in range(50))  # type: ignore[misc]


def test_a_stream_gives_rows_one_after_another() -> None:
    stream = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
    assert list(read_texts(stream, KEYS))[49] == ("书 49", "book 49")
    drawn: list[int] = []

    def rows() -> Any:
        for row in ROWS:
            drawn.append(row["n"])  # type: ignore[arg-type]
            yield row

    lazy = read_texts(datasets.IterableDataset.from_generator(rows), KEYS)
    assert next(iter(lazy)) == ("书 0", "book 0")
    assert len(drawn) < 50


def test_its_faults_are_told_with_the_row_or_the_name(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    with pytest.raises(QkvError, match=r"one/train, row 0: no key 'translation\.eng'; did you mean 'en'"):
        Data(dataset="one", keys=("translation.zh", "translation.eng")).splits(tmp_path)
    with pytest.raises(QkvError, match=r"row 0: key 'n' holds int, expected a string"):
        Data(dataset="one", keys=("n",)).splits(tmp_path)
    with pytest.raises(QkvError, match=r"data\.dataset 'no/such-set'"):
        Data(dataset="no/such-set").splits(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(QkvError, match=r"broken\.parquet"):
        Data(dataset="broken.parquet").splits(tmp_path)


def test_a_run_learns_from_one(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "books")
    (tmp_path / "run.toml").write_text(
        f'[data]\ndataset = "books"\nkeys = {json.dumps(KEYS)}\n[tokenizer]\nkind = "char"\n', encoding="utf-8"
    )
    done = recipes.train(recipes.configure(tmp_path / "run.toml", smoke=True), device="cpu")
    assert done.outcome.steps == 6
