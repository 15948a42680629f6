"""Several files of rows, mixed by weight: how often each comes, that none leaks, that a run keeps to its weights."""

import json
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.bucket import Buckets
from qkv.data.order import draw_repeats
from qkv.errors import QkvError
from qkv.training import assemble, recipes
from qkv.training.data_files import Data
from qkv.training.objectives.base import tokenizer_for
from qkv.training.run import Run

OURS, THEIRS = "ours", "theirs"  # a word in each row that says which file it is of
SMALL = ["model.width=16", "model.layers=1", "model.heads=2", "model.ffn=64", "model.context=48", "tokenizer.size=300",
         "training.tokens=256", "training.precision=fp32", "training.steps=4", "data.valid=4"]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """60 rows of one kind and 30 of another, in each form."""
    monkeypatch.chdir(tmp_path)
    for word, count in ((OURS, 60), (THEIRS, 30)):
        rows = [(f"{word} {i} {'x ' * (i % 7)}".strip(), f"{word} {i * i}") for i in range(count)]
        talks = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in rows]
        for name, lines in {
            f"{word}.a": [a for a, _ in rows], f"{word}.b": [b for _, b in rows],
            f"{word}.tsv": [f"{a}\t{b}" for a, b in rows],
            f"{word}-labels.tsv": [f"{a}\t{'odd' if i % 2 else 'even'}" for i, (a, _) in enumerate(rows)],
            f"{word}.jsonl": [json.dumps({"prompt": a, "completion": b}) for a, b in rows],
            f"{word}-talks.jsonl": [json.dumps({"messages": talk}) for talk in talks],
            f"{word}.txt": [a for a, _ in rows],
        }.items():  # fmt: skip
            (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


# -- how often --------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 5), min_size=1, max_size=80), st.integers(0, 2**31), st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_a_thing_comes_as_often_as_it_should_or_once_more(often: list[float], seed: int, epoch: int) -> None:
    share = np.array(often)
    times = draw_repeats(share, seed=seed, epoch=epoch)
    assert ((times == np.floor(share)) | (times == np.floor(share) + 1)).all()
    assert (times[share == np.floor(share)] == share[share == np.floor(share)]).all()
    assert (times == draw_repeats(share, seed=seed, epoch=epoch)).all()


def test_over_many_epochs_the_mean_is_what_was_asked() -> None:
    share = np.array([0.25, 1.0, 2.5, 0.1])
    found = np.mean([draw_repeats(share, seed=3, epoch=e) for e in range(4000)], axis=0)
    assert np.abs(found - share).max() < 4 * 0.5 / 4000**0.5
    assert any(
        (draw_repeats(share, seed=3, epoch=0) != draw_repeats(share, seed=3, epoch=e)).any() for e in range(1, 20)
    )


def test_batches_hold_each_pair_as_often_as_the_epoch_says() -> None:
    lengths = [(i % 11 + 1, i % 5 + 1) for i in range(200)]
    often = np.linspace(0, 3, 200)
    b = Buckets(lengths, tokens=64, seed=5, often=often)
    for epoch in (0, 1, 7):
        held = Counter(chain.from_iterable(b.batches(epoch)))
        assert [held[i] for i in range(200)] == draw_repeats(often, seed=5, epoch=epoch).tolist()
    assert all(rows * max(s, t) <= 64 for rows, s, t in map(b.shape, b.batches(0)))


# -- whatever is learnt -----------------------------------------------------------------------------------------------

FORMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "pairs": ({"source": [f"{OURS}.a", f"{THEIRS}.a"], "target": [f"{OURS}.b", f"{THEIRS}.b"]}, []),
    "tsv": ({"tsv": [f"{OURS}.tsv", f"{THEIRS}.tsv"]}, []),
    "jsonl": ({"jsonl": [f"{OURS}.jsonl", f"{THEIRS}.jsonl"], "keys": ["prompt", "completion"]}, []),
    "recut": ({"tsv": [f"{OURS}.tsv", f"{THEIRS}.tsv"]}, ["tokenizer.bpe_dropout=0.1"]),
    "prefix": ({"tsv": [f"{OURS}.tsv", f"{THEIRS}.tsv"]}, ["model.family=prefix", "objective=prefixes"]),
    "labels": ({"tsv": [f"{OURS}-labels.tsv", f"{THEIRS}-labels.tsv"]}, ["model.family=bert", "objective=labels"]),
    "thinned": ({"tsv": [f"{OURS}-labels.tsv", f"{THEIRS}-labels.tsv"]},
                ["model.family=bert", "objective=labels", "training.word_dropout=0.1"]),
    "masked": ({"tsv": [f"{OURS}-labels.tsv", f"{THEIRS}-labels.tsv"]}, ["model.family=bert", "objective=masked"]),
    "chat": ({"messages": [f"{OURS}-talks.jsonl", f"{THEIRS}-talks.jsonl"]}, ["model.family=gpt2", "objective=chat"]),
}  # fmt: skip


