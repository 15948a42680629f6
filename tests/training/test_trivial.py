"""The end of a run: its result beside trivial ones, what was not learnt, and which weights are the best."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qkv.cli import main
from qkv.training import recipes, trivial
from qkv.training.run import Check
from qkv.training.settings import Settings
from qkv.training.splits import Splits

TINY = ["model.width=16", "model.layers=1", "model.ffn=32", "model.heads=2", "training.precision=fp32"]
PAIRS = [(f"red {a} {b} x y z w v", f"rot {a} {b} x y z w v") for a in "abcdefgh" for b in "klmnopqr"]
LABELLED = [(f"{'good' if n % 3 else 'bad'} {'uvwxyz'[n % 6]} {n}", "yes" if n % 3 else "no") for n in range(90)]


def write_rows(path: Path, rows: list[tuple[str, str]]) -> str:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("metric", "worse", "better"), [
    ("bleu", {"bleu": 0.39, "loss": 6.0}, {"bleu": 0.1, "loss": 4.8}),
    ("bleu", {"bleu": 0.9, "loss": 4.0}, {"bleu": 1.1, "loss": 4.8}),
    ("bleu", {"bleu": 30.0, "loss": 2.0}, {"bleu": 31.0, "loss": 2.5}),
    ("exact_match", {"exact_match": 0.0, "loss": 3.0}, {"exact_match": 0.0, "loss": 2.0}),
    ("label_accuracy", {"label_accuracy": 0.69, "majority": 0.69, "loss": 0.7},
     {"label_accuracy": 0.6, "majority": 0.69, "loss": 0.6}),
    ("label_accuracy", {"label_accuracy": 0.6, "majority": 0.69, "loss": 0.6},
     {"label_accuracy": 0.7, "majority": 0.69, "loss": 0.8}),
    ("loss", {"loss": 3.0}, {"loss": 2.0}), ("bleu", {"bleu": math.nan, "loss": 1.0}, {"bleu": 2.0, "loss": 9.0}),
])  # fmt: skip
def test_by_loss_until_the_metric_means_something(metric: str, worse: Any, better: Any) -> None:
    s = Settings(metric=metric)
    assert s.is_better(better, worse)
    assert not s.is_better(worse, better)


def test_labels_that_are_all_the_same_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["objective=labels", *TINY, "training.steps=3", "training.warmup=9", "training.lr=1e-9", "data.valid=18"]
    alike = [(f"word {n}", "yes" if n % 3 else "no") for n in range(90)]  # held-out ones are the same but for unknown n
    rows = write_rows(tmp_path / "a.tsv", alike)
    assert main(["train", rows, *words, f"--out={tmp_path / 'r'}"]) == 0
    out, err = capsys.readouterr()
    assert "always the commonest label" in out.splitlines()[-1]
    early, nothing = err.splitlines()[-2:]
    assert early.startswith("the run ended after 3 of 9 steps of warm-up")
    assert nothing.startswith("this model has learnt nothing: it says ")
    done = json.loads((tmp_path / "r" / "train" / "result.json").read_text(encoding="utf-8"))
    assert (done["trivial"]["beats_trivial"], len(done["faults"])) == (False, 2)
    assert sum(sum(row.values()) for row in done["labels"]["confusion"].values()) == 18
    metrics = done["outcome"]["metrics"]
    assert metrics["exact_match"] == metrics["label_accuracy"] == done["labels"]["accuracy"]
    assert metrics["majority"] == done["labels"]["majority"]
    assert "exact_match" not in out
    assert "texts/s" in err


def test_pairs_are_compared_with_copies_and_neighbours(tmp_path: Path) -> None:
    words = [*TINY, "tokenizer.size=300", "training.steps=2", "data.valid=12", "data.test=4"]
    done = recipes.train(write_rows(tmp_path / "a.tsv", PAIRS), overrides=words, device="cpu")
    assert done.verdict is not None
    found = done.verdict.trivial
    assert found.keys() == {"metric", "model", "copy", "nearest", "rows", "beats_trivial"}
    assert min(found["nearest"], found["copy"]) > 20 > found["model"]
    assert "learnt nothing" in done.verdict.faults[-1]


def test_what_bleu_cannot_judge_is_judged_by_how_many_are_right() -> None:
    rows = [(f"{a}+{b}", str(a + b)) for a in range(30) for b in range(30)]
    made = SimpleNamespace(splits=Splits(rows[::2], rows[1::2]), run=SimpleNamespace(check=Check()))
    found, said, wrong = trivial.judge_pairs(made, {"bleu": 0.0, "exact_match": 0.9})  # type: ignore[arg-type]
    assert (found["metric"], found["model"], found["copy"], wrong) == ("exact_match", 0.9, 0.0, None)
    assert "90.0%" in str(said)
    nothing = trivial.judge_pairs(made, {"bleu": 0.0, "exact_match": 0.0})[2]  # type: ignore[arg-type]
    assert nothing is not None
    words = [(f"我们{a}了{b}", f"我们 {a} 了 {b}") for a in "看听说读写" for b in "书歌话报字"]  # BLEU sees none
    split = SimpleNamespace(splits=Splits(words[::2], words[1::2]), run=SimpleNamespace(check=Check()))
    found, _, wrong = trivial.judge_pairs(split, {"bleu": 100.0, "exact_match": 0.5})  # type: ignore[arg-type]
    assert (found["metric"], found["model"], found["copy"], wrong) == ("exact_match", 0.5, 0.0, None)
    longer = SimpleNamespace(splits=Splits(PAIRS[::2], PAIRS[1::2]), run=SimpleNamespace(check=Check()))
    assert trivial.judge_pairs(longer, {"bleu": 0.0, "exact_match": 0.9})[0]["metric"] == "bleu"  # type: ignore[arg-type]


def test_a_run_whose_steps_its_seconds_chose_is_told_to_take_more_seconds() -> None:
    ended, choices = SimpleNamespace(why="steps", steps=318), [SimpleNamespace(key=key) for key in trivial.PLANNED]
    for seconds, advice in ((60, "training.seconds=240"), (0, "training.steps=1272")):
        run = SimpleNamespace(training=Settings(seconds=seconds), base="", choices=choices)
        made = SimpleNamespace(run=run, splits=Splits("", ""))
        assert trivial.advise(made, ended)[0] == advice  # type: ignore[arg-type]


def test_text_is_compared_with_unigrams_and_five_grams(tmp_path: Path) -> None:
    draws = random.Random(0)
    (tmp_path / "a.txt").write_text("".join(draws.choice(["abab ", "cdcd "]) for _ in range(4000)), encoding="utf-8")
    words = ["model.layers=1", "model.width=16", "model.heads=2", "tokenizer.kind=char", "training.precision=fp32"]
    done = recipes.train(tmp_path / "a.txt", overrides=[*words, "training.steps=2"], device="cpu")
    assert done.verdict is not None
    found = done.verdict.trivial
    exact = -sum(p * math.log(p) for p in (0.2, 0.2, 0.2, 0.2, 0.2))  # a b c d and the space are about as common
    assert found["unigram"] == pytest.approx(exact, abs=0.02)
    assert found["5-gram"] < 0.3
    assert not found["beats_trivial"]


def test_the_nearest_shares_most_words() -> None:
    known = ["我喜欢茶", "I like tea", "the red cat sat", "a cat"]
    texts = ["我喜欢咖啡", "they like green tea", "the cat sat", "cat", "???"]
    assert trivial.find_nearest(known, texts) == [0, 1, 2, 3, 0]
