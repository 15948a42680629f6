"""What the planner chooses for data of any kind and size: it fits, it is monotone, and what a person sets is taken."""

import random
import tomllib
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.messages import Message
from qkv.training import own_data, planner, recipes, session
from qkv.training.distributed import Ranks
from qkv.training.facts import Facts, measure_data
from qkv.training.machine import time_training_step
from qkv.training.planner import plan
from qkv.training.run import Run, parse_overrides
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

KINDS = (("pairs", "pairs", "marian"), ("labels", "labels", "bert"), ("plain text", "text", "gpt2"),
         ("conversations", "chat", "gpt2"), ("plain text", "masked", "bert"), ("token shards", "text", "llama"))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "time_training_step", lambda *_: 0.1)


def choose(facts: Facts, family: str, **given: Any) -> dict[str, Any]:
    said = {"model.family": family} | {key.replace("__", "."): value for key, value in given.items()}
    return said | {choice.key: choice.value for choice in plan(facts, said)}


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(KINDS), st.integers(1, 10_000_000), st.integers(3, 400), st.floats(0, 1), st.integers(1, 8000))
def test_a_plan_fits_any_data(kind: tuple[str, str, str], rows: int, each: int, unspaced: float, alphabet: int) -> None:
    facts = Facts(kind[0], kind[1], rows, rows * each, rows * each // 2 + 1, alphabet, unspaced, each)
    found = choose(facts, kind[2])
    assert 1 <= found["training.warmup"] <= max(1, 0.1 * found["training.steps"])  # it never ends in its warm-up
    assert 1 <= found["training.evaluate_every"] <= found["training.steps"]
    assert found["model.width"] % found["model.heads"] == 0
    assert found["training.steps"] <= 12_000 or 6e-9 * found["training.steps"] < planner.LONGEST


@pytest.mark.parametrize(("kind", "objective", "family"), KINDS)
def test_what_a_person_sets_is_taken_and_the_rest_fits_itself(kind: str, objective: str, family: str) -> None:
    facts = Facts(kind, objective, 1000, 50_000, 25_000, 80, 0.0, 60)
    found = choose(facts, family, training__steps=50, model__width=96, training__lr=0.5)
    assert (found["training.steps"], found["model.width"], found["training.lr"]) == (50, 96, 0.5)
    assert (found["training.warmup"], found["training.evaluate_every"]) == (3, 5)
    assert "training.steps" not in {c.key for c in plan(facts, {"model.family": family, "training.epochs": 2})}


def test_a_vocabulary_of_words_learns_what_an_unknown_one_means() -> None:
    facts = Facts("labels", "labels", 1000, 50_000, 50_000, 80, 0.0, 60)
    assert choose(facts, "bert")["training.rare_words"] == 1.0
    for other in ({"tokenizer__kind": "bpe"}, {"tokenizer__of": "demo"}, {"base": "demo-bert"}):  # these know all text
        assert "training.rare_words" not in choose(facts, "bert", **other)


@pytest.mark.parametrize(("kind", "family"), [("labels", "bert"), ("pairs", "marian")])
@pytest.mark.parametrize("unspaced", [0.0, 0.5])
def test_rows_of_single_words_are_learnt_letter_by_letter(kind: str, family: str, unspaced: float) -> None:
    facts = Facts(kind, kind, 3000, 30_000, 15_000, 60, unspaced, 9, recurring=0.1)
    found, usual = choose(facts, family), choose(replace(facts, recurring=0.4), family)  # as a hundred sentences have
    assert (found["tokenizer.kind"], usual["tokenizer.kind"] == "char") == ("char", kind == "labels" and unspaced > 0.2)
    assert found.get("tokenizer.bigrams", False) is (kind == "labels" and not unspaced)
    assert found["training.steps"] > usual["training.steps"] or unspaced
    assert choose(facts, family, tokenizer__kind="bpe")["tokenizer.kind"] == "bpe"
    assert found["model.dropout"] == 0.1 < usual["model.dropout"]
    if kind == "labels":
        assert [found[key] for key in ("model.layers", "training.optimizer", "training.lr")] == [2, "muon", 0.005]
        few = choose(replace(facts, rows=199), family)
        assert [few[key] for key in ("model.layers", "training.optimizer")] == [1, "adamw"]
        assert few["training.steps"] >= 1500


def test_labels_of_few_words_that_all_recur_go_by_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "time_training_step", lambda *args, **more: 0.01)
    facts = Facts("labels", "labels", 1000, 50_000, 50_000, 30, 0.0, 60)
    natural, ordered = (choose(replace(facts, once=once), "bert") for once in (0.1, 0.09))
    assert (natural["model.layers"], natural["model.dropout"], natural["training.word_dropout"]) == (1, 0.7, 0.2)
    assert (ordered["model.width"], ordered["model.layers"], ordered["model.dropout"]) == (128, 2, 0.1)
    rates = "training.optimizer", "training.lr"
    assert [ordered[key] for key in rates] == ["muon", 0.005] != [natural[key] for key in rates]
    assert "training.word_dropout" not in ordered
    few = choose(replace(facts, once=0.09, rows=199), "bert")
    assert [few[key] for key in ("model.width", "model.dropout", *rates)] == [128, 0.3, "adamw", 0.002]
    assert "training.word_dropout" not in few
    assert ordered["training.steps"] > natural["training.steps"]
    assert choose(replace(facts, once=0.0, objective="similarity"), "bert")["model.layers"] == 1


