"""The analogy lab: planted offsets are found, others are not, and what excluding the question's words does."""

import torch

from qkv.labs import analogy, lab
from qkv.labs.lab import Runs

GOOD = {"free": 0.8, "excluded": 0.95, "only_b": 0.0, "itself": 0.1, "wrong": 0.0, "untrained": 0.0,
        "large": 0.9, "large_free": 0.9, "parallel": 0.7, "parallel_wrong": 0.4}  # fmt: skip
PAIRS = list(analogy.PAIRS.items())


def word(**numbers):
    return analogy.judge(Runs(({**GOOD, **numbers},) * 3)).word


def planted(noise: float) -> torch.Tensor:
    """Random rows in which every capital is its country plus twice the same vector, plus noise."""
    luck = torch.Generator().manual_seed(0)
    table, own, (way,) = (
        torch.nn.functional.normalize(torch.randn(n, 256, generator=luck), dim=-1)
        for n in (len(analogy.WORDS), len(analogy.WORDS), 1)
    )
    for country, capital in PAIRS:
        at = analogy.WORDS.index(capital)
        table[at] = table[analogy.WORDS.index(country)] + (2 - noise) * way + noise * own[at]
    return table


def test_planted_offsets_answer_every_question():
    found = analogy.questions(planted(0.0), PAIRS)
    assert found["free"] == found["excluded"] == 1.0
    assert found["parallel"] > 0.6
    assert found["itself"] == 0


def test_under_noise_only_excluding_the_question_answers():
    found = analogy.questions(planted(1.7), PAIRS)
    assert found["excluded"] > 0.9
    assert found["free"] < 0.1
    assert found["itself"] > 0.9
    capitals = [capital for _, capital in PAIRS]
    wrong = list(zip(analogy.PAIRS, [*capitals[1:], capitals[0]], strict=True))
    assert analogy.questions(planted(1.7), wrong)["excluded"] < 0.2


def test_sayings_hold_each_country_with_its_own_capital_and_no_other():
    ids, after = analogy.draw_batch(0)
    assert ids.shape == after.shape
    for first, row in zip(ids[:, 0].tolist(), after.tolist(), strict=True):
        words = {analogy.WORDS[i] for i in (first, *row) if i >= 0}
        for country, capital in PAIRS:
            if country in words and words & set(analogy.PAIRS.values()):
                assert capital in words


def test_the_rule():
    assert word() == "shown"
    assert word(large_free=0.1) == "true only when"
    assert word(free=0.1) == "true only when"
    assert word(only_b=0.9) == "not shown"
    assert word(excluded=0.4) == "not shown"
    assert lab.judge_runs(analogy.LAB, Runs((GOOD,) * 3), 10).word == "inconclusive"
