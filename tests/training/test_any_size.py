"""Data that are not held in memory: large texts and many rows give the batches that small ones give."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv import cost
from qkv.data import hf_datasets, shards
from qkv.data.bad_rows import BadRowPolicy
from qkv.data.cache import hear_progress, list_entries
from qkv.data.mapped_rows import MappedRows, spool_rows
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.training import assemble, large_text, recipes
from qkv.training.assemble import Assembly
from qkv.training.data_files import Data
from qkv.training.large_text import LargeText, scan_text
from qkv.training.machine import count_weights
from qkv.training.objectives.base import tokenizer_for
from qkv.training.run import Run
from qkv.training.shape import Shape

SMALL = ["model.width=16", "model.layers=1", "model.heads=2", "model.ffn=64", "model.context=32", "training.tokens=128",
         "training.precision=fp32", "training.steps=2", "training.evaluate_every=2", "check.sentences=1"]  # fmt: skip
POLICY = BadRowPolicy()
WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "雨", "fell"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything of more than some bytes or rows is large."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(large_text, "LARGE", 2000)
    monkeypatch.setattr(large_text, "BLOCK", 300)
    monkeypatch.setattr(large_text, "BATCH", 900)
    monkeypatch.setattr("qkv.data.mapped_rows.CHUNK", 32)
    return tmp_path


def write_text(path: Path, lines: int = 300) -> str:
    rows = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(3, 9)) for i in range(lines)]
    text = "\n".join(row + ("\n" if i % 5 == 4 else "") for i, row in enumerate(rows)) + "\n"
    path.write_text(text, encoding="utf-8")
    return text


def open_run(file: str, *words: str) -> Assembly:
    return assemble.assemble(recipes.configure(file, [*SMALL, *words]))


def join_ids(mixture: Any) -> list[int]:
    return [int(i) for shard in mixture.shards for i in shard.ids]


def test_a_large_text_has_the_ids_of_the_whole(folder: Path) -> None:
    text = write_text(folder / "book.txt")
    a = open_run("book.txt", "tokenizer.kind=char", "tokenizer.size=100")
    train, valid = a.splits.train, a.splits.valid
    assert isinstance(train, Mixture)
    expected = tokenizer_for(a.model).encode(text, special=False)
    assert join_ids(train) + join_ids(valid) == expected
    assert abs(len(valid) - len(expected) / 10) < 2
    assert any("drawn evenly" in str(note) for note in a.plan.notes)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_documents_of_a_large_text_end_where_blank_lines_are(folder: Path, end: str) -> None:
    text = write_text(folder / "book.txt")
    (folder / "book.txt").write_bytes(text.replace("\n", end).encode())
    a = open_run("book.txt", "objective=documents", "tokenizer.kind=char", "tokenizer.size=100")
    tokenizer = tokenizer_for(a.model)
    parts = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
    expected = [i for part in parts for i in (*tokenizer.encode(part, special=False), tokenizer.eos_id)]
    assert join_ids(a.splits.train) + join_ids(a.splits.valid) == expected


def test_json_lines_read_as_their_texts(folder: Path) -> None:
    texts = [f"line {i} 雨 {'cat ' * (i % 9)}" for i in range(200)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "book.jsonl").write_text(rows, encoding="utf-8")
    a = open_run("book.jsonl", "tokenizer.kind=char", "tokenizer.size=100")
    whole = tokenizer_for(a.model).encode("".join(f"{text}\n\n" for text in texts), special=False)
    assert join_ids(a.splits.train) + join_ids(a.splits.valid) == whole


def test_a_small_file_that_holds_much_is_large(folder: Path) -> None:
    (folder / "bomb.txt.gz").write_bytes(gzip.compress(b"a" * 100_000, mtime=0))
    assert (folder / "bomb.txt.gz").stat().st_size < large_text.LARGE
    assert isinstance(open_run("bomb.txt.gz", "tokenizer.size=300").splits.train, Mixture)


def test_one_long_line_is_read_in_blocks(folder: Path) -> None:
    text = "雨" * 3000
    (folder / "line.txt").write_text(text, encoding="utf-8")
    blocks = [block for block, _ in large_text.read_blocks(scan_text(folder / "line.txt"), POLICY)]
    assert "".join(blocks) == text
    assert max(map(len, blocks)) < 300


def test_a_bad_line_in_the_middle_is_named(folder: Path) -> None:
    lines = write_text(folder / "book.txt").encode().split(b"\n")
    lines[200] = b"caf\xe9"
    (folder / "book.txt").write_bytes(b"\n".join(lines))
    with pytest.raises(QkvError, match=r"book\.txt:201: .*0xe9"):
        open_run("book.txt")
    assert not [path for path in (folder / "cache" / "encoded").iterdir() if path.is_dir()]
    a = open_run("book.txt", "data.on_bad_row=quarantine", f"data.quarantine={folder / 'bad.jsonl'}")
    assert any("1 bad row" in str(note) for note in a.splits.notes)
    assert json.loads((folder / "bad.jsonl").read_text())["line"] == 201
    (folder / "bad.jsonl").unlink()
    open_run("book.txt", "data.on_bad_row=quarantine", f"data.quarantine={folder / 'bad.jsonl'}")
    assert (folder / "bad.jsonl").exists()  # also where the ids were in the cache


def test_a_file_that_changes_while_it_is_read_is_an_error(folder: Path) -> None:
    text = write_text(folder / "book.txt")
    run = recipes.configure("book.txt", SMALL)
    (folder / "book.txt").write_text(text + "one more line\n", encoding="utf-8")
    with pytest.raises(QkvError, match="changed while it was read"):
        assemble.assemble(run)
    assert not [path for path in (folder / "cache" / "encoded").iterdir() if path.is_dir()]


def test_a_second_run_uses_what_the_first_encoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(folder / "book.txt")
    first = open_run("book.txt")
    monkeypatch.setattr(large_text, "encode_blocks", None)
    assert open_run("book.txt").plan.identity == first.plan.identity


def test_the_sample_is_even_and_leaves_out_what_is_held_out(folder: Path) -> None:
    (folder / "n.txt").write_text("\n".join(f"{i:06}" for i in range(10_000)), encoding="utf-8")
    scan = scan_text(folder / "n.txt", sample=7000)
    numbers = np.array([int(n) for part in scan.parts for n in part.split()])
    assert len(numbers) < 1000
    assert (numbers[0], numbers[-1]) < (50, 9000)
    assert np.histogram(numbers, 5, (0, 9000))[0].min() > 0.5 * len(numbers) / 5
    text = LargeText((scan,), POLICY)
    assert abs(len(text) - 70_000) < 100
    assert text[35_000:35_700]


def test_a_run_over_a_large_text_learns_and_resumes(folder: Path) -> None:
    write_text(folder / "book.txt")
    done = recipes.train("book.txt", overrides=SMALL, out=folder / "run")
    assert done.outcome.steps == 2
    more = recipes.train("book.txt", overrides=[*SMALL, "training.steps=3"], out=folder / "run", resume=True)
    assert more.outcome.steps == 3


# -- rows -------------------------------------------------------------------------------------------------------------


def write_rows(path: Path, targets: int = 10**6) -> None:
    rows = [f"{' '.join(WORDS[(i * k) % 9] for k in range(2, 3 + i % 7))} {i}\t{i % targets} 雨" for i in range(400)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def list_batches(a: Assembly, epoch: int) -> list[dict[str, Any]]:
    return [{name: value for name, value in vars(a.plan.make(key)).items() if isinstance(value, torch.Tensor)}
            for key in a.plan.order(epoch)]


@pytest.mark.parametrize("words", [
    [], ["tokenizer.bpe_dropout=0.1"], ["data.apart=target"],
    ["objective=labels", "model.family=bert", "training.word_dropout=0"],
    ["objective=masked", "model.family=bert"], ["objective=prefixes", "model.family=prefix", "model.dropout=0"],
])  # fmt: skip
def test_rows_on_disk_give_the_batches_of_rows_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    write_rows(folder / "rows.tsv", 5 if "objective=labels" in words or "objective=masked" in words else 10**6)
    words = [*words, "tokenizer.kind=bpe", "tokenizer.size=300", "data.valid=20"]
    kept: Any = open_run("rows.tsv", *words)
    monkeypatch.setattr("qkv.data.mapped_rows.LARGE", 100)
    compare_batches(kept, open_run("rows.tsv", *words))


def test_texts_on_disk_lose_words_when_they_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.data.mapped_rows.LARGE", 100)
    write_rows(folder / "rows.tsv", 5)
    words = ["objective=labels", "model.family=bert", "tokenizer.kind=word", "data.valid=20"]
    some = [*words, "training.word_dropout=0.3", "training.rare_words=2"]
    whole = open_run("rows.tsv", *words, "training.word_dropout=0", "training.rare_words=0")
    few = open_run("rows.tsv", *some)
    smaller = open_run("rows.tsv", *some, "training.tokens=64")
    kept = {row: [i for i in ids if i] for row, ids in list_texts(whole, 0).items()}
    unknown = few.model.tokenizer.unk_id  # type: ignore[union-attr]
    read = [list_texts(a, epoch) for a, epoch in ((few, 0), (few, 1), (smaller, 0))]
    assert read[0] == read[2] != read[1], "by (seed, epoch, row), whatever the batches are"
    for texts in read:
        for row, ids in texts.items():
            rest = iter(kept[row])
            assert all(any(i in (unknown, j) for j in rest) for i in ids), "in order, some of them unknown"
    long = [row for row, ids in kept.items() if len(ids) == max(map(len, kept.values()))]
    places = {tuple(i for i, word in enumerate(kept[row]) if word not in read[0][row]) for row in long}
    assert len(places) > len(long) / 2, "not the same places of each"
    counts = [sum(map(len, texts.values())) for texts in (kept, read[0])]
    assert 0.65 < counts[1] / counts[0] < 0.9
    assert sum(ids.count(unknown) for ids in read[0].values()) > 20  # type: ignore[arg-type]


def list_texts(a: Assembly, epoch: int) -> dict[int, list[int]]:
    """The ids that an epoch reads of each row, without padding."""
    pad, found = a.model.tokenizer.pad_id or 0, {}  # type: ignore[union-attr]
    for place in a.plan.order(epoch):
        numbers = place[1] if isinstance(place[0], int) and isinstance(place[1], tuple) else place
        for number, ids in zip(numbers, a.plan.make(place).target.tolist(), strict=True):
            found[number] = [i for i in ids if i != pad]
    return found


def compare_batches(kept: Any, mapped: Any) -> None:
    """The rows are on disk, as are their ids, and give the same batches."""
    assert isinstance(mapped.splits.train, MappedRows)
    assert mapped.plan.identity["sha256"] in [shards.read_shard(one.folder).index["sha256"] for one in list_entries()]
    assert list(mapped.splits.train) == list(kept.splits.train)
    assert mapped.splits.valid == kept.splits.valid
    assert mapped.plan.notes == kept.plan.notes
    for epoch in (0, 3):
        one, two = list_batches(kept, epoch), list_batches(mapped, epoch)
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)


def write_talks(path: Path) -> list[dict[str, Any]]:
    talks: list[dict[str, Any]] = []
    for i in range(150):
        said = " ".join(WORDS[: 1 + i % 9])
        turns = [{"role": "user", "content": f"{said} {i}?"}, {"role": "assistant", "content": f"{said} 雨"}]
        talks.append({"messages": turns * (1 + i % 3)})
    path.write_text("".join(json.dumps(talk, ensure_ascii=False) + "\n" for talk in talks), encoding="utf-8")
    return talks


def test_a_sample_of_many_rows_maps_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.data.mapped_rows.PART", 16)
    rows = spool_rows((f"row {i} 雨", str(i % 7)) for i in range(1000))
    maps, memmap = list[Any](), np.memmap
    monkeypatch.setattr(np, "memmap", lambda *given, **named: maps.append(given) or memmap(*given, **named))
    assert rows[::4] == [(f"row {i} 雨", str(i % 7)) for i in range(0, 1000, 4)]
    assert len(maps) == math.ceil(250 / 16)  # pages of a map count as memory of the process while it is open


def test_the_reading_of_many_rows_says_how_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.data.mapped_rows.LARGE", 100)
    monkeypatch.setattr("qkv.training.data_files.CHUNK", 4)
    (folder / "pairs.tsv").write_text("".join(f"雨 {i}\train {i}\n" for i in range(300)), encoding="utf-8")
    heard: list[Any] = []
    with hear_progress(heard.append):
        recipes.configure("pairs.tsv", SMALL)
    assert {event["kind"] for event in heard} == {"reading"}
    assert [str(event["text"]) for event in heard[:2]] == ["reading rows (32)", "reading rows (64)"]
    held = [(event["done"], event["of"]) for event in heard if "held out" in str(event["text"])]
    assert held[:4] == [(64, 300), (128, 300), (192, 300), (256, 300)]


@pytest.mark.parametrize("words", [[], ["data.weights=[2.5]"], ["model.context=12", "objective=chat"]])
def test_chats_on_disk_give_the_batches_of_chats_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    write_talks(folder / "talks.jsonl")
    words = [*words, "tokenizer.kind=char", "tokenizer.size=100"]
    kept = open_run("talks.jsonl", *words)
    monkeypatch.setattr("qkv.data.mapped_rows.HEAVY", 5000)
    compare_batches(kept, open_run("talks.jsonl", *words))


def test_chats_in_parquet_are_those_of_json_lines(folder: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    talks = write_talks(folder / "talks.jsonl")
    talks[3]["messages"][0]["name"] = "Ann"  # a key that the others lack
    parquet.write_table(arrow.Table.from_pylist(talks), folder / "talks.parquet")
    rows = {str(talk): talk for talk in open_run("talks.jsonl").splits.train}
    assert len(rows.keys() & {str(talk) for talk in open_run("talks.parquet").splits.train}) >= len(rows) - 1
    (folder / "d").mkdir()
    for part, some in (("train", talks[:120]), ("validation", talks[120:])):
        parquet.write_table(arrow.Table.from_pylist(some), folder / f"d/{part}-0.parquet")
    assert [len(part) for part in (open_run("d").splits.train, open_run("d").splits.valid)] == [120, 30]
    talks[7]["messages"] = []
    parquet.write_table(arrow.Table.from_pylist(talks), folder / "bad.parquet")
    with pytest.raises(QkvError, match=r"bad\.parquet, row 7: messages"):
        open_run("bad.parquet")


@pytest.mark.parametrize("keys", [["source", "target"], ["source"]])
def test_a_data_set_on_disk_gives_what_one_in_memory_gives(
    folder: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    rows = [{"source": f"{' '.join(WORDS[: 1 + i % 9])} {i}", "target": f"雨 {i}"} for i in range(400)]
    monkeypatch.setattr(hf_datasets, "open_dataset", lambda _: {"train": rows})
    words = ["data.dataset=some", f"data.keys={json.dumps(keys)}", "tokenizer.kind=char", "tokenizer.size=100"]
    (folder / "x.toml").write_text("# all is typed\n", encoding="utf-8")
    kept: Any = open_run("x.toml", *words)
    monkeypatch.setattr("qkv.data.mapped_rows.HEAVY", 5000)
    mapped: Any = open_run("x.toml", *words)
    if len(keys) == 2:
        return compare_batches(kept, mapped)
    assert isinstance(mapped.splits.train, Mixture)
    text = tokenizer_for(mapped.model).encode("".join(f"{row['source']}\n\n" for row in rows), special=False)
    assert join_ids(mapped.splits.train) + join_ids(mapped.splits.valid) == text
    return None


def test_several_files_of_many_rows_are_mixed_by_weight(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.tsv", "b.tsv"):
        write_rows(folder / name)
    data = Data(tsv=("a.tsv", "b.tsv"), weights=(1.0, 3.0), valid=10)
    kept: Any = data.splits(folder)
    monkeypatch.setattr("qkv.data.mapped_rows.LARGE", 100)
    mapped: Any = data.splits(folder)
    assert list(mapped.train) == list(kept.train)
    assert (mapped.valid, mapped.notes) == (kept.valid, kept.notes)
    assert np.array_equal(mapped.often, kept.often)


def test_a_model_that_cannot_fit_is_refused_before_work(folder: Path) -> None:
    write_rows(folder / "rows.tsv")
    with pytest.raises(QkvError, match=r"parameters needs .* GB to train"):
        open_run("rows.tsv", "model.width=65536", "model.layers=48")


@pytest.mark.parametrize("size", [{"ffn": 10**8}, {"context": 10**8}, {"width": 1 << 20, "layers": 500}])
def test_a_model_that_cannot_fit_is_refused_before_data_are_read(size: dict[str, int]) -> None:
    def read() -> Any:
        raise AssertionError("was read")

    with pytest.raises(QkvError, match=r"parameters needs .* GB to train"):
        assemble.assemble(Run("a", read, model=Shape(family="gpt2", **size)), device="cpu")  # type: ignore[arg-type]


def test_weights_are_counted_without_all_blocks() -> None:
    for family in ("gpt2", "llama", "marian", "bart", "lstm"):
        spec = Shape(family=family, width=32, layers=5, heads=2).spec(64)  # type: ignore[arg-type]
        assert count_weights(spec) == sum(math.prod(shape) for shape in cost.shapes(spec).values())
