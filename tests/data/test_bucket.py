"""Batches: every pair once, within the budget, in few shapes, with little padding, as a function of (seed, epoch)."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import bucket
from qkv.data.bucket import Buckets
from qkv.data.order import draw_permutation, make_generator
from qkv.data.sources import read_lines
from qkv.errors import QkvError
from qkv.paths import data_dir

LENGTHS = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=300)


@given(LENGTHS, st.integers(96, 800), st.sampled_from([1, 4, 8]), st.integers(2, 24), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_pair_once_within_the_budget_in_few_shapes(
    lengths: list[tuple[int, int]], tokens: int, multiple: int, shapes: int, epoch: int
) -> None:
    b = Buckets(lengths, tokens=tokens, multiple=multiple, shapes=shapes, seed=7)
    batches = b.batches(epoch)
    assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
    found = {b.shape(batch) for batch in batches}
    assert found <= set(b.shapes)
    assert len(b.shapes) <= shapes
    padded = 0
    for batch in batches:
        rows, s, t = b.shape(batch)
        assert rows == len(batch)
        assert rows * max(s, t) <= tokens
        assert s % multiple == t % multiple == 0
        assert all(lengths[i][0] <= s and lengths[i][1] <= t for i in batch)
        padded += rows * (s + t)
    assert b.real == pytest.approx(np.sum(lengths) / padded)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = [(i % 13 + 1, i % 7 + 1) for i in range(200)]
    a, b = Buckets(lengths, tokens=64, seed=1), Buckets(lengths, tokens=64, seed=1)
    a.batches(0)
    assert [*a.batches(3)] == [*b.batches(3)]
    assert [*a.batches(3)] != [*a.batches(4)]
    assert [*a.batches(3)] != [*Buckets(lengths, tokens=64, seed=2).batches(3)]
    first = {frozenset(x) for x in a.batches(0)}
    assert first != {frozenset(x) for x in a.batches(1)}  # other company too, not only another order


def test_long_pairs_are_left_out_and_counted() -> None:
    b = Buckets([(3, 3), (50, 2), (2, 60), (8, 8)], tokens=100, longest=8)
    assert b.dropped == 2
    assert sorted(chain.from_iterable(b.batches(0))) == [0, 3]
    with pytest.raises(QkvError, match=r"pair 1 has 50 and 2 tokens.*batch's 40.*longest="):
        Buckets([(3, 3), (50, 2)], tokens=40)
    with pytest.raises(QkvError, match="no pairs to batch: 1 given, 1 longer than 2"):
        Buckets([(3, 3)], tokens=40, longest=2)
    with pytest.raises(QkvError, match="no pairs"):
        Buckets([], tokens=40)


def test_many_kinds_of_lengths_are_made_coarser_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "CELLS", 16)
    lengths = [(s, t) for s in range(1, 40) for t in range(1, 40)]
    b = Buckets(lengths, tokens=400, multiple=1)
    assert sorted(chain.from_iterable(b.batches(0))) == list(range(len(lengths)))
    assert len(b.shapes) <= 24


@pytest.mark.needs_data
def test_little_of_a_real_corpus_is_padding() -> None:
    folder = data_dir() / "mt" / "multi30k_bpe_en_de"
    sides = [[len(line.split()) + 1 for line in read_lines(folder / f"train.{side}")] for side in ("en", "de")]
    b = Buckets(list(zip(*sides, strict=True)), tokens=4096)
    assert b.real > 0.88
    assert len(b.shapes) <= 24
    one = Buckets(list(zip(*sides, strict=True)), tokens=4096, shapes=2)
    assert one.real < 0.5  # a single bucket: the test would notice


def test_draws_have_no_history() -> None:
    a = draw_permutation(50, seed=3, epoch=2)
    draw_permutation(50, seed=3, epoch=1)
    assert a.tolist() == draw_permutation(50, seed=3, epoch=2).tolist()
    assert sorted(a.tolist()) == list(range(50))
    others = [
        draw_permutation(50, seed=s, epoch=e, index=i).tolist()
        for s, e, i in ((3, 2, 1), (3, 1, 0), (2, 3, 0), (-3, 2, 0))
    ]
    assert a.tolist() not in others
    drawn = [make_generator(seed=0, epoch=0, index=i).integers(9, size=40) for i in range(3)]
    assert drawn[0].tolist() != drawn[1].tolist()
    assert set(np.concatenate(drawn).tolist()) == set(range(9))
