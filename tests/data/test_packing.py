"""Rows for language models: packing loses nothing, windows are the text's own."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import pack_documents

from qkv.data.packing import draw_windows
from qkv.errors import QkvError


@given(st.lists(st.lists(st.integers(1, 999), max_size=25), min_size=1, max_size=30), st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_packing_loses_nothing(documents: list[list[int]], length: int) -> None:
    ids, numbers = pack_documents(documents, length)
    assert ids.shape == numbers.shape
    assert ids.shape[1] == length
    for i, document in enumerate(documents):
        # a long document's full rows hold nothing else; what is left of it is the shortest part
        parts = [ids[row][numbers[row] == i].tolist() for row in range(len(ids)) if (numbers[row] == i).any()]
        assert sorted(chain.from_iterable(parts)) == sorted(document)
        whole = [document[at : at + length] for at in range(0, len(document), length)]
        assert sorted(parts) == sorted(whole)
    assert int((numbers < 0).sum()) == ids.numel() - sum(map(len, documents))
    free = (numbers < 0).sum(1)
    assert len(ids) < 2 or int(free.topk(2).values.sum()) < length or int(free.max()) < length


def test_packing_is_tight() -> None:
    ids, numbers = pack_documents([[1] * 6, [2] * 5, [3] * 4, [4] * 3, [5] * 2], 10)
    assert len(ids) == 2
    assert (numbers >= 0).all()


def test_windows_are_the_texts_own_and_drawn_anew_for_each_step() -> None:
    text = np.arange(100, dtype=np.uint16)
    w = draw_windows(text, length=8, rows=5, seed=1, step=4)
    assert w.shape == (5, 9)
    assert w.dtype == torch.int64
    assert ((w[:, 1:] - w[:, :-1]) == 1).all()
    assert torch.equal(w, draw_windows(torch.arange(100), length=8, rows=5, seed=1, step=4))
    assert not torch.equal(w, draw_windows(text, length=8, rows=5, seed=1, step=5))
    assert not torch.equal(w, draw_windows(text, length=8, rows=5, seed=2, step=4))


def test_windows_reach_both_ends() -> None:
    w = draw_windows(np.arange(6), length=3, rows=200, seed=0, step=0)
    assert (int(w.min()), int(w.max())) == (0, 5)
    assert draw_windows(np.arange(4), length=3, rows=2, seed=0, step=0).tolist() == [[0, 1, 2, 3]] * 2
    with pytest.raises(QkvError, match="has 3 tokens, a window needs 4"):
        draw_windows(np.arange(3), length=3, rows=1, seed=0, step=0)