@pytest.mark.parametrize("objective", ["labels", "pairs"])
def test_measuring_long_chinese_texts_holds_no_list_of_their_characters(objective: str) -> None:
    text = "".join(chr(0x4E00 + n) for n in range(2000))
    rows = [(text, text)] * 100
    tracemalloc.start()
    measure_data(Splits(list(rows), []), objective)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 100 * len(text) * (1 + (objective == "pairs")), "a text takes 2 bytes a character, a list 80"


def test_words_that_occur_once_are_counted_in_every_script() -> None:
    def once(*texts: str, objective: str = "labels") -> float:
        rows = [(text, "a") for text in texts]
        return measure_data(Splits(rows, rows), objective).once

    assert once("the cat bit the dog", "the dog bit a cat") == 0.2  # one of five
    assert once("猫咬了狗", "狗咬猫") == 0.25
    assert once("") == 1.0
    assert once("the cat", "the cat", objective="pairs") == 1.0  # nobody asks


def test_what_bleu_cannot_judge_is_judged_by_how_many_are_right() -> None:
    facts = Facts("pairs", "pairs", 3000, 90_000, 45_000, 60, 0.0, 20)
    assert choose(replace(facts, metric="exact_match"), "marian")["training.metric"] == "exact_match"
    assert choose(facts, "marian")["training.metric"] == "bleu"

    def metric(*rows: tuple[str, str]) -> str:
        return measure_data(Splits(list(rows), []), "pairs").metric

    assert metric(("how much is 1 and 2", "3"), ("我爱你呀", "我爱你呀!吗")) == "exact_match"  # 1 and 6 words
    assert metric(("how much is 1 and 2", "3"), ("我爱你", "我爱你!吗么好")) == "bleu"  # 1 and 7
    assert metric(("我们爱学习", "我们 爱 学习"), ("他来了吗", "他 来 了 吗")) == "exact_match"  # only spaces
    assert metric(("我们爱学习", "我们 爱 学习"), ("他来了吗", "did he come ?")) == "bleu"  # as many others
    assert metric(("thedogbarks at him", "the dog barks at him")) == "bleu"  # which sees English words
    rows = [("to be or not to be", "yes")]
    assert measure_data(Splits(rows, rows), "labels").metric == "bleu"  # they have no targets


def test_how_many_words_come_again_is_told_of_the_side_where_fewer_do() -> None:
    def measured(rows: list[tuple[str, str]]) -> float:
        return measure_data(Splits(rows, rows), "pairs").recurring

    assert measured([("a b", "x"), ("b c", "x")]) == 0.5  # b twice of four words; of the targets all
    assert measured([("x", "a b"), ("x", "b c")]) == 0.5
    assert measured([("我爱学习", "x"), ("他爱学习", "x")]) == 1.0  # no spaces say where words end


