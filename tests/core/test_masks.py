"""Every rule of who sees whom against a slow loop in plain Python, with the reason that each dark cell gives."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reasons import find_reasons

from qkv.core import masks
from qkv.core.masks import REASONS, MaskContext, build_mask
from qkv.errors import QkvError
from qkv.spec import Attention, Mask


def why(rule: Mask, q: int, k: int, real: bool, same: bool, free: int) -> str:
    """One cell by hand, the first reason that holds."""
    if rule.kind == "causal" and k > q:
        return "future"
    if rule.kind == "prefix" and k > q and k >= free:
        return "future"
    if not real:
        return "padding"
    if rule.window is not None and (q - k >= rule.window or (rule.kind == "full" and k - q >= rule.window)):
        return "window"
    return "seen" if same else "other document"


rules = st.builds(Mask, st.sampled_from(["full", "causal", "prefix"]), st.none() | st.integers(1, 6))


@settings(max_examples=60, deadline=None)
@given(rules, st.integers(1, 6), st.integers(0, 5), st.integers(0, 2**30), st.booleans(), st.booleans(), st.booleans())
def test_every_cell_is_as_a_loop_says(
    rule: Mask, queries: int, past: int, seed: int, padded: bool, packed: bool, free: bool
) -> None:
    rows, keys, draw = 3, queries + past, torch.Generator().manual_seed(seed)
    real = torch.rand(rows, keys, generator=draw) > 0.3
    documents = torch.randint(0, 3, (rows, keys), generator=draw).sort(1)[0]
    until = torch.randint(0, keys + 1, (rows,), generator=draw)
    at = MaskContext(
        torch.arange(past, keys), torch.arange(keys), real if padded else None,
        documents if packed else None, until if free else None,
    )  # fmt: skip
    got = find_reasons(rule, at).expand(rows, -1, -1)
    mask = build_mask(rule, at)
    if mask.bias is not None:
        open_cells = (mask.bias == 0).expand(rows, 1, queries, keys)[:, 0]
    else:
        open_cells = torch.ones(rows, queries, keys, dtype=torch.bool)
        open_cells = open_cells.tril() if mask.causal else open_cells
    for b in range(rows):
        for i in range(queries):
            for k in range(keys):
                q, same = past + i, not packed or bool(documents[b, past + i] == documents[b, k])
                expected = why(rule, q, k, not padded or bool(real[b, k]), same, int(until[b]) if free else 0)
                assert REASONS[got[b, i, k]] == expected
                assert bool(open_cells[b, i, k]) == (expected == "seen")


def test_the_memory_shows_all_that_is_real() -> None:
    real = torch.tensor([[True, True, False], [True, True, True]])
    at = MaskContext(torch.arange(5), torch.arange(3), real)
    assert find_reasons(Mask("memory"), at)[0].tolist() == [[0, 0, 2]] * 5
    assert find_reasons(Mask("memory"), at)[1].tolist() == [[0, 0, 0]] * 5


@pytest.mark.parametrize(
    ("rule", "queries", "keys", "causal", "plain"),
    [
        (Mask("causal"), 7, 7, True, True),
        (Mask("causal"), 1, 7, False, True),
        (Mask("causal"), 3, 7, False, False),
        (Mask("causal", 99), 7, 7, True, True),
        (Mask("causal", 2), 7, 7, False, False),
        (Mask("full"), 7, 7, False, True),
        (Mask("memory"), 2, 7, False, True),
    ],
)
def test_the_cheapest_form_is_taken(rule: Mask, queries: int, keys: int, causal: bool, plain: bool) -> None:
    got = build_mask(rule, MaskContext(torch.arange(keys - queries, keys), torch.arange(keys)))
    assert (got.causal, got.bias is None) == (causal, plain)


def test_a_row_that_sees_nothing_stays_finite() -> None:
    nothing = torch.zeros(1, 2, dtype=torch.bool)
    bias = build_mask(Mask("full"), MaskContext(torch.arange(2), torch.arange(2), nothing)).bias
    assert bias is not None
    assert torch.softmax(bias, -1).isfinite().all()


def test_a_window_that_is_one_too_wide_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., object] = masks.find_blocked
    wide = lambda rule, at: right(Mask(rule.kind, rule.window and rule.window + 1), at)  # noqa: E731
    monkeypatch.setattr(masks, "find_blocked", wide)
    with pytest.raises(AssertionError):
        test_every_cell_is_as_a_loop_says.hypothesis.inner_test(Mask("causal", 2), 5, 0, 1, False, False, False)


@pytest.mark.parametrize("heads", [1, 4, 6])
@pytest.mark.parametrize("past", [0, 3])
def test_alibi_lowers_scores_by_slope_times_distance(heads: int, past: int) -> None:
    slopes = {1: [2**-8], 4: [2**-2, 2**-4, 2**-6, 2**-8], 6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]}[heads]
    at = MaskContext(torch.arange(past, past + 5), torch.arange(past + 5), torch.ones(2, past + 5).tril(past).bool())
    plain = build_mask(Mask("causal", 4), at)
    bias = build_mask(Mask("causal", 4, heads), at).bias
    assert bias is not None
    assert plain.bias is not None
    for h, slope in enumerate(slopes):
        for i in range(5):
            for k in range(past + 5):
                expected = -slope * abs(past + i - k) + plain.bias[:, 0, i, k]
                assert torch.equal(bias[:, h, i, k], expected)


def test_alibi_alone_masks_the_future_of_a_square() -> None:
    at = MaskContext(torch.arange(4), torch.arange(4))
    bias = build_mask(Mask("causal", alibi_heads=2), at).bias
    assert bias is not None
    assert bias.shape == (1, 2, 4, 4)
    assert bool(((bias > -1) == torch.ones(4, 4, dtype=torch.bool).tril()).all())


def test_alibi_has_a_slope_for_every_head() -> None:
    with pytest.raises(QkvError, match="slopes for 3 heads"):
        Attention(heads=4, groups=4, head_dim=8, mask=Mask("causal", alibi_heads=3))