def run_of(folder: Path, form: str, weights: list[float]) -> Run:
    data, words = FORMS[form]
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**data, "weights": weights}.items()]
    (folder / "mix.toml").write_text("[data]\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return recipes.configure(folder / "mix.toml", [*SMALL, *words])


def read(a: assemble.Assembly, epoch: int) -> str:
    """All that is read in an epoch, without spaces."""
    batches = [a.plan.make(key) for key in a.plan.order(epoch)]
    rows = [row for b in batches for row in (b.target if b.source is None else b.source).tolist()]
    return " ".join(map(tokenizer_for(a.model).decode, rows)).replace(" ", "")


def heard(a: assemble.Assembly, epoch: int) -> dict[str, int]:
    """How often rows of each file are read in an epoch, told by their words."""
    text = read(a, epoch)
    return {word: text.count(word) for word in (OURS, THEIRS)}


@pytest.mark.parametrize("form", FORMS)
def test_rows_come_by_the_weight_of_their_file(folder: Path, form: str) -> None:
    whole, even = (assemble.assemble(run_of(folder, form, w), device="cpu") for w in ([], [1.0, 4.0]))
    assert whole.splits.often is None
    assert even.splits.often is not None
    assert even.splits.often.sum() == pytest.approx(len(whole.splits.train))
    assert even.splits.train == whole.splits.train
    a, b = (np.sum([[heard(x, e)[w] for w in (OURS, THEIRS)] for e in range(6)], axis=0) for x in (whole, even))
    a, b = a / a.sum(), b / b.sum()
    assert a[1] == pytest.approx(1 / 3, abs=0.06)  # by size
    assert b[1] == pytest.approx(0.8, abs=0.06)
    assert len({"".join(sorted(read(even, e))) for e in range(4)}) > 1, "each epoch has rows of its own"
    assert whole.plan.judged == even.plan.judged, "held-out rows come once"
    assert whole.plan.identity != even.plan.identity
    again = assemble.assemble(run_of(folder, form, [1.0, 4.0]), device="cpu")
    assert again.plan.identity == even.plan.identity
    assert list(again.plan.order(3)) == list(even.plan.order(3)) != list(even.plan.order(4))


def test_a_text_that_comes_twice_has_other_words_hidden(folder: Path) -> None:
    a = assemble.assemble(run_of(folder, "masked", [1.0, 40.0]), device="cpu")
    hidden: dict[int, list[str]] = {}
    for key in a.plan.order(0):
        _, items, numbers = key
        batch = a.plan.make(key)
        for item, row in zip(items, batch.labels.tolist(), strict=True):
            hidden.setdefault(item, []).append(str(row))
        assert [number % len(a.splits.train) for number in numbers] == list(items)
    often = {item: rows for item, rows in hidden.items() if len(rows) > 1}
    assert len(often) > 20
    assert sum(len(set(rows)) == 1 for rows in often.values()) < len(often) / 4
    whole = assemble.assemble(run_of(folder, "masked", []), device="cpu")
    assert all(items == numbers for _, items, numbers in whole.plan.order(0)), "once each: by the number of the text"


def test_a_run_is_resumed_with_the_weights_it_began_with_alone(folder: Path) -> None:
    out, how = folder / "run", {"device": "cpu", "resume": True}
    recipes.train(run_of(folder, "tsv", [1, 4]), out=out, device="cpu")
    words = ["training.steps=6", "data.weights=[4, 1]"]
    with pytest.raises(QkvError, match=r"data\.often\[0\]\[1\]: was 0\.3\d+, now 1\.2"):
        recipes.train(folder / "mix.toml", overrides=[*SMALL, *words], out=out, **how)
    more = recipes.train(folder / "mix.toml", overrides=[*SMALL, words[0]], out=out, **how)
    assert more.outcome.steps == 6


# -- what is held out, and what is wrong ------------------------------------------------------------------------------


def test_no_held_out_text_is_in_training_whichever_file_it_is_of(folder: Path) -> None:
    (folder / "again.tsv").write_text((folder / f"{OURS}.tsv").read_text(encoding="utf-8"), encoding="utf-8")
    found = Data(tsv=(f"{OURS}.tsv", "again.tsv", f"{THEIRS}.tsv"), valid=9, test=6).splits(folder)
    parts = [{row[0] for row in part} for part in (found.train, found.valid, found.test)]
    assert all(parts)
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    assert sum(map(len, (found.train, found.valid, found.test))) == 150
    one = Data(tsv=f"{OURS}.tsv").splits(folder)
    assert one.train == Data(tsv=(f"{OURS}.tsv",)).splits(folder).train


def test_a_row_held_out_is_told_with_the_file_in_which_it_stands(folder: Path) -> None:
    first = (folder / f"{THEIRS}.tsv").read_text(encoding="utf-8").splitlines()[2]
    (folder / "valid.tsv").write_text(f"new\tneu\n{first}\n", encoding="utf-8")
    data = Data(tsv=(f"{OURS}.tsv", f"{THEIRS}.tsv"), valid_file="valid.tsv", weights=(1, 1))
    with pytest.raises(QkvError, match=r"theirs\.tsv:3: this pair is held out too \(.*valid\.tsv:2\); 1 training rows"):
        data.splits(folder)
    found = Data(tsv=data.tsv, valid_file="valid.tsv", weights=(1, 1), overlap="drop").splits(folder)
    assert found.often is not None
    assert len(found.train) == len(found.often) == 89
    assert found.notes[-1] == "in an epoch ours.tsv: 60 rows, each 0.742 times; theirs.tsv: 29 rows, each 1.53 times"
    assert found.often[0] * 60 == pytest.approx(found.often[-1] * 29) == pytest.approx(89 / 2)


def test_of_several_texts_the_end_of_each_is_held_out(folder: Path) -> None:
    found = Data(text=(f"{OURS}.txt", f"{THEIRS}.txt")).splits(folder)
    assert OURS in found.valid
    assert THEIRS in found.valid
    assert isinstance(found.train, str)
    assert found.train.count("\n\n") == 1
    assert found.train.count(THEIRS) == pytest.approx(27, abs=1)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"tsv": ("ours.tsv",), "weights": (1.0, 2.0)}, r"data\.weights: found \[1\.0, 2\.0\] for 1 sets of rows"),
        ({"tsv": ("ours.tsv", "theirs.tsv"), "weights": (1.0, 0.0)}, "as many numbers above 0"),
        ({"tsv": ("ours.tsv", "theirs.tsv"), "weights": (1.0, float("inf"))}, "as many numbers above 0"),
        ({"text": ("ours.txt", "theirs.txt"), "weights": (1.0, 2.0)}, "`qkv data pack` makes shards of texts"),
        ({"source": ("ours.a", "theirs.a"), "target": ("ours.b",)}, "found 2 source and 1 target files"),
        ({"tsv": ("ours.tsv", "none.tsv")}, r"none\.tsv"),
    ],
)
def test_what_does_not_go_together_is_told(folder: Path, data: dict[str, Any], told: str) -> None:
    with pytest.raises(QkvError, match=told):
        Data(**data).splits(folder)


