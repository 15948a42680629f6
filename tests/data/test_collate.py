"""Tensors of a step: the shift, the padding, the labels that count."""

from itertools import pairwise

import pytest
import torch
from support.small import pack_documents

from qkv.data.bucket import Buckets
from qkv.data.collate import (
    add_labels,
    collate_documents,
    collate_masked,
    collate_pairs,
    collate_prefixes,
    collate_windows,
)
from qkv.errors import QkvError

PAIRS = [([5, 6, 1], [7, 8, 9, 1]), ([5, 1], [7, 1])]


def test_teacher_forcing_shifts_by_one() -> None:
    b = collate_pairs(PAIRS, pad=0, start=2)
    assert b.source is not None
    assert b.source_real is not None
    assert b.target_real is not None
    assert b.source.tolist() == [[5, 6, 1], [5, 1, 0]]
    assert b.target.tolist() == [[2, 7, 8, 9], [2, 7, 0, 0]]
    assert b.labels.tolist() == [[7, 8, 9, 1], [7, 1, -100, -100]]
    assert b.source_real.tolist() == [[True, True, True], [True, True, False]]
    assert b.target_real.tolist() == [[True] * 4, [True, True, False, False]]
    assert b.tokens == 6 == int((b.labels != -100).sum())


def test_full_rows_need_no_mask_and_shapes_are_kept() -> None:
    b = collate_pairs([PAIRS[0]], pad=0, start=2)
    assert (b.source_real, b.target_real) == (None, None)
    b = collate_pairs(PAIRS, pad=0, start=2, shape=(4, 12))
    assert b.source is not None
    assert (b.source.shape, b.target.shape, b.labels.shape) == ((2, 4), (2, 12), (2, 12))
    with pytest.raises(QkvError, match="3 ids does not fit in the batch's width of 2"):
        collate_pairs(PAIRS, pad=0, start=2, shape=(2, 12))
    with pytest.raises(QkvError, match="pair 1 of the batch has an empty source"):
        collate_pairs([PAIRS[0], ([], [1])], pad=0, start=2)


def test_a_causal_label_is_the_next_id() -> None:
    b = collate_windows(torch.arange(10).reshape(2, 5))
    assert b.target.tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert b.labels.tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
    assert b.tokens == 8


def test_no_label_crosses_from_one_document_to_the_next() -> None:
    documents = [[10, 11, 12], [20, 21], [30, 31, 32, 33], [40]]
    b = collate_documents(*pack_documents(documents, 6))
    assert b.documents is not None
    follows = {(x, y) for d in documents for x, y in pairwise(d)}
    counted = [(int(x), int(y)) for x, y in zip(b.target.flatten(), b.labels.flatten(), strict=True) if y != -100]
    assert set(counted) == follows
    assert len(counted) == b.tokens == 6
    for row in range(len(b.target)):
        for x, number in zip(b.target[row].tolist(), b.documents[row].tolist(), strict=True):
            assert number == -1 or x in documents[number]


def test_batches_of_buckets_have_the_shapes_that_were_promised() -> None:
    lengths = [(i % 11 + 1, i % 5 + 1) for i in range(120)]
    pairs = [([5] * s, [6] * t) for s, t in lengths]
    buckets = Buckets(lengths, tokens=64, shapes=6)
    found = set[tuple[int, int, int]]()
    for batch in buckets.batches(0):
        b = collate_pairs([pairs[i] for i in batch], pad=0, start=0, shape=buckets.shape(batch)[1:])
        assert b.source is not None
        found.add((len(b.target), b.source.shape[1], b.target.shape[1]))
    assert found == set(buckets.shapes)
    assert len(found) <= 6


def test_masked_texts_know_their_segments_and_padding() -> None:
    rows = [([2, 5, 4, 3, 7, 3], [-100, -100, 6, -100, -100, -100]), ([2, 4, 3], [-100, 9, -100])]
    b = collate_masked(rows, pad=0, separator=3)
    assert b.target.tolist() == [[2, 5, 4, 3, 7, 3], [2, 4, 3, 0, 0, 0]]
    assert b.labels.tolist() == [rows[0][1], [-100, 9, -100, -100, -100, -100]]
    assert b.segments is not None
    assert b.segments[0].tolist() == [0, 0, 0, 0, 1, 1]
    assert b.target_real is not None
    assert b.target_real.tolist() == [[True] * 6, [True] * 3 + [False] * 3]
    assert b.tokens == 2
    assert collate_masked(rows, pad=0).segments is None
    with pytest.raises(QkvError, match="row 0 of the batch has 2 ids and 1 labels"):
        collate_masked([([1, 2], [1])], pad=0)


def test_labels_of_texts_are_counted_but_for_those_of_none() -> None:
    b = add_labels(collate_masked([([2, 4], [-100, 9]), ([2, 5], [-100, -100])], pad=0), [3, -100])
    assert b.classes is not None
    assert (b.classes.tolist(), b.tokens) == ([3, -100], 2)
    with pytest.raises(QkvError, match="found 1 labels for 2 texts"):
        add_labels(b, [1])


def test_a_prefix_has_no_loss_and_the_rest_is_answered_from_the_start() -> None:
    b = collate_prefixes([([5, 6, 7], [8, 9, 1]), ([5], [8, 1])], pad=0, start=(3,))
    assert b.target.tolist() == [[5, 6, 7, 3, 8, 9], [5, 3, 8, 0, 0, 0]]
    assert b.labels.tolist() == [[-100, -100, -100, 8, 9, 1], [-100, 8, 1, -100, -100, -100]]
    assert b.prefix is not None
    assert (b.prefix.tolist(), b.tokens) == ([3, 1], 5)
    b = collate_prefixes([([5, 6, 7], [8, 9, 1])], pad=0)
    assert (b.target.tolist(), b.labels.tolist()) == ([[5, 6, 7, 8, 9]], [[-100, -100, 8, 9, 1]])
    with pytest.raises(QkvError, match="pair 0 of the batch has nothing given"):
        collate_prefixes([([], [1])], pad=0)