def test_short_rows_are_read_as_often_as_long_ones() -> None:
    """Rows are rounded up to four tokens with their end, and steps that do not count that are too few by half."""
    short = Facts("pairs", "pairs", 5000, 40_000, 20_000, 60, 0.0, 4)
    steps = choose(short, "marian", tokenizer__kind="char", training__seconds=1e9)["training.steps"]
    epoch = 5000 * 8 / 1024  # four letters and an end are a row of eight tokens
    assert 0.75 * 42 <= steps / epoch <= 42.5  # 80 times for 200 rows, fewer for more
    longer = replace(short, characters=120_000)  # 20 letters and an end are 24 tokens, whatever the targets have
    steps = choose(longer, "marian", tokenizer__kind="char", training__seconds=1e9)["training.steps"]
    assert 0.75 * 42 <= steps / (3 * epoch) <= 42.5


def test_steps_are_timed_as_large_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[tuple[int, tuple[int, int]]] = []

    def note(spec: Any, optimizer: str, rows: int, lengths: tuple[int, int], least: float = 0.0) -> float:
        timed.append((rows, lengths))
        return 0.01

    monkeypatch.setattr(planner, "time_training_step", note)
    articles = Facts("pairs", "pairs", 2000, 2000 * 240, 2000 * 40, 80, 0.0, 250)  # and their headlines
    choose(articles, "marian", tokenizer__kind="char")
    assert set(timed) == {(5, (204, 44))}  # 200 letters and an end: five rows are what 1,024 tokens hold
    timed.clear()
    choose(replace(articles, characters=2000 * 44_000), "marian", tokenizer__kind="char")
    assert {lengths for _, lengths in timed} == {(256, 44)}  # longer ones are left out
    timed.clear()
    nothing = Facts("pairs", "pairs", 0, 0, 0, 0, 0.0, 0)  # which training refuses by name
    choose(nothing, "marian", training__seconds=1e-3)
    assert {lengths for _, lengths in timed} == {(4, 4)}


def test_a_model_of_pairs_has_room_for_long_ones() -> None:
    def context(longest: int) -> int:
        facts = Facts("pairs", "pairs", 800, 800 * longest, 800 * 40, 80, 0.0, longest)
        return choose(facts, "marian", tokenizer__kind="char").get("model.context", 256)

    assert (context(240), context(700), context(5000)) == (256, 712, 1024)  # of 1,024 tokens in a step
    for rows in ([("word " * 60, "short")] * 5, [("short", "word " * 60)] * 5):
        assert measure_data(Splits(rows, rows), "pairs").longest == 300  # of the longer side, whichever it is


def test_many_longer_texts_with_labels_are_learnt_by_a_wide_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "time_training_step", lambda *args, **more: 0.01)

    def planned(rows: int, letters: int, unspaced: float = 0.0, **more: Any) -> dict[str, Any]:
        count = rows * letters
        return choose(Facts("labels", "labels", rows, count, count, 80, unspaced, 2 * letters), "bert", **more)

    wide, narrow = planned(2000, 60), planned(2000, 20)
    assert (wide["model.width"], wide["training.lr"], wide["model.dropout"]) == (256, 0.0007, 0.7)
    assert (narrow["model.width"], narrow["training.lr"], narrow["model.dropout"]) == (64, 0.002, 0.5)
    for other in (planned(900, 60), planned(2000, 60, 0.9), planned(2000, 60, training__seconds=5)):
        assert other["model.width"] == 64
    assert planned(900, 60, model__width=256)["training.lr"] == 0.0007, "the rate goes with the width that is set"


