"""The head lab: what is asked, where a made-up head looks, and the rule."""

import pytest
import torch

from qkv.core.attention import Attention
from qkv.labs import head_roles, lab
from qkv.labs.lab import Runs
from qkv.labs.tiny import Tiny, draw_repeats

ONE = {"right": 0.95, "worst": 0.5, "median": 0.1, "before": 0.9, "induction": 0.9, "named": 1.0}
GOOD = {f"{name}_{kind}": x for kind in head_roles.POSITIONS for name, x in ONE.items()}


def word(**numbers):
    return head_roles.judge(Runs(({**GOOD, **numbers},) * 3)).word


def test_what_is_asked_is_what_came_a_segment_ago():
    ids, asked = draw_repeats(0, 50)
    sizes = set()
    for row, answers in zip(ids.tolist(), asked.tolist(), strict=True):
        size = next(i for i, a in enumerate(answers) if a >= 0) + 1
        sizes.add(size)
        assert all(a == row[i + 1 - size] for i, a in enumerate(answers) if a >= 0)
        assert row[size:] == row[:-size]
    assert sizes == set(range(5, 13))


@pytest.mark.parametrize(("distance", "expected"), [(1, (1.0, 0.0)), (5, (0.0, 1.0))])
def test_a_head_that_looks_at_one_distance_is_told_by_its_score(distance, expected, monkeypatch):
    ids, asked = draw_repeats(0, 8, sizes=(6, 6))
    model = Tiny(vocabulary=16).model(0, torch.float32)
    looking = torch.zeros(2, 8, 4, 24, 24)
    for query in range(24):
        looking[..., query, max(0, query - distance)] = 1.0  # so the first ones look at 0

    class Made:
        def __enter__(self):
            return {f"layers.{i}.attn.pattern": looking[i] for i in range(2)}

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(type(model), "trace", lambda *_, **__: Made())
    before, found = head_roles.looks(model, ids, asked)
    assert before.shape == found.shape == (2, 4)
    assert (float(before.mean()), float(found.mean())) == pytest.approx(expected, abs=0.05)


def test_silencing_every_head_is_noticed(monkeypatch):
    model = Tiny(vocabulary=16).model(0, torch.float32)
    ids, asked = draw_repeats(0, 20)
    whole = head_roles.measure_accuracy(model, ids, asked, [])
    monkeypatch.setattr(Attention, "forward", lambda self, x, step: torch.zeros_like(x))
    assert head_roles.measure_accuracy(model, ids, asked, []) != whole


def test_the_rule():
    assert word() == "shown"
    assert word(named_sinusoid=0.5) == "true only when"
    assert word(worst_sinusoid=0.1) == "true only when"
    assert word(worst_sinusoid=0.1, worst_learned=0.15) == "not shown"
    assert word(median_sinusoid=0.3, median_learned=0.3) == "not shown"
    assert lab.judge_runs(head_roles.LAB, Runs((GOOD,) * 3), 10).word == "inconclusive"
