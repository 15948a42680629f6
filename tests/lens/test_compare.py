"""Differences of two runs by hand; a state carried over brings the donor's answer where it is all that counts."""

import math

import pytest
import torch
from support import zoo

from qkv.errors import QkvError
from qkv.lens import compare
from qkv.lens.patch import Case
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


def test_a_grafted_state_brings_the_donors_answer_an_earlier_one_does_not() -> None:
    core = zoo.made(zoo.gqa())
    donor, case = Case((), (5, 6, 7, 8, 33), 4), Case((), (20, 21, 22, 23, 33), 4)
    last = compare.graft(core, donor, case, name="layers.2.resid_out", source=3, pos=3)
    assert last.after == pytest.approx(last.donor, abs=1e-5), "the last layer's state at the last position is all"
    assert last.share == pytest.approx(1.0, abs=1e-4)
    none = compare.graft(core, donor, case, name="layers.2.resid_out", source=3, pos=1)
    assert none.after == pytest.approx(none.before, abs=1e-6), "at another position the last layer's state is unread"
    some = compare.graft(core, donor, case, name="layers.0.resid_out", source=3, pos=3)
    assert abs(some.after - some.before) > 1e-3
    assert abs(some.after - some.donor) > 1e-3
    with torch.no_grad():
        ids = torch.tensor([donor.target[:4]])
        real = core(ids).logits[0, -1].log_softmax(-1)
    assert last.donor == pytest.approx(float(real[33]), abs=1e-5)
    assert last.instead == int(real.argmax())


def test_a_graft_at_the_wrong_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = compare.put
    monkeypatch.setattr(compare, "put", lambda name, value, pos: right(name, value, pos=0))
    with pytest.raises(AssertionError):
        test_a_grafted_state_brings_the_donors_answer_an_earlier_one_does_not()
