"""The 苹果 lab: its corpus keeps its promises, a hint behind changes nothing in a causal model alone, the rule."""

from dataclasses import replace

import pytest
import torch

from qkv.labs import apple, lab
from qkv.labs.lab import Runs
from qkv.labs.tiny import Tiny

GOOD = {
    "alike_first": 1.0,
    "lean_tech": 0.9,
    "lean_food": -0.9,
    "right": 1.0,
    "cut_hint": 0.5,
    "cut_control": 1.0,
    "later": 0.0,
}


def word(**numbers):
    return apple.judge(Runs(({**GOOD, **numbers},) * 3)).word


def test_apple_never_meets_the_carrier_that_it_is_tested_in():
    held, seen, names = apple.CARRIERS[-1][0], 0, {n: kind for kind in (0, 1) for n in apple.NAMES[kind]}
    for seed in range(20):
        ids, after = apple.draw_batch(seed)
        for row, said in zip(ids.tolist(), after.tolist(), strict=True):
            words = [apple.WORDS[i] for i in row]
            assert said[:-1] == row[1:]
            assert not (words[apple.AT] == "苹果" and words[0] == held)
            seen += words[apple.AT] == "苹果"
            kinds = [kind for kind in (0, 1) if words[4] in apple.NEXT[kind]]
            hints = [kind for kind in (0, 1) if words[1] in apple.HINTS[kind]]
            assert hints in ([], kinds)
            assert names.get(words[apple.AT], kinds[0]) == kinds[0]
    assert seen > 200


@pytest.mark.parametrize(("mask", "still"), [("causal", True), ("full", False)])
def test_a_hint_behind_moves_nothing_under_a_causal_mask_alone(mask, still):
    model = Tiny(mask=mask, vocabulary=len(apple.WORDS), context=8).model(0, torch.float32)
    first, second = (apple.states(model, [f"{apple.PLAIN} 苹果 {hint}"]) for hint in ("手机", "果汁"))
    assert bool((first == second).all()) == still


def test_the_rule():
    assert word() == "true only when"
    assert word(later=0.1) == "shown"
    assert word(lean_food=-0.1) == "not shown"
    assert word(cut_hint=0.9) == "not shown"
    assert word(cut_control=0.5) == "not shown"
    assert lab.judge_runs(apple.LAB, Runs((GOOD,) * 3), 10).word == "inconclusive"
    assert lab.judge_runs(replace(apple.LAB, seeds=4), Runs((GOOD,) * 3), 300).word == "inconclusive"
