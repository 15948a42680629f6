"""The Susan lab: two people and their names, slots that hold what they are called, and the rule."""

import torch

from qkv.labs import lab, susan
from qkv.labs.lab import Runs
from qkv.labs.tiny import Tiny

GOOD = {"right": 1.0, "look_my": 0.2, "look_is": 0.9, "cut_my": 0.3, "cut_is": 0.1, "cut_both": 0.1, "cut_control": 1.0}


def word(**numbers):
    return susan.judge(Runs(({**GOOD, **numbers},) * 3)).word


def test_every_is_is_asked_for_the_name_of_whom_it_means():
    for ids, asked in zip(*susan.draw_batch(0), strict=True):
        words = [susan.WORDS[i] for i in ids]
        people = {"my": words[words.index("I'm") + 1], "his": words[words.index("he's") + 1]}
        places = [i for i, w in enumerate(words) if w == "is"]
        assert len(places) == 2
        assert {i for i, a in enumerate(asked.tolist()) if a >= 0} == set(places)
        for at in places:
            assert susan.WORDS[asked[at]] == people[words[at - 2]]


def test_the_slots_hold_what_they_are_called():
    ids, me, him = susan.questions()
    words = [susan.WORDS[i] for i in ids[0]]
    assert (words[susan.SELF - 1], words[susan.OTHER - 1], words[susan.MY], words[susan.IS]) == (
        "I'm",
        "he's",
        "my",
        "is",
    )
    assert len(words) == susan.IS + 1
    assert bool((me != him).all())
    assert len(ids) == 8 * 7


def test_a_cut_changes_what_is_read_at_its_query_alone():
    model = Tiny(layers=2, width=48, vocabulary=len(susan.WORDS), context=24).model(0, torch.float32)
    ids = susan.questions()[0]
    names = ["layers.0.attn.z"]
    with model.trace(save=names) as whole, torch.no_grad():
        model(ids)
    with model.trace(save=names, edit=susan.CUTS["my"]) as cut, torch.no_grad():
        model(ids)
    changed = (whole[names[0]] - cut[names[0]]).abs().amax((0, 1, 3)) > 1e-6
    assert changed.nonzero().flatten().tolist() == [susan.MY]


def test_the_rule():
    assert word() == "shown"
    assert word(cut_my=0.8) == "true only when"
    assert word(cut_my=1.0) == "refuted"
    assert word(right=0.5) == "not shown"
    assert word(cut_control=0.2) == "not shown"
    assert lab.judge_runs(susan.LAB, Runs((GOOD,) * 3), 10).word == "inconclusive"
