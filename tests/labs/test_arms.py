"""What the races between architectures stand on: true pairs, the same words for each shape, verdicts that can flip."""

import random
from importlib import import_module
from typing import Any

import pytest
import torch

from qkv import labs
from qkv.baselines.lstm import LSTMDecoder
from qkv.labs import arms, lab
from qkv.labs.lab import Runs

SHAPES: tuple[Any, ...] = ("lstm", "attention", "transformer", "causal", "prefix")
RACES = ("bahdanau", "exposure-bias", "long-recall", "question-order", "three-shapes")
ENGLISH = {**arms.TIMES, **arms.KINDS, **arms.THINGS, "，": ",", "会": "will"}


@pytest.mark.parametrize("seed", range(5))
def test_each_english_word_comes_from_its_chinese_one(seed: int) -> None:
    said = arms.sentence(random.Random(seed), 3)
    for word, place in zip(said.en, said.origin, strict=True):
        zh = said.zh[place]
        known = [ENGLISH.get(zh, ""), *arms.PEOPLE.get(zh, "").split(), *arms.VERBS.get(zh, ())]
        assert word in known
    tomorrow = ["明天" in clause for clause in " ".join(said.zh).split("，")]
    assert tomorrow == ["will" in clause for clause in " ".join(said.en).split(" , ")]


def small(shape: Any, seed: int = 0) -> Any:
    return arms.arm(shape, vocabulary=len(arms.dictionary()), width=16, layers=1, seed=seed)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_shape_writes_is_what_it_guesses_behind_its_own_words(shape: Any) -> None:
    model, rows = small(shape), arms.pairs(1, 4, (1, 2))
    for (source, _), said in zip(rows, arms.generate_rows(model, shape, rows), strict=True):
        said = said[:12]
        batch = arms.make_batch(shape, [(source, said)])
        if batch.source is not None:
            logits = model(source=batch.source, target=batch.target).logits
        else:
            logits = model(batch.target, prefix=batch.prefix if shape == "prefix" else None).logits
        logits[..., [arms.PAD, arms.START]] = -torch.inf
        assert logits.argmax(-1)[batch.labels != -100].tolist() == said


def test_a_writer_that_forgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LSTMDecoder.unroll

    def write(self: LSTMDecoder, x: torch.Tensor, state: Any, step: Any) -> Any:
        states, pattern, _ = whole(self, x, state, step)
        return states, pattern, tuple(-part for part in state)

    monkeypatch.setattr(LSTMDecoder, "unroll", write)
    with pytest.raises(AssertionError):
        test_what_a_shape_writes_is_what_it_guesses_behind_its_own_words("attention")


def test_scores_count_places_and_whole_sentences() -> None:
    rows = [([9, 2], [4, 5, 6, 2]), ([9, 2], [4, 2])]
    assert arms.words_right([[4, 6, 6, 2], [4, 2, 7]], rows) == pytest.approx(5 / 6)
    assert arms.whole_right([[4, 5, 6, 2], [4]], rows) == 0.5


@pytest.fixture(scope="module", params=RACES)
def raced(request: pytest.FixtureRequest) -> tuple[str, lab.Result]:
    module = import_module(f"qkv.labs.{request.param.replace('-', '_')}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TEST", 3)
        return request.param, lab.perform(request.param, module.LAB, seeds=(0,), steps=2)


def test_two_steps_say_nothing(raced: tuple[str, lab.Result]) -> None:
    assert raced[1].verdict.word == "inconclusive"


def test_the_committed_result_has_the_same_numbers(raced: tuple[str, lab.Result]) -> None:
    name, result = raced
    kept = labs.load_result(name)
    if kept is None:
        pytest.skip(f"no committed result of {name} yet")
    found = labs.find_lab(name)
    assert len(kept["numbers"]) >= found.seeds
    assert kept["steps"] == found.steps
    assert kept["numbers"][0].keys() == result.numbers[0].keys()
    assert found.judge(Runs(tuple(kept["numbers"]))).word == kept["verdict"]


def flipped(name: str, **changes: Any) -> str:
    """The verdict of the committed numbers after some of them were changed."""
    kept = labs.load_result(name)
    if kept is None:
        pytest.skip(f"no committed result of {name} yet")
    return labs.find_lab(name).judge(Runs(tuple({**row, **changes} for row in kept["numbers"]))).word


def test_verdicts_follow_the_numbers() -> None:
    assert flipped("bahdanau", attention_3=0.5, lstm_3=0.5) == "not shown"
    assert flipped("bahdanau", attention_3=1.0, lstm_3=0.4, attention_5=1.0) == "shown"
    assert flipped("exposure-bias", plain_half_true=0.9, plain_half_own=0.9) == "not shown"
    assert flipped("long-recall", lstm_20=1.0) == "not shown"
    assert flipped("question-order", first=1.0, last=0.5) == "shown"
    assert flipped("question-order", first=1.0, last=1.0) == "refuted"
    assert flipped("question-order", first=0.6, last=0.58) == "not shown"
    best = {"transformer_whole": 1.0, "causal_whole": 0.5, "prefix_whole": 0.5, "encoder": 1.0, "shown": 0.4}
    assert flipped("three-shapes", **best) == "shown"
