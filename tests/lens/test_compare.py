"""Differences of two runs equal those computed by hand."""

import math

import pytest
import torch
from support import zoo

from qkv.errors import QkvError
from qkv.lens.compare import find_differences
from qkv.lens.trace import Trace

A, B = [5, 6, 7, 8, 9], [5, 6, 30, 31, 8, 9]


@torch.no_grad()
def traced(core, ids: list[int]) -> Trace:
    with Trace(core, save=["diff"]) as t:
        core(torch.tensor([ids]))
    return t


def test_two_texts_are_paired_by_tokens_and_part_where_they_first_differ() -> None:
    core = zoo.made(zoo.gqa())
    a, b = traced(core, A), traced(core, B)
    found = a.diff(b)
    assert found.pairs == ((0, 0), (1, 1), (3, 4), (4, 5))
    assert (found.distance[:, :2] < 1e-6).all(), "what comes before the difference is the same"
    assert (found.distance[1:, 2:] > 1e-3).all()
    for n, (i, j) in enumerate(found.pairs):
        for layer, tap in enumerate(found.names):
            x, y = a[tap][0, i].tolist(), b[tap][0, j].tolist()
            gap = math.dist(x, y) / math.hypot(*y)
            assert float(found.distance[layer, n]) == pytest.approx(gap, abs=1e-5)
        p, q = (t["logits"][0, k].softmax(-1).tolist() for t, k in ((a, i), (b, j)))
        slow = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
        assert float(found.divergence[n]) == pytest.approx(slow, abs=1e-5)
    with pytest.raises(QkvError, match="no token in common"):
        a.diff(traced(core, [40, 41]))
    with pytest.raises(QkvError, match="different models"):
        a.diff(traced(zoo.made(zoo.learned()), A))


def test_where_two_texts_differ_stands_side_by_side() -> None:
    a, b = ["I", "read", "the", "old", "book"], ["I", "drank", "the", "tea"]
    assert [(a[i], b[j]) for i, j in find_differences(a, b)] == [(["read"], ["drank"]), (["old", "book"], ["tea"])]
    assert find_differences(a, a) == []
    assert [(a[i], a[:2][j]) for i, j in find_differences(a, a[:2])] == [(["the", "old", "book"], [])]
