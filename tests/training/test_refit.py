"""When the best weights are chosen, held-out rows are learnt too: which rows, at which rate, and what is said of it."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import QkvError
from qkv.training import assemble, evaluation, loop, recipes, refit, schedule
from qkv.training.facts import Facts
from qkv.training.plan import Plan
from qkv.training.planner import plan
from qkv.training.run import Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

ROWS = [(f"word{n} and more {n % 7}", str(n % 3)) for n in range(50)]
SPLITS = Splits(ROWS[:40], ROWS[40:])


def run_of(**training: Any) -> Run:
    shape = Shape("bert", width=16, layers=1, heads=2, ffn=32, dropout=0.1, context=16)
    base = Settings(steps=12, tokens=128, lr=3e-3, warmup=2, precision="fp32", evaluate_every=4, threads=1, refit=0.5,
                    metric="label_accuracy", word_dropout=0.2, rare_words=1.0)
    return Run("all", lambda: SPLITS, shape, Vocabulary("word", 200), dataclasses.replace(base, **training),
               objective="labels")  # fmt: skip


def test_its_steps_read_every_row_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Plan, Settings]] = []
    monkeypatch.setattr(loop, "train", lambda core, plan, settings, **_: found.append((plan, settings)))
    a = assemble.assemble(run_of(), device="cpu")
    said = refit.learn_all_rows(a, 20, None)
    assert said is not None
    assert str(said).startswith("then 10 steps on all 50 rows, of which 10 were held out")
    ((made, settings),) = found
    batches = [made.make(key) for key in made.order(0)]
    seen = Counter(n for batch in batches for n in batch.classes.tolist())  # type: ignore[union-attr]
    assert seen == Counter(a.model.labels.index(label) for _, label in ROWS)
    assert settings.steps == 10


def test_without_the_setting_or_a_step_nothing_is_learnt() -> None:
    a = assemble.assemble(run_of(refit=0.0), device="cpu")
    assert refit.learn_all_rows(a, 20, None) is None
    assert refit.learn_all_rows(assemble.assemble(run_of(), device="cpu"), 0, None) is None


@pytest.mark.parametrize("name", ["noam", "inverse", "cosine", "linear", "wsd", "constant"])
def test_the_rate_rises_to_the_height_of_the_run_and_ends_at_nothing(name: Any) -> None:
    s = Settings(steps=100, warmup=10, lr=0.5, schedule=name)
    highest = max(schedule.learning_rate(s, n, total=100, width=64) for n in range(1, 101))
    new = refit.plan_refit(s, 30, 64)
    rates = [schedule.learning_rate(new, n, total=30, width=64) for n in range(1, 31)]
    assert max(rates) == pytest.approx(highest)
    assert rates[-1] == 0.0


@pytest.mark.parametrize("every", [4, 5])  # the last step is evaluated, or not
def test_the_last_weights_are_kept_where_that_is_asked(every: int, tmp_path: Path) -> None:
    worse = {"lr": 3.0, "warmup": 11, "refit": 0.0, "metric": "loss", "patience": 1, "evaluate_every": every}
    best = recipes.train(run_of(**worse), out=tmp_path / "a", device="cpu").outcome
    last = recipes.train(run_of(**worse, keep="last"), out=tmp_path / "b", device="cpu")
    assert (last.outcome.weights, last.outcome.steps) == ("last", 12)
    assert last.outcome.metrics["loss"] > best.metrics["loss"], "it diverges"
    again = recipes.train(run_of(**worse, keep="last"), out=tmp_path / "b", device="cpu", resume=True)
    kept = dict(last.model.core.named_parameters())
    assert all(torch.equal(t, kept[name]) for name, t in again.model.core.named_parameters())


def test_figures_are_of_the_weights_before_and_a_resumed_run_ends_alike(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    done = recipes.train(run_of(log_every=1), out=tmp_path / "a", device="cpu", report=events.append)
    assert done.labels is not None
    assert done.labels.accuracy == pytest.approx(done.outcome.metrics["label_accuracy"], abs=1e-4)
    assert [e["step"] for e in events if e["kind"] == "step"] == list(range(1, 19)), "steps are counted on"
    before = recipes.train(run_of(refit=0.0), out=tmp_path / "b", device="cpu")
    one, two = (dict(m.core.named_parameters()) for m in (done.model, before.model))
    assert any(not torch.equal(t, two[name]) for name, t in one.items())
    assert before.outcome.metrics == done.outcome.metrics
    again = recipes.train(run_of(), out=tmp_path / "a", device="cpu", resume=True)
    assert all(torch.equal(t, one[name]) for name, t in again.model.core.named_parameters())


@pytest.mark.parametrize(("test", "order"), [((), ["judged", "learnt"]), (ROWS[:5], ["learnt", "judged"])])
def test_held_out_labels_are_scored_before_and_those_of_a_test_after(
    test: Any, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for module, name, what in ((evaluation, "score_held_labels", "judged"), (refit, "learn_all_rows", "learnt")):
        whole = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, whole=whole, what=what: [seen.append(what), whole(*a)][1])
    run = dataclasses.replace(run_of(), splits=lambda: dataclasses.replace(SPLITS, test=test))
    recipes.train(run, device="cpu")
    assert seen == order


def test_it_is_chosen_for_labels_from_nothing_of_which_many_are_held_out() -> None:
    facts = Facts("labels", "labels", 1000, 50_000, 50_000, 80, 0.0, 60, 0.2)
    chosen = {choice.key: choice.value for choice in plan(facts, {"model.family": "bert"})}
    assert chosen["training.refit"] == 0.3
    others = ((dataclasses.replace(facts, share=0.0), {}), (dataclasses.replace(facts, share=0.03), {}),
              (facts, {"base": "x", "model.width": 64}), (facts, {"training.refit": 0.0}))
    for one, said in others:
        assert "training.refit" not in {choice.key for choice in plan(one, {"model.family": "bert"} | said)}


@pytest.mark.parametrize(("seconds", "steps"), [(1300, 90), (7000, 484), (7900, 600)])
def test_the_time_that_there_is_holds_it_too(seconds: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.training.planner.time_training_step", lambda *_: 10.0)
    monkeypatch.setattr("qkv.training.planner.SURE", 0.0)
    facts = Facts("labels", "labels", 1000, 50_000, 50_000, 80, 0.0, 60, 0.2)
    given = {"model.family": "bert", "training.seconds": seconds}
    assert {choice.key: choice.value for choice in plan(facts, given)}["training.steps"] == steps


def test_text_has_no_rows_to_learn_so() -> None:
    run = dataclasses.replace(run_of(word_dropout=0.0, rare_words=0.0, metric="loss"), objective="text",
                              model=Shape("gpt2", width=16, layers=1, heads=2, context=16),
                              splits=lambda: Splits("some text " * 40, "more text " * 20))  # fmt: skip
    with pytest.raises(QkvError, match=r"training\.refit=0\.5: it works only with rows"):
        assemble.assemble(run, device="cpu")
