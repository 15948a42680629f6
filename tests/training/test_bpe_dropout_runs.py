"""Words cut anew in each epoch of a run: a function of (seed, epoch, pair), and nothing of it in what is judged."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.data.collate import Batch
from qkv.errors import QkvError
from qkv.hub import load
from qkv.training import assemble, recipes
from qkv.training.objectives import augment
from qkv.training.objectives.base import special_ids
from qkv.training.own_data import from_toml
from qkv.training.run import Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

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


def test_no_dropout_is_the_run_as_it_was_and_held_out_pairs_stay_as_cut() -> None:
    plain, cut = (assemble.assemble(run_of(share), device="cpu") for share in (0.0, 0.5))
    assert plain.model.tokenizer is not None
    assert sorted(rows_of(plain, 0)) == sorted(plain.model.tokenizer.encode_batch([s for s, _ in ROWS[:32]]))
    assert plain.plan.identity["tokenizer"] == {"kind": "bpe", "size": 300}, "what older checkpoints say"
    assert cut.plan.identity["tokenizer"] == {"kind": "bpe", "size": 300, "bpe_dropout": 0.5}
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
    monkeypatch.setattr(augment, "make_generator", lambda **key: chance)
    a, b = (assemble.assemble(run_of(), device="cpu") for _ in "ab")
    assert rows_of(a, 0) != rows_of(b, 0)


ASKED = [(f"{source} ||| {target}", str(i % 2)) for i, (source, target) in enumerate(ROWS)]
CHOSEN = [(f"{text} ||| {text[::-1]}", label) for text, label in ASKED]
STORY = "".join(source + "\n" for source, _ in ROWS)


def other(objective: str, dropout: float = 0.5, **training: Any) -> Run:
    """A run over labels, two texts' likeness, answers to a question, or the windows of one text."""
    shape = Shape("gpt2" if objective == "text" else "bert", width=16, layers=1, heads=2, ffn=32, context=64)
    pairs = CHOSEN if objective == "choice" else ASKED
    rows: Any = (STORY, STORY) if objective == "text" else (pairs[:32], pairs[32:])
    settings = dataclasses.replace(run_of(**training).training, metric="loss")
    return Run("cuts", lambda: Splits(*rows), shape, Vocabulary("bpe", 300, dropout), settings, objective=objective)


def targets(a: assemble.Assembly, epoch: int) -> list[list[int]]:
    return [row for key in a.plan.order(epoch) for row in a.plan.make(key).target.tolist()]