def test_chinese_labels_are_read_by_bigrams_and_longer() -> None:
    def planned(unspaced: float, size: int = 100_000, **more: Any) -> dict[str, Any]:
        return choose(Facts("labels", "labels", 1000, size, size, 2000, unspaced, 60), "bert", **more)

    chinese, english = planned(0.9), planned(0.0)
    assert chinese["tokenizer.bigrams"] is True
    assert chinese["tokenizer.size"] > 10_000 > planned(0.9, tokenizer__bigrams=False)["tokenizer.size"]
    assert planned(0.9, 30_000, tokenizer__bigrams=True)["tokenizer.size"] > 10_000, "room for them"
    assert "tokenizer.bigrams" not in english | planned(0.9, 30_000)
    assert planned(0.9, 30_000)["training.steps"] > 2 * planned(0.0, 30_000)["training.steps"]
    for other in ({"tokenizer__kind": "bpe"}, {"tokenizer__of": "demo"}, {"base": "demo-bert"}):
        assert "tokenizer.bigrams" not in planned(0.9, **other)


def test_adapters_read_few_conversations_often() -> None:
    def planned(rows: int, **more: Any) -> dict[str, Any]:
        facts = Facts("conversations", "chat", rows, 80 * rows, 80 * rows, 60, 0.0, 60, share=0.1)
        return choose(facts, "llama", base="m", **more)

    rows = (50, 250, 1_900, 20_000)
    adapted, whole = ([planned(n, **more) for n in rows] for more in ({"training__lora__rank": 8}, {}))
    steps = [one["training.steps"] for one in adapted]
    assert steps == sorted(steps)
    assert steps[1] >= 2 * whole[1]["training.steps"]
    assert steps[3] == whole[3]["training.steps"]  # so many are read five times by either
    assert [one.get("training.keep") for one in adapted] == ["last", "last", "last", None]
    assert all("training.keep" not in one and "training.refit" not in one for one in whole)
    assert adapted[0]["training.refit"] == 0.4  # those held out are learnt too


def test_adapters_may_be_asked_for_by_their_short_name() -> None:
    found = parse_overrides(["lora.rank=8", "training.lora.alpha=16"])
    assert found == {"training": {"lora": {"rank": 8, "alpha": 16}}}


@pytest.mark.parametrize("kind", ["pairs", "plain text", "conversations"])
def test_dropout_is_for_what_is_read_often(kind: str) -> None:
    def found(passes: float, family: str = "bart") -> dict[str, Any]:
        facts = Facts(kind, "denoise", 1000, 100_000, 50_000, 70, 0.0, 60)
        return choose(facts, family, training__epochs=passes)

    rates = [found(passes)["model.dropout"] for passes in (1, 4, 10, 20, 80)]
    assert (rates[0], rates[-1]) == (0.0, 0.2)
    assert rates == sorted(rates)
    assert "model.dropout" not in found(80, "llama")


def test_windows_of_short_texts_are_short() -> None:
    def found(characters: int) -> dict[str, Any]:
        return choose(Facts("plain text", "text", characters // 64, characters, characters, 70, 0.0, 0), "gpt2",
                      training__steps=100)

    assert [found(n).get("model.context") for n in (100_000, 1_000_000, 10_000_000)] == [128, 128, None]


def test_a_model_is_as_large_as_there_is_time_to_teach(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_step(spec: Any, *_: Any) -> float:
        return len(spec.stack.blocks) * spec.stack.width**2 / 1e6

    monkeypatch.setattr(planner, "time_training_step", time_step)
    large = Facts("pairs", "pairs", 140_000, 30_000_000, 15_000_000, 90, 0.0, 300)
    found = [choose(large, "marian", training__seconds=seconds) for seconds in (5, 30, 100, 1000, 10_000)]
    sizes = [(one["model.width"], one["model.layers"]) for one in found]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == ((64, 2), (256, 4))
    assert len(set(sizes)) >= 4
    mine = choose(large, "marian", training__seconds=5, model__layers=6)
    assert (mine["model.width"], mine["model.layers"]) == (256, 6)
    endless = choose(large, "marian", training__steps=200_000)
    assert (endless["model.width"], endless["model.layers"]) == (256, 4)


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 5), (5.0, 20)])
def test_steps_are_timed_for_as_long_as_is_wanted(monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int) -> None:
    spec, ticks = Shape("gpt2", width=8, layers=1, heads=1).spec(20), list[float]()

    def tick() -> float:
        ticks.append(0.25 * len(ticks))
        return ticks[-1]

    monkeypatch.setattr("qkv.training.machine.time.perf_counter", tick)
    assert time_training_step(spec, "adamw", 2, (0, 4), seconds) == 0.25
    assert len(ticks) == 2 * steps  # one before each step, one after