def test_a_file_of_which_no_row_is_left_is_named(folder: Path) -> None:
    (folder / "few.tsv").write_text("new\tneu\n", encoding="utf-8")
    (folder / "valid.tsv").write_text("new\tneu\n", encoding="utf-8")
    data = Data(tsv=(f"{OURS}.tsv", "few.tsv"), valid_file="valid.tsv", weights=(1, 1), overlap="drop")
    with pytest.raises(QkvError, match=r"few\.tsv: no row is left"):
        data.splits(folder)


def test_a_short_run_of_weighted_files_reads_each_of_its_rows_once(folder: Path) -> None:
    run = recipes.configure(run_of(folder, "tsv", [1, 4]), smoke=True)
    few = run.splits()
    assert few.often is not None
    assert few.often.tolist() == [1.0] * len(few.train)


def test_several_files_may_be_typed(folder: Path) -> None:
    run = recipes.configure(f"{OURS}.tsv", [f"{THEIRS}.tsv", "data.weights=[1, 4]"])
    assert run.data
    assert replace(run.data, valid=None) == Data(tsv=(f"{OURS}.tsv", f"{THEIRS}.tsv"), weights=(1, 4))
    talks = recipes.configure(f"{OURS}-talks.jsonl", [f"{THEIRS}-talks.jsonl"])
    assert talks.data
    assert talks.data.messages == (f"{OURS}-talks.jsonl", f"{THEIRS}-talks.jsonl")
    three = recipes.configure(f"{OURS}.tsv", [f"{THEIRS}.tsv", f"{OURS}-labels.tsv", "objective=pairs"])
    assert three.data is not None
    assert len(three.data.tsv) == 3
    with pytest.raises(QkvError, match=r"data\.tsv: found 5, expected text or a list such as \[\"a\", \"b\"\]"):
        recipes.configure(f"{OURS}.tsv", ["data.tsv=5"])
    typed = recipes.configure(f"{OURS}.tsv", ['data.tsv="theirs.tsv"']).data
    assert typed
    assert typed.tsv == (f"{THEIRS}.tsv",)