def labelled(a: assemble.Assembly) -> list[tuple[str, int]]:
    """The first row of each item in the second epoch, as text, and the item's label."""
    found: list[tuple[str, int]] = []
    assert a.model.tokenizer is not None
    for batch in map(a.plan.make, a.plan.order(1)):
        assert batch.classes is not None
        first = batch.target[:: len(batch.target) // len(batch.classes)].tolist()
        found += zip(map(a.model.tokenizer.decode, first), batch.classes.tolist(), strict=True)
    return sorted(found)


@pytest.mark.parametrize("objective", ["labels", "similarity", "choice", "text"])
def test_labelled_texts_and_plain_text_are_cut_anew_too(objective: str) -> None:
    a, b = (assemble.assemble(other(objective), device="cpu") for _ in "ab")
    plain = assemble.assemble(other(objective, 0.0), device="cpu")
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    first = targets(a, 0)
    assert targets(a, 5) != targets(a, 3)
    assert first == targets(a, 0) == targets(b, 0), "a function of seed and epoch"
    assert sorted(first) != sorted(targets(plain, 0))
    said = [tokenizer.decode(row) for row in first]
    if objective == "text":
        assert all(text.strip("�") in STORY for text in said)
        assert len(first) == len(targets(plain, 0)), "as many windows"
    else:
        assert sorted(said) == sorted(tokenizer.decode(row) for row in targets(plain, 0)), "the same words"
        assert labelled(a) == labelled(plain), "each text kept its label"
    for one, two in zip(a.valid, plain.valid, strict=True):
        assert (one.target == two.target).all(), "what is judged is never cut anew"


def test_a_text_is_cut_by_seed_and_epoch_and_stays_the_text() -> None:
    a = assemble.assemble(other("text"), device="cpu")
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    one, two = (augment.recut_text(other("text", seed=seed), tokenizer, STORY) for seed in (0, 1))
    ids = [one(0).tolist(), one(1).tolist(), two(0).tolist(), tokenizer.encode(STORY, special=False)]
    assert len({tuple(row) for row in ids}) == 4
    assert {tokenizer.decode(row) for row in ids} == {STORY}
    assert ids[0] == one(0).tolist()
    assert min(map(len, ids[:3])) > len(ids[3])


def test_a_resumed_language_model_repeats_its_cuts(tmp_path: Path) -> None:
    whole = recipes.train(other("text"), out=tmp_path / "a", device="cpu")
    assert whole.outcome.epochs > 2
    recipes.train(other("text", steps=15), out=tmp_path / "b", device="cpu")
    again = recipes.train(other("text", schedule="inverse"), out=tmp_path / "b", device="cpu", resume=True)
    mine, theirs = dict(whole.model.core.named_parameters()), dict(again.model.core.named_parameters())
    assert all((mine[n] == theirs[n]).all() for n in mine)


def test_what_is_not_cut_anew_or_no_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"dropout=0\.5: .*texts are tokenized only once.*with pairs, text, labels"):
        assemble.assemble(dataclasses.replace(other("text"), objective="documents"), device="cpu")
    with pytest.raises(QkvError, match=r"tokenizer\.bpe_dropout: found 1\.5, expected a share from 0 to 1"):
        Vocabulary(bpe_dropout=1.5)
    with pytest.raises(QkvError, match=r"nowhere.*no such file"):
        Vocabulary("split", merges=str(tmp_path / "nowhere")).ranks()


def test_a_toml_file_names_the_merges_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"the best {n}\tthe west {n}\n" for n in range(30)), encoding="utf-8")
    (tmp_path / "code").write_text("#version: 0.2\ne s\nes t</w>\n", encoding="utf-8")
    (tmp_path / "a.toml").write_text(
        '[data]\ntsv = "a.tsv"\n[tokenizer]\nkind = "split"\nmerges = "code"\nbpe_dropout = 0.1\n', encoding="utf-8"
    )
    assert from_toml(tmp_path / "a.toml").tokenizer.ranks() == {("e", "s"): 2, ("es", "t</w>"): 3}


# -- words left out of labelled texts -------------------------------------------------------------------------------


def within(some: list[str], whole: list[str]) -> bool:
    """Whether words stand in a text in this order."""
    rest = iter(whole)
    return all(word in rest for word in some)


@pytest.mark.parametrize("objective", ["labels", "choice"])
def test_words_are_left_out_of_labelled_texts_anew_in_each_epoch(objective: str) -> None:
    a, b = (assemble.assemble(other(objective, 0.0, word_dropout=0.4), device="cpu") for _ in "ab")
    plain = assemble.assemble(other(objective, 0.0), device="cpu")
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    rows = [targets(a, epoch) for epoch in range(4)]
    assert rows[0] == targets(a, 0) == targets(b, 0), "a function of seed and epoch"
    assert len({tuple(sorted(map(tuple, one))) for one in rows}) == 4
    first, last = tokenizer.cls_id, tokenizer.sep_id
    whole = [[i for i in row if i != 0] for row in targets(plain, 0)]
    left = [[i for i in row if i != 0] for one in rows for row in one]
    assert {(row[0], row[-1]) for row in left} == {(first, last)}, "special tokens stay"
    words, count = sum(len(row) - 2 for row in left), 4 * sum(len(row) - 2 for row in whole)
    assert 0.55 < words / count < 0.65
    for one, two in zip(a.valid, plain.valid, strict=True):
        assert (one.target == two.target).all(), "what is judged keeps its words"