def test_few_labelled_rows_make_as_many_steps_as_learn_them() -> None:
    facts = Facts("labels", "labels", 200, 10_000, 10_000, 80, 0.0, 60)
    assert choose(facts, "bert")["training.steps"] == 600


def test_a_width_fits_given_heads_and_no_vocabulary_is_chosen_twice() -> None:
    facts = Facts("pairs", "pairs", 1000, 50_000, 25_000, 80, 0.0, 60)
    found = choose(facts, "marian", model__heads=3, tokenizer__of="demo")
    assert found["model.width"] % 6 == 0
    assert {"tokenizer.kind", "tokenizer.size"} & found.keys() == set()


def test_processes_take_the_numbers_of_the_first() -> None:
    class Second(Ranks):
        def broadcast_numbers(self, *numbers: float) -> list[float]:
            return [10 * n for n in numbers]

    timed = ("model.width", "model.dropout", "training.steps", "training.warmup")
    choices = tuple(planner.Choice(key, 0, Message("")) for key in (*timed, "training.lr"))
    run = Run("r", lambda: Splits("", ""), Shape(width=12, dropout=0.01), training=Settings(steps=7, warmup=3, lr=0.1),
              choices=choices)
    shared = session.share_choices(run, Second(1, 2))
    assert (shared.training.steps, shared.training.warmup, shared.training.lr) == (70, 30, 0.1)
    assert (shared.model.width, shared.model.dropout) == (120, 0.1)


def test_the_time_that_there_is_bounds_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "time_training_step", lambda *_: 0.5)
    large = Facts("pairs", "pairs", 140_000, 20_000_000, 10_000_000, 90, 0.0, 300)
    assert choose(large, "marian", training__seconds=100)["training.steps"] == 180
    assert choose(large, "marian")["training.steps"] == 2160


def test_facts_are_those_of_all_rows() -> None:
    rows = [("我爱学习", "I love it"), ("书", "a book"), ("她走了", "she left")] * 20
    facts = measure_data(Splits(rows, rows[:3]), "pairs")
    assert (facts.rows, facts.characters, facts.letters) == (60, 20 * (8 + 23), 20 * 23)
    assert 0.2 < facts.unspaced < 0.3
    labelled = measure_data(Splits([(text, "yes") for text, _ in rows], []), "labels")
    assert (labelled.kind, labelled.characters, labelled.unspaced) == ("labels", 160, 1.0)
    assert measure_data(Splits([], []), "pairs").rows == 0


def test_what_is_printed_gives_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(3)
    lines = [f"{''.join(map(draw.choice, ('猫狗鸟', '吃喝看', '书茶饭')))}\t{n} words here" for n in range(60)]
    Path("pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = recipes.configure("pairs.tsv", ["training.lr=0.004"])
    text = own_data.write_toml(run)
    Path("mine.toml").write_text(text, encoding="utf-8")
    again = recipes.configure("mine.toml")
    assert (again.model, again.tokenizer, again.training) == (run.model, run.tokenizer, run.training)
    assert tomllib.loads(text)["training"]["lr"] == 0.004
    assert run.tokenizer.kind == "bpe-cjk"
    assert {choice.key for choice in again.choices} <= {"training.patience"}


@pytest.mark.parametrize(("width", "lr"), [(128, 1e-3), (384, 2e-4)])
def test_labels_of_a_trained_model_get_all_of_a_short_schedule(width: int, lr: float) -> None:
    few = Facts("labels", "labels", 160, 9_000, 9_000, 70, 0.0, 90)
    found = choose(few, "bert", base="x", model__width=width)
    assert (found["training.lr"], found["training.steps"]) == (lr, 120)
    assert found["training.patience"] * found["training.evaluate_every"] >= found["training.steps"]
    assert not any(key.startswith(("model.dropout", "tokenizer")) for key in found)
