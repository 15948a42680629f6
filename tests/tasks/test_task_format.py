"""Task inputs are laid out as figure 1 of Radford et al. 2018 draws them, and pairs as Devlin et al. 2018, figure 2."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qkv.errors import QkvError
from qkv.tasks.task_format import (
    TaskTokens,
    format_choices,
    format_classification,
    format_entailment,
    format_pair,
    format_similarity,
    join_logits,
)

TOKENS = TaskTokens(101, 102, 103)
TEXT = st.lists(st.integers(0, 99), min_size=1, max_size=12)


def test_each_task_looks_as_the_figure_draws_it():
    assert format_classification([1, 2], TOKENS).ids == ((101, 1, 2, 103),)
    assert format_entailment([1, 2], [3], TOKENS).ids == ((101, 1, 2, 102, 3, 103),)
    assert format_similarity([1], [2, 3], TOKENS).ids == ((101, 1, 102, 2, 3, 103), (101, 2, 3, 102, 1, 103))
    assert format_choices([1], [[2], [3]], TOKENS).ids == ((101, 1, 102, 2, 103), (101, 1, 102, 3, 103))


def test_a_pair_has_two_segments_and_one_text_has_one():
    assert format_pair([5, 6], [7], cls=1, sep=2) == ((1, 5, 6, 2, 7, 2), (0, 0, 0, 0, 1, 1))
    assert format_pair([5, 6], cls=1, sep=2) == ((1, 5, 6, 2), (0, 0, 0, 0))


@settings(max_examples=50, deadline=None)
@given(TEXT, TEXT, st.integers(5, 30))
def test_a_row_never_passes_its_limit_and_the_longer_text_gives_way(a, b, longest):
    (row,) = format_entailment(a, b, TOKENS, longest=longest).ids
    assert len(row) == min(len(a) + len(b) + 3, longest)
    middle = row.index(102)
    first, second = list(row[1:middle]), list(row[middle + 1 : -1])
    assert (row[0], row[-1]) == (101, 103)
    assert (a[: len(first)], b[: len(second)]) == (first, second)
    if len(first) < len(a):
        assert len(first) >= len(second)
    if len(second) < len(b):
        assert len(second) >= len(first) - 1
    ids, segments = format_pair(a, b, cls=101, sep=102, longest=longest)
    assert (len(ids), sum(segments)) == (len(row), len(second) + 1)
    assert len(segments) == len(ids)


def test_an_answer_judges_the_sum_of_states_and_compares_choices():
    out, states = nn.Linear(8, 3), torch.randn(2, 5, 8)  # two rows of five examples
    rows = out(states).transpose(0, 1)
    with torch.no_grad():
        assert torch.allclose(join_logits(rows, "added", out.bias), out(states.sum(0)), atol=1e-5)
        assert not torch.allclose(join_logits(rows, "added"), out(states.sum(0)), atol=1e-3)  # the bias counts once
    assert join_logits(torch.tensor([[4.0], [7.0]]), "compared").tolist() == [4.0, 7.0]
    assert join_logits(torch.tensor([[4.0, 1.0]]), "single").tolist() == [4.0, 1.0]


def test_bad_input_is_named():
    with pytest.raises(QkvError, match="1 answers"):
        format_choices([1], [[2]], TOKENS)
    with pytest.raises(QkvError, match="limit of 4 ids"):
        format_entailment([1], [2], TOKENS, longest=4)


def test_marks_come_from_a_vocabulary():
    tokenizers = pytest.importorskip("tokenizers")
    from qkv.tokenizers.tokenizer import Tokenizer

    words = {"_start_": 4, "_delimiter_": 5, "_classify_": 6, "a": 0, "[UNK]": 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    assert TaskTokens.from_tokenizer(Tokenizer(backend)) == TaskTokens(4, 5, 6)
    with pytest.raises(QkvError, match="lacks _nope_"):
        TaskTokens.from_tokenizer(Tokenizer(backend), ("_start_", "_nope_", "_classify_"))
