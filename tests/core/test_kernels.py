"""Every kernel of the table against the maths in the open: each mask, grouping, padding and scale, forth and back."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv import spec
from qkv.core import kernels
from qkv.core.attention import Attention, attend
from qkv.core.masks import AttentionBias, MaskContext, build_mask
from qkv.core.model import build_step

Kernel = Callable[..., Tensor]
ROWS, QUERIES, HEADS, DIM = 3, 6, 6, 32
MASKS = {
    "full": spec.Mask("full"), "causal": spec.Mask("causal"), "prefix": spec.Mask("prefix"),
    "window": spec.Mask("causal", 3), "memory": spec.Mask("memory"),
}  # fmt: skip


def setting(mask: spec.Mask, groups: int, padded: bool, packed: bool, past: int, scale: float | None = None) -> Any:
    """(q, k, v, seen, at, step) for one case, drawn from a fixed seed."""
    draw = torch.Generator().manual_seed(3)
    at = Attention(spec.Attention(HEADS, groups, DIM, mask, scale=scale), 48, 0, "attn")
    keys = QUERIES + past
    real = torch.arange(keys)[None] >= torch.tensor([0, 1, 3])[:, None] if padded else None
    documents = torch.tensor([[0, 0, 1, 1, 1, 2] + [2] * past]).expand(ROWS, -1) if packed else None
    free = torch.tensor([0, 2, 4]) if mask.kind == "prefix" else None
    cells = MaskContext(torch.arange(past, keys), torch.arange(keys), real, documents, free)
    q, k, v = (
        torch.randn(ROWS, n, t, DIM, generator=draw)
        for n, t in ((HEADS, QUERIES), (groups, keys), (groups, keys))
    )  # fmt: skip
    return q, k, v, build_mask(mask, cells), at, begin_nothing()


def begin_nothing() -> Any:
    class Empty:
        masks: tuple[spec.Mask, ...] = ()
        rotaries: tuple[spec.Rotary, ...] = ()

    return build_step(Empty(), torch.zeros(1, 1, dtype=torch.int64))  # type: ignore[arg-type]


CASES = [
    (name, groups, padded, packed, past)
    for name, groups, padded, packed, past in itertools.product(
        MASKS, (6, 2, 1), (False, True), (False, True), (0, 4)
    )
    if not (name == "memory" and packed)
]  # fmt: skip


def fitted(kernel: Kernel, q: Tensor, mask: Any) -> tuple[Tensor, Any]:
    """All queries, or the last one alone for the kernel that takes one: it sees what comes before it."""
    if kernel.__name__ != "gqa_decode":
        return q, mask
    return q[:, :, -1:], AttentionBias(None if mask.bias is None else mask.bias[:, :, -1:], causal=False)


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK", 4)


@pytest.mark.parity
@pytest.mark.parametrize("kernel", kernels.KERNELS, ids=lambda k: k.__name__)
def test_every_kernel_is_the_open_maths(kernel: Kernel) -> None:
    for name, groups, padded, packed, past in CASES:
        q, k, v, mask, at, step = setting(MASKS[name], groups, padded, packed, past)
        q, mask = fitted(kernel, q, mask)
        got, expected = kernel(q, k, v, mask, at, step), attend(q, k, v, mask, at, step)
        visible = torch.ones(ROWS, q.shape[2], dtype=torch.bool)
        if mask.bias is not None:
            visible = (mask.bias == 0).any(-1)[:, 0].expand(ROWS, -1)  # a padded query may see nothing
        gap = (got - expected).transpose(1, 2)[visible].abs().max()
        what = f"groups={groups} padded={padded} packed={packed} past={past}"
        assert gap <= 1e-5, f"{kernel.__name__}: {name} {what}: {gap}"


@pytest.mark.parity
@pytest.mark.parametrize("kernel", kernels.KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("groups", [6, 2])
def test_gradients_are_those_of_the_open_maths(kernel: Kernel, groups: int) -> None:
    for mask in MASKS.values():
        q, k, v, hidden, at, step = setting(mask, groups, False, False, 0, scale=0.3)
        q, hidden = fitted(kernel, q, hidden)
        grads: list[tuple[Tensor, ...]] = []
        for run in (kernel, attend):
            leaves = [t.clone().requires_grad_() for t in (q, k, v)]
            run(*leaves, hidden, at, step).square().sum().backward()
            grads.append(tuple(t.grad for t in leaves if t.grad is not None))
        for a, b in zip(*grads, strict=True):
            assert (a - b).abs().max() <= 1e-4


def test_open_maths_is_the_formula_word_by_word() -> None:
    q, k, v, mask, at, step = setting(MASKS["causal"], 2, False, False, 0)
    z = attend(q, k, v, mask, at, step)
    for b, h, t in itertools.product(range(ROWS), range(HEADS), range(QUERIES)):
        g = h // (HEADS // 2)
        scores = torch.stack([q[b, h, t] @ k[b, g, s] / DIM**0.5 for s in range(t + 1)])
        expected = sum(p * v[b, g, s] for s, p in enumerate(scores.softmax(0)))
        assert torch.allclose(z[b, h, t], expected, atol=1e-5)  # type: ignore[arg-type]


def test_dropped_patterns_never_reach_a_kernel_that_cannot_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, mask, at, step = setting(MASKS["full"], 6, False, False, 0)
    at.spec = replace(at.spec, dropout=0.5)
    heard: list[float] = []
    step = replace(step, drop=lambda x, p: heard.append(p) or x)
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: pytest.fail("dropped nothing"))
    for leaf in (q, q.clone().requires_grad_()):
        kernels.attend(leaf, k, v, mask, at, step)
    assert heard == [0.5, 0.5]


@pytest.mark.parametrize("fault", ["scale", "causal", "groups"])
def test_a_wrong_kernel_is_found(fault: str) -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Any, at: Attention, step: Any) -> Tensor:
        if fault == "scale":
            return kernels.sdpa(q * 1.01, k, v, mask, at, step)
        if fault == "groups":  # the usual mistake: heads dealt out in turn
            return attend(q.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2), k, v, mask, at, step)
        return kernels.sdpa(q, k, v, mask._replace(causal=False), at, step)

    with pytest.raises(AssertionError, match="wrong: "):
        test_every_kernel_is_the_open_maths(wrong)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_row_that_sees_nothing_stays_finite_both_ways_in_any_precision(dtype):
    from types import SimpleNamespace

    from qkv.core import kernels
    from qkv.core.dropout import no_dropout
    from qkv.core.masks import MaskContext, build_mask
    from qkv.spec import Mask

    slots = torch.arange(4)
    real = torch.tensor([[False, False, True, True]])  # left padding: the first two queries see no real key
    mask = build_mask(Mask("causal"), MaskContext(slots, slots, real))
    at = SimpleNamespace(spec=SimpleNamespace(heads=2, groups=2, dropout=0.0, cap=None), scale=0.2)
    for kernel in (kernels.small_matmul, kernels.sdpa):
        q, k, v = (torch.randn(1, 2, 4, 32).to(dtype).requires_grad_() for _ in range(3))
        z = kernel(q, k, v, mask, at, SimpleNamespace(drop=no_dropout))
        z.sum().backward()
        assert all(bool(t.isfinite().all()) for t in (z, q.grad, k.grad, v.grad)), kernel.__name__


def test_one_query_that_leans_to_distances_of_its_own_by_head() -> None:
    q, k, v, _, at, step = setting(MASKS["full"], 2, False, False, 4)
    lean = AttentionBias(torch.randn(1, HEADS, 1, k.shape[2]), causal=False)
    last = q[:, :, -1:]
    assert torch.equal(kernels.attend(last, k, v, lean, at, step), kernels.gqa_decode(last, k, v, lean, at, step))
    assert (kernels.gqa_decode(last, k, v, lean, at, step) - attend(last, k, v, lean, at, step)).abs().max() <= 1e-5


@pytest.mark.parametrize("groups", [6, 2])
def test_in_bf16_few_is_nearer_to_the_truth_than_its_own_rounding(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "has_unit", lambda name: name == "avx512_bw")
    for name, mask in MASKS.items():
        q, k, v, hidden, at, step = setting(mask, groups, False, False, 4)
        low = [t.bfloat16() for t in (q, k, v)]
        assert torch.equal(kernels.attend(q, k, v, hidden, at, step), kernels.sdpa(q, k, v, hidden, at, step))
        got, exact = kernels.in_blocks(*low, hidden, at, step), attend(*(t.float() for t in low), hidden, at, step)
        assert torch.equal(kernels.attend(*low, hidden, at, step), got)
        assert (got.float() - exact).abs().max() <= 2**-6 * exact.abs().max(), name


def test_where_the_processor_has_amx_long_rows_take_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, _, at, step = setting(MASKS["full"], 6, False, False, 4)
    plain = AttentionBias(None, causal=False)
    for keys, amx, kernel in ((10, False, kernels.in_blocks), (10, True, kernels.sdpa), (4, True, kernels.in_blocks)):
        monkeypatch.setattr(kernels, "has_unit", lambda name, amx=amx: amx or name == "avx512_bw")
        few = q.bfloat16(), k[:, :, :keys].bfloat16(), v[:, :, :keys].bfloat16()
        assert torch.equal(kernels.attend(*few, plain, at, step), kernel(*few, plain, at, step))
        other = {kernels.in_blocks, kernels.sdpa} - {kernel}
        assert not torch.equal(kernels.attend(*few, plain, at, step), other.pop()(*few, plain, at, step))


@pytest.mark.parametrize("groups", [6, 2])
def test_where_nothing_multiplies_bf16_attention_is_in_fp32(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "has_unit", lambda name: name == "avx2")
    for name, mask in MASKS.items():
        q, k, v, hidden, at, step = setting(mask, groups, False, False, 4)
        low = [t.bfloat16() for t in (q, k, v)]
        exact = attend(*(t.float() for t in low), hidden, at, step)
        got = kernels.attend(*low, hidden, at, step)
        assert got.dtype == torch.bfloat16
        assert (got.float() - exact).abs().max() <= 2**-8 * exact.abs().max(), name  # rounded once
