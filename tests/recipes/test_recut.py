"""Words cut anew in each epoch of a run: a function of (seed, epoch, pair), and nothing of it in what is judged."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from qkv import recipes
from qkv.errors import QkvError
from qkv.recipes import assemble, objectives
from qkv.recipes.run import Run, Shape, Splits, Vocabulary, from_toml
from qkv.training.settings import Settings

ROWS = [(f"the {a} {b}est one", f"one {b}est {a}") for a in ("newer", "lower", "wider", "slower") for b in
        ("long", "strong", "new", "low", "wid", "slow", "bold", "cold", "young", "old")]  # fmt: skip


def run_of(dropout: float = 0.2, **training: Any) -> Run:
    shape = Shape("marian", width=16, layers=1, heads=2, ffn=32, dropout=0.1, context=48)
    base = Settings(steps=24, tokens=256, warmup=2, precision="fp32", evaluate_every=12, metric="bleu", threads=1)
    return Run("cuts", lambda: Splits(ROWS[:32], ROWS[32:36], ROWS[36:]), shape, Vocabulary("bpe", 300, dropout),
               dataclasses.replace(base, **training))  # fmt: skip


def rows_of(a: assemble.Assembly, epoch: int) -> list[list[int]]:
    """The ids of the epoch's sources, in the order of its batches."""
    batches = [a.plan.make(key) for key in a.plan.order(epoch)]
    return [[i for i in row if i != 0] for b in batches if b.source is not None for row in b.source.tolist()]


def test_an_epoch_has_cuts_of_its_own_and_has_them_again() -> None:
    a, b = (assemble.assemble(run_of(), device="cpu") for _ in "ab")
    assert a.model.tokenizer is not None
    first = rows_of(a, 0)
    assert rows_of(a, 5) != rows_of(a, 3)
    assert first == rows_of(a, 0) == rows_of(b, 0)
    assert sorted(first) != sorted(rows_of(a, 1))
    assert rows_of(assemble.assemble(run_of(seed=1), device="cpu"), 0) != first
    for epoch in (0, 1):
        texts = sorted(a.model.tokenizer.decode(row) for row in rows_of(a, epoch))
        assert texts == sorted(source for source, _ in ROWS[:32])


def test_no_dropout_is_the_run_as_it_was_and_held_out_pairs_are_never_cut_anew() -> None:
    plain, cut = (assemble.assemble(run_of(share), device="cpu") for share in (0.0, 0.5))
    assert plain.model.tokenizer is not None
    assert sorted(rows_of(plain, 0)) == sorted(plain.model.tokenizer.encode_batch([s for s, _ in ROWS[:32]]))
    assert plain.plan.identity["tokenizer"] == {"kind": "bpe", "size": 300}, "what older checkpoints say"
    assert cut.plan.identity["tokenizer"] == {"kind": "bpe", "size": 300, "dropout": 0.5}
    for one, two in zip(plain.valid, cut.valid, strict=True):
        assert one.source is not None
        assert two.source is not None
        assert (one.source == two.source).all()
        assert (one.labels == two.labels).all()


def test_a_pair_that_becomes_too_long_keeps_its_usual_cut() -> None:
    run = run_of(1.0)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, context=16))
    a = assemble.assemble(run, device="cpu")
    rows = rows_of(a, 0)
    assert len(rows) == 32
    assert max(map(len, rows)) <= 16


def test_a_resumed_run_repeats_its_cuts(tmp_path: Path) -> None:
    whole = recipes.train(run_of(), out=tmp_path / "a", device="cpu")
    assert whole.outcome.epochs > 2
    recipes.train(run_of(steps=15), out=tmp_path / "b", device="cpu")
    again = recipes.train(run_of(schedule="inverse"), out=tmp_path / "b", device="cpu", resume=True)
    mine, theirs = dict(whole.model.core.named_parameters()), dict(again.model.core.named_parameters())
    assert whole.outcome.loss == again.outcome.loss
    assert all((mine[n] == theirs[n]).all() for n in mine)
    with pytest.raises(QkvError, match=r"dropout"):
        recipes.train(run_of(0.1, steps=30), out=tmp_path / "b", device="cpu", resume=True)


def test_state_that_is_consumed_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    chance = np.random.default_rng(0)
    monkeypatch.setattr(objectives, "generator", lambda **key: chance)
    a, b = (assemble.assemble(run_of(), device="cpu") for _ in "ab")
    assert rows_of(a, 0) != rows_of(b, 0)


def test_what_is_not_pairs_or_no_share_is_refused(tmp_path: Path) -> None:
    text = dataclasses.replace(run_of(), splits=lambda: Splits("old news " * 90, "old news " * 9), model=Shape("gpt2"))
    with pytest.raises(QkvError, match=r"tokenizer\.dropout=0\.2: only pairs are cut anew"):
        assemble.assemble(text, device="cpu")
    with pytest.raises(QkvError, match=r"tokenizer\.dropout: found 1\.5, expected a share from 0 to 1"):
        Vocabulary(dropout=1.5)
    with pytest.raises(QkvError, match=r"nowhere.*no such file"):
        Vocabulary("split", merges=str(tmp_path / "nowhere")).ranks()


def test_a_toml_file_names_the_merges_beside_it(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("#version: 0.2\ne s\nes t</w>\n", encoding="utf-8")
    (tmp_path / "a.toml").write_text(
        '[data]\ntsv = "a.tsv"\n[tokenizer]\nkind = "split"\nmerges = "code"\ndropout = 0.1\n', encoding="utf-8"
    )
    assert from_toml(tmp_path / "a.toml").tokenizer.ranks() == {("e", "s"): 2, ("es", "t</w>"): 3}
