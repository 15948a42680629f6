"""The one-character lab: kinds that are told apart when planted, rows counted as moved, and the rule."""

import random
from collections import Counter

import torch

from qkv.data.corpus import load_corpus
from qkv.labs import lab, one_character
from qkv.labs.lab import Runs
from qkv.labs.tiny import Tiny

LETTERS = ["␀", *sorted(c for group in one_character.KINDS for c in group)]
GOOD = {"alike_first": 0.2, "alike_last": 0.7, "one": 2.0, "often": 2.0, "rare": 0.5, "idle": 1.0}


def word(**numbers):
    return one_character.judge(Runs(({**GOOD, **numbers},) * 3)).word


def test_planted_kinds_are_alike_and_random_rows_are_not():
    centres = torch.eye(len(one_character.KINDS))
    noise = 0.1 * torch.randn(len(LETTERS), len(centres), generator=torch.Generator().manual_seed(0))
    kinds = {c: n for n, group in enumerate(one_character.KINDS) for c in group}
    table = torch.stack([centres[kinds.get(c, 0)] for c in LETTERS]) + noise
    assert one_character.measure_likeness(table, LETTERS) > 0.95
    chances = [
        one_character.measure_likeness(torch.randn(len(LETTERS), 32, generator=luck), LETTERS)
        for luck in (torch.Generator().manual_seed(n) for n in range(5))
    ]
    assert 0.1 < sum(chances) / 5 < 0.35


def test_no_character_is_of_two_kinds_and_all_are_in_the_corpus():
    counts = Counter(c for pair in load_corpus().small for c in pair.zh)
    every = "".join(one_character.KINDS)
    assert len(set(every)) == len(every)
    assert all(counts[c] > 0 for c in every)
    assert counts[one_character.ONE] > 100


def test_a_row_that_a_step_did_not_meet_is_counted_when_it_moves():
    model = Tiny(layers=1, width=8, heads=2, vocabulary=4).model(0, torch.float32)
    path = one_character.Path(model, ["甲乙", "甲乙甲"], ["␀", "甲", "乙", "丙"], 0)
    path.luck = random.Random(0)
    path.batch(0)
    path.ever[3] = True  # as if 丙 had come before
    with torch.no_grad():
        path.table[1:3] += 1
    path.batch(1)
    assert path.moved == 0
    with torch.no_grad():
        path.table[3] += 1
    path.batch(2)
    assert path.moved == 1
    assert path.absent >= 2


def test_the_rule():
    assert word() == "true only when"
    assert word(idle=0.0, rare=1.5) == "shown"
    assert word(alike_last=0.3) == "not shown"
    assert lab.judge_runs(one_character.LAB, Runs((GOOD,) * 3), 10).word == "inconclusive"