def test_a_text_with_words_left_out_keeps_their_order_and_its_label() -> None:
    pairs = [(f"t{i} " + " ".join(f"w{i}x{j}" for j in range(1 + i % 6)), str(i % 3)) for i in range(60)]
    run = dataclasses.replace(other("labels", 0.0, word_dropout=0.5), tokenizer=Vocabulary("split", 900),
                              splits=lambda: Splits(pairs, pairs))  # fmt: skip
    a = assemble.assemble(run, device="cpu")
    known = {word: (text.split(), label) for text, label in pairs for word in text.split()}
    assert a.model.tokenizer is not None
    for said, number in labelled(a):
        text, label = known[said.split()[0]]  # so no text is left without a word
        assert within(said.split(), text)
        assert a.model.labels[number] == label


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_rare_words_are_unknown_as_often_as_they_are_rare(dropout: float) -> None:
    pairs = [("often " * 19 + f"rare{i}", str(i % 3)) for i in range(60)]
    run = dataclasses.replace(other("labels", 0.0, rare_words=1.0, word_dropout=dropout),
                              tokenizer=Vocabulary("split", 900), splits=lambda: Splits(pairs, pairs))  # fmt: skip
    a, b = (assemble.assemble(run, device="cpu") for _ in "ab")
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    assert tokenizer.unk_id is not None
    often, rows = tokenizer.encode("often")[1], [targets(a, epoch) for epoch in range(6)]
    assert rows[0] == targets(a, 0) == targets(b, 0), "a function of seed and epoch"
    assert len({tuple(map(tuple, sorted(one))) for one in rows}) == 6
    whole = [[i for i in row if i] for one in rows for row in one]
    assert {(row[0], row[-1]) for row in whole} == {(tokenizer.cls_id, tokenizer.sep_id)}, "special tokens stay"
    words = [i for one in rows for row in one for i in row if i not in special_ids(tokenizer) - {tokenizer.unk_id}]
    hidden, seen = words.count(tokenizer.unk_id), len(words)
    # of each text 19 words that come 1,140 times, and one that comes once
    assert 0.4 < (hidden - seen * 0.95 / 1141) / (seen * 0.05) < 0.6
    assert 0.94 < words.count(often) / seen < 0.96
    assert all(tokenizer.unk_id not in row for batch in a.valid for row in batch.target.tolist())


def test_rare_words_of_other_runs_and_vocabularies_are_refused() -> None:
    with pytest.raises(QkvError, match=r"rare_words=1\.0: it works only with labelled texts"):
        assemble.assemble(other("text", 0.0, rare_words=1.0), device="cpu")
    run = other("labels", 0.0, rare_words=1.0)
    a = assemble.assemble(run, device="cpu")
    assert a.model.tokenizer is not None
    a.model.tokenizer.unk_id = None
    with pytest.raises(QkvError, match=r"rare_words=1\.0: the vocabulary has no unknown token"):
        a.objective.plan(run, a.splits, a.model)


def test_words_are_left_out_of_labelled_texts_and_pairs_alone() -> None:
    with pytest.raises(QkvError, match=r"word_dropout=0\.1: it works only with labelled texts"):
        assemble.assemble(other("text", 0.0, word_dropout=0.1), device="cpu")
    with pytest.raises(QkvError, match=r"training\.word_dropout: found 1\.5, expected a share"):
        other("labels", word_dropout=1.5)


# -- words of pairs that are not read -------------------------------------------------------------------------------


