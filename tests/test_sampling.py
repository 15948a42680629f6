"""Distributions against filters written plainly, and draws against the distribution that they come from."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import sampling
from qkv.adapt import native
from qkv.errors import QkvError
from qkv.generation import candidates
from qkv.sampling import Sampling, distribution, draw, uniform

kernels = [candidates.select_top] if native.library() else []


def plainly(logits: list[float], s: Sampling) -> list[float]:
    """One row, with loops: temperature, top-k, top-p, min-p."""
    high = max(logits)
    probs = {i: math.exp((x - high) / s.temperature) for i, x in enumerate(logits)}
    order = sorted(probs, key=lambda i: -probs[i])
    if s.top_k is not None:
        order = order[: s.top_k]
    total = sum(probs[i] for i in order)
    if s.top_p is not None:
        kept, mass = [], 0.0
        for i in order:
            if mass < s.top_p:
                kept.append(i)
                mass += probs[i] / total
        order = kept
    if s.min_p is not None:
        order = [i for i in order if probs[i] >= s.min_p * probs[order[0]]]
    total = sum(probs[i] for i in order)
    return [probs[i] / total if i in order else 0.0 for i in range(len(logits))]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0.1, 3.0),
    st.none() | st.integers(1, 30),
    st.none() | st.floats(0.05, 1.0),
    st.none() | st.floats(0.0, 1.0),
)
def test_every_filter_equals_the_plain_loops(seed, temperature, top_k, top_p, min_p):
    logits = torch.randn(3, 23, generator=torch.Generator().manual_seed(seed)) * 2
    s = Sampling(temperature, top_k, top_p, min_p)
    found = distribution(logits, s)
    for row, probs in zip(logits.tolist(), found.tolist(), strict=True):
        assert probs == pytest.approx(plainly(row, s), abs=2e-6)


def test_a_wide_nucleus_over_a_large_vocabulary_is_not_cut_short():
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(1)) * 0.1
    kept = (distribution(logits, Sampling(1.0, top_p=0.9)) > 0).sum(-1)
    assert (kept > 4000).all()
    assert (distribution(logits * 100, Sampling(1.0, top_p=0.9)) > 0).sum(-1).max() < 200


def test_temperature_zero_takes_the_likeliest():
    probs = distribution(torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]]), Sampling())
    assert probs.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert draw(probs, [1, 2], [0, 0]).tolist() == [1, 0]


def test_a_tiny_temperature_does_not_overflow():
    probs = distribution(torch.tensor([[500.0, 499.0, -math.inf]]), Sampling(1e-38))
    assert probs.tolist() == [[1, 0, 0]]


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """How far counts are from what the probabilities expect, in standard deviations of chi-square."""
    expected = probs * counts.sum()
    freedom = len(probs) - 1
    return (((counts - expected) ** 2 / expected).sum().item() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_follow_the_distribution(along):
    probs = distribution(torch.randn(1, 12, generator=torch.Generator().manual_seed(3)), Sampling(1.0))
    n = 6000
    varied, fixed = list(range(n)), [7] * n
    seeds, positions = (fixed, varied) if along == "positions" else (varied, fixed)
    ids = draw(probs.expand(n, -1), seeds, positions)
    counts = torch.bincount(ids, minlength=12).double()
    assert abs(chi_square(counts, probs[0].double())) < 4
    # deliberate fault: the test must see a distribution that is a little warmer
    warmer = distribution(probs.log(), Sampling(1.3))
    assert abs(chi_square(counts, warmer[0].double())) > 10


def test_neighbouring_numbers_are_not_related():
    u = torch.tensor([[uniform(s, p) for p in range(200)] for s in range(50)], dtype=torch.float64)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01
    for a, b in ((u[:, 1:], u[:, :-1]), (u[1:], u[:-1])):
        assert abs(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]) < 0.04


def test_a_draw_never_lands_on_an_impossible_token():
    probs = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    ids = draw(probs.expand(4000, -1), [0] * 4000, range(4000))
    assert set(ids.tolist()) == {1, 3}


def test_neighbours_do_not_change_a_draw():
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(5))
    probs = distribution(logits, Sampling(1.0))
    together = draw(probs, [9, 8, 7, 6, 5, 4], [0, 1, 2, 3, 4, 5]).tolist()
    alone = [draw(probs[i : i + 1], [9 - i], [i]).item() for i in range(6)]
    assert together == alone


def test_each_copy_of_a_prompt_has_its_own_seed():
    seeds = sampling.seeds(3, [[1, 2], [1, 2], [2, 1]])
    assert len(set(seeds)) == 3
    assert sampling.seeds(3, [[9], [1, 2]])[1] == seeds[0]
    assert sampling.seeds(4, [[1, 2]])[0] != seeds[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1.0), ("temperature", math.nan), ("top_k", 0), ("top_p", 0.0), ("top_p", 1.5), ("min_p", -0.1),
     ("min_p", 2.0)],
)  # fmt: skip
def test_impossible_values_are_named(field, value):
    with pytest.raises(QkvError, match=f"{field}: found {value}"):
        Sampling(**{field: value})


@pytest.mark.parametrize(("rows", "vocabulary", "count"), [(1, 5, 8), (3, 100, 4), (9, 5000, 8), (40, 40_007, 3)])
@pytest.mark.parametrize(("select", "dtype"), [
    *((sampling.select_top, dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)),
    *((kernel, dtype) for kernel in kernels for dtype in (torch.float32, torch.bfloat16))])  # fmt: skip
def test_the_likeliest_are_those_of_the_log_softmax(
    rows: int, vocabulary: int, count: int, select: Any, dtype: torch.dtype
) -> None:
    logits = (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * 9).to(dtype)
    before, forbid = logits.clone(), (0, vocabulary - 1)
    values, ids = select(logits, count, forbid)
    wide = torch.promote_types(dtype, torch.float32)
    expected = logits.double().log_softmax(-1).index_fill_(-1, torch.tensor(forbid), -math.inf)
    best = expected.topk(min(count, vocabulary)).values
    assert values.dtype == wide
    assert torch.allclose(values.double(), best, atol=1e-12 if wide == torch.float64 else 1e-5)
    assert torch.allclose(expected.gather(1, ids), best, atol=1e-12)  # ids may differ where logits are equal
    assert all(len(set(row)) == len(row) for row in ids.tolist())
    assert torch.equal(logits, before)


@pytest.mark.parametrize("select", [sampling.select_top, *kernels])
def test_the_likeliest_pass_on_what_is_not_a_number_and_stand_huge_logits(select: Any) -> None:
    logits = torch.zeros(2, 5000)
    logits[0, 7] = math.nan
    logits[1, 4999] = 3e4
    values, ids = select(logits, 2, ())
    assert values[0].isnan().all()
    assert ids[1, 0] == 4999
    assert values[1].tolist() == [0.0, -3e4]
