"""Which rows are held out: by their own hash, so that a longer file keeps them, or as many as one says."""

import json
from itertools import compress, product
from pathlib import Path

import pytest

from qkv import cli
from qkv.errors import QkvError
from qkv.training import recipes
from qkv.training.data_files import Data
from qkv.training.splits import choose_held_out, shuffle_sorted, usual_share

SMALL = ["model.width=16", "model.layers=1", "model.heads=2", "model.ffn=32", "training.steps=2", "tokenizer.kind=char",
         "training.tokens=128", "training.evaluate_every=2", "check.sentences=1"]  # fmt: skip


def name_texts(count: int) -> list[str]:
    return [f"row {i}" for i in range(count)]


def hold_out(count: int, amount: float, *, top: bool = False) -> set[str]:
    texts = name_texts(count)
    return set(compress(texts, choose_held_out(lambda: texts, amount, top=top)))


def write_rows(path: Path, count: int) -> None:
    path.write_text("".join(f"{text}\tline {text}\n" for text in name_texts(count)), encoding="utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("share", [0.2, 1 / 16, 1 / 128])
def test_a_longer_file_keeps_its_held_out_rows(share: float) -> None:
    short, long = hold_out(10_000, share), hold_out(30_000, share)
    assert long & set(name_texts(10_000)) == short
    assert abs(len(long) - 30_000 * share) < 4 * (30_000 * share) ** 0.5
    tenths = [len(short & set(name_texts(10_000)[at : at + 1000])) for at in range(0, 10_000, 1000)]
    assert min(tenths) > 0.2 * max(tenths)  # from all over the file


def test_a_number_is_of_the_lowest_hashes_as_ever() -> None:
    assert hold_out(50, 4) == {"row 22", "row 26", "row 32", "row 36"}
    assert len(hold_out(50, 40)) == 10
    assert not hold_out(50, 0)


def test_a_test_by_share_shares_no_row_with_validation() -> None:
    assert not hold_out(10_000, 0.2) & hold_out(10_000, 0.2, top=True)


def test_the_usual_share_leaves_enough_to_judge_and_to_train() -> None:
    for rows in (5, 12, 100, 2500, 3999, 4000, 12_345, 10**6, 10**8):
        held = rows * usual_share(rows)
        assert held == pytest.approx(rows / 5) or 500 <= held <= 1000
    assert usual_share(8000) == usual_share(15_999) == 2 * usual_share(16_000)
    assert all(len(hold_out(n, 0.2)) >= 1 for n in range(5, 60))


def test_the_share_is_chosen_told_and_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "a.tsv", 9000)
    assert cli.main(["train", "a.tsv", *SMALL, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "valid = 0.0625" in out
    assert "of 9,000 rows, by hash" in out
    (folder / "a.toml").write_text(out, encoding="utf-8")
    first = recipes.configure("a.tsv", SMALL).splits()
    write_rows(folder / "a.tsv", 20_000)  # more than twice as many, whose own share is lower
    later = recipes.configure("a.toml").splits()
    assert {*first.valid} <= {*later.valid}
    assert len(later.valid) > 1.8 * len(first.valid)
    assert not {*first.valid} & {*later.train}


def test_runs_of_earlier_versions_keep_their_rows_or_are_refused(folder: Path) -> None:
    write_rows(folder / "a.tsv", 60)
    recipes.train("a.tsv", overrides=[*SMALL, "data.valid=4"], out=folder / "run")
    kept = json.loads((folder / "run/train/run.json").read_text())
    kept.pop("chosen")  # as one that knew no shares wrote it
    (folder / "run/train/run.json").write_text(json.dumps(kept))
    more = ["training.steps=3"]
    with pytest.raises(QkvError, match=r"this run began with data\.valid=4.*qkv train .*run --resume"):
        recipes.train("a.tsv", overrides=[*SMALL, *more], out=folder / "run", resume=True)
    assert recipes.train("run", overrides=more, out=folder / "run", resume=True).outcome.steps == 3


def test_shares_and_numbers_are_told_apart(folder: Path) -> None:
    write_rows(folder / "a.tsv", 200)
    splits = Data(tsv=("a.tsv",), valid=0.1, test=0.1).splits(folder)
    assert splits.share == 0
    assert all(5 < len(part) < 40 for part in (splits.valid, splits.test))
    for wrong in (2.5, -1, float("inf")):
        with pytest.raises(QkvError, match="expected a whole number, or a share below 1"):
            Data(tsv=("a.tsv",), valid=wrong)


def test_a_sorted_list_is_shuffled_and_other_text_is_not(tmp_path: Path) -> None:
    words = sorted({"".join(p) for p in product("bcdfg", "aeiou", "klmn", "aeo")})
    listed = "\n".join(words) + "\n"
    mixed = shuffle_sorted(listed)
    assert (sorted(mixed.split()), mixed == listed, mixed[-1]) == (words, False, "\n")
    held = mixed.split()[-len(words) // 10 :]
    assert {word[0] for word in held} == set("bcdfg")  # of the list as it stands all of them begin with g
    log = "".join(f"2026-11-29 10:{n // 60:02}:{n % 60:02} the door opened\n" for n in range(300))
    for other in (log, "\n".join(reversed(words)), "\n".join(words[:90]), "one\n" * 400, "", "\n"):
        assert shuffle_sorted(other) == other
    (tmp_path / "words.txt").write_text(listed, encoding="utf-8")
    splits = Data(text=("words.txt",)).splits(tmp_path)
    assert {line[0] for line in str(splits.valid).split()[1:]} == set("bcdfg")
    assert any("words.txt" in str(note) for note in splits.notes)