def read(a: assemble.Assembly, epoch: int) -> list[Batch]:
    return [a.plan.make(key) for key in a.plan.order(epoch)]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_words_of_pairs_are_not_read_anew_in_each_epoch_but_said(dropout: float) -> None:
    a, b = (assemble.assemble(run_of(dropout, word_dropout=0.3), device="cpu") for _ in "ab")
    plain = assemble.assemble(run_of(dropout), device="cpu")
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    unknown, hidden, words = tokenizer.unk_id, 0, 0
    kept = [tokenizer.pad_id, tokenizer.eos_id]
    for epoch in range(3):
        for mine, same, whole in zip(read(a, epoch), read(b, epoch), read(plain, epoch), strict=True):
            assert (mine.labels == whole.labels).all(), "what is not read is said all the same"
            for side in ("source", "target"):
                ids, full = getattr(mine, side), getattr(whole, side)
                assert (ids == getattr(same, side)).all(), "a function of seed, epoch and batch"
                assert ((ids == full) | (ids == unknown)).all()
                ends = torch.isin(full, torch.tensor(kept))
                assert (ids == full)[ends].all(), "special tokens are read"
                hidden, words = hidden + int((ids != full).sum()), words + int((~ends).sum())
    assert 0.27 < hidden / words < 0.33
    for one, two in zip(a.valid, plain.valid, strict=True):
        assert (one.target == two.target).all(), "what is judged is read whole"


def test_each_batch_of_each_epoch_has_draws_of_its_own() -> None:
    rows = [(f"a{i} b{i} c{i} d{i}", f"e{i} f{i} g{i} h{i}") for i in range(32)]  # all of one length: one shape
    run = dataclasses.replace(run_of(0.0, word_dropout=0.5, tokens=64), tokenizer=Vocabulary("split", 400),
                              splits=lambda: Splits(rows, rows[:4]))  # fmt: skip
    a = assemble.assemble(run, device="cpu")
    assert a.model.tokenizer is not None
    seen = [(b.source == a.model.tokenizer.unk_id, b.target == a.model.tokenizer.unk_id)
            for epoch in range(3) for b in read(a, epoch)]  # fmt: skip
    assert len(seen) > 6
    assert len({tuple(torch.cat([x.flatten() for x in sides]).tolist()) for sides in seen}) == len(seen)
    assert all(not torch.equal(source, target) for source, target in seen)


def test_words_that_are_not_read_and_sampled_ones_are_refused_together() -> None:
    with pytest.raises(QkvError, match=r"training\.scheduled_sampling: the model guesses from true words"):
        assemble.assemble(run_of(0.0, word_dropout=0.1, scheduled_sampling=0.1), device="cpu")


def test_pairs_without_a_token_for_the_unknown_are_refused() -> None:
    run = run_of(0.0, word_dropout=0.3)
    a = assemble.assemble(run, device="cpu")
    assert a.model.tokenizer is not None
    a.model.tokenizer.unk_id = None
    with pytest.raises(QkvError, match=r"word_dropout=0\.3: the vocabulary has no unknown token"):
        a.objective.plan(run, a.splits, a.model)


def test_bigrams_are_read_and_a_common_one_is_never_unknown(tmp_path: Path) -> None:
    pairs = [(f"甲乙丙 rare{i}"[: 4 + i % 6], str(i % 3)) for i in range(60)]
    run = dataclasses.replace(other("labels", 0.0, rare_words=50.0), tokenizer=Vocabulary("char", 900, bigrams=True),
                              splits=lambda: Splits(pairs, pairs))  # fmt: skip
    a = assemble.assemble(run, device="cpu")
    assert a.plan.identity["tokenizer"]["bigrams"] is True
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    common = {tokenizer.id("甲 乙"), tokenizer.id("乙 丙")}
    assert None not in common
    for epoch in range(3):  # 50 in 110 of the characters are unknown
        read = [i for row in targets(a, epoch) for i in row]
        assert [read.count(i) for i in common] == [60, 60]  # type: ignore[arg-type]
        assert read.count(tokenizer.id("甲") or 0) < 50
    a.model.save(tmp_path)
    again = load(tmp_path)
    assert again.ids("甲乙") == a.model.ids("甲乙")
    assert len(again.ids("甲乙")) == 5
    with pytest.raises(QkvError, match=r"tokenizer\.bigrams: it works only with labelled texts and an encoder"):
        assemble.assemble(dataclasses.replace(other("text", 0.0), tokenizer=Vocabulary("char", 900, bigrams=True)),
                          device="cpu")  # fmt: skip
