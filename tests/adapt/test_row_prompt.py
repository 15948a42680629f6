"""Attention of many queries by the compiled kernel says what the formula says, under every mask, in any company."""

import pytest
import torch

from qkv.adapt import native, row_layers, row_ops
from qkv.core.masks import AttentionBias
from qkv.core.positions import rotate
from qkv.messages import Message
from qkv.spec import Rotary

from .test_row_products import find_changed, fresh  # noqa: F401  a fixture

here = native.library()
able = pytest.mark.skipif(here is None or not here.opened.qkv_attends_prompts(), reason="this CPU has no such kernel")


def draw(rows, heads, groups, tokens, keys, size, wide, seed=0):
    """Queries, keys and values as layers have them: views of what a product gave."""
    g = torch.Generator().manual_seed(seed)

    def one(count, length, last):
        return torch.randn(rows, length, count, last, generator=g).bfloat16().transpose(1, 2)

    return one(heads, tokens, size), one(groups, keys, size), one(groups, keys, wide)


def attend_openly(q, k, v, mask, scale, cap=0.0):
    """The formula in fp64 [B, T, H W]."""
    each = q.shape[1] // k.shape[1]
    q, k, v = (t.double() for t in (q, k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)))
    score = q @ k.mT * scale
    score = cap * torch.tanh(score / cap) if cap else score
    if mask.bias is not None:
        score = score + mask.bias.double()
    if mask.causal:
        score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (score.softmax(-1) @ v).transpose(1, 2).flatten(2)


@able
@pytest.mark.parametrize("size", [32, 64, 96, 128])
@pytest.mark.parametrize(("tokens", "keys"), [(6, 6), (7, 7), (64, 64), (65, 65), (130, 130), (6, 200), (33, 7)])
def test_it_says_what_the_formula_says(tokens, keys, size):
    g = torch.Generator().manual_seed(1)
    for heads, groups, wide in ((4, 4, size), (6, 2, 80)):
        q, k, v = draw(2, heads, groups, tokens, keys, size, wide)
        masks = [AttentionBias(None, causal=False)]
        masks += [AttentionBias(None, causal=True)] if tokens == keys else []
        masks += [AttentionBias(torch.randn(shape, generator=g) * 2, causal=False)
                  for shape in ((2, 1, 1, keys), (1, heads, tokens, keys), (2, 1, tokens, 1))]  # fmt: skip
        for mask in masks:
            for cap in (0.0, 3.0):
                got = row_ops.attend_prompt(here, q, k, v, mask, scale=size**-0.5, cap=cap)
                want = attend_openly(q, k, v, mask, size**-0.5, cap)
                assert (got.double() - want).abs().max() <= 2**-7 * v.abs().max()  # weights and outputs are bf16
                assert (got.double() - want).square().mean().sqrt() <= 2**-8 * want.square().mean().sqrt()


@able
def test_what_is_hidden_does_not_count():
    q, k, v = draw(2, 4, 2, 70, 70, 64, 64)
    some = torch.zeros(2, 1, 70, 70)
    some[1, :, :, 50:] = torch.finfo(torch.float32).min  # a shorter text
    some += torch.full((70, 70), torch.finfo(torch.float32).min / 2).triu(1)
    first = row_ops.attend_prompt(here, q, k, v, AttentionBias(some, causal=False), scale=0.125)
    k, v = k.clone(), v.clone()
    k[1, :, 50:], v[1, :, 50:] = 7.0, 1e4
    again = row_ops.attend_prompt(here, q, k, v, AttentionBias(some, causal=False), scale=0.125)
    assert torch.equal(first[1, :50], again[1, :50])
    later = row_ops.attend_prompt(here, q[:1], k[:1], v[:1], AttentionBias(None, causal=True), scale=0.125)
    k[0, :, 40:], v[0, :, 40:] = -3.0, 1e4
    again = row_ops.attend_prompt(here, q[:1], k[:1], v[:1], AttentionBias(None, causal=True), scale=0.125)
    assert torch.equal(again[:, :40], later[:, :40])
    assert not torch.equal(again[:, 40:], later[:, 40:])


@able
@pytest.mark.parametrize("threads", [1, 2])
def test_a_query_says_the_same_in_any_company(threads):
    before, causal = torch.get_num_threads(), AttentionBias(None, causal=True)
    q, k, v = draw(5, 4, 2, 75, 75, 64, 64)
    want = row_ops.attend_prompt(here, q, k, v, causal, scale=0.125)
    try:
        torch.set_num_threads(threads)
        for rows in (slice(0, 1), slice(2, 5)):
            assert torch.equal(row_ops.attend_prompt(here, q[rows], k[rows], v[rows], causal, scale=0.125), want[rows])
        short = row_ops.attend_prompt(here, q[:, :, :41], k[:, :, :41], v[:, :, :41], causal, scale=0.125)
        assert torch.equal(short, want[:, :41])
    finally:
        torch.set_num_threads(before)


@able
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("s % PANEL * 4, r[n]", "s % PANEL, r[n]"), ("_mm512_slli_epi32(one, 16) : one", "one : one"),
     ("i % PANEL * 4, both", "0, both"),
     ("*(loose *)(score + s) * job->scale", "*(loose *)(score + s)"),
     ("bias ? bias + s : 0, length - s", "0, length - s"), ("first + c + 1 : job->keys", "first + c + 2 : job->keys"),
     ("(first + c) * job->bias_token", "first * job->bias_token"), ("row * job->bias_row", "0"),
     ("_mm512_maskz_mov_ps(some,", "_mm512_maskz_mov_ps(0xffff,"),
     ("job->causal ? first + WIDE :", "job->causal ? first + 1 :"),
     ("(vec)sum[c][v] * by[c]", "(vec)sum[c][v]"), ("job->tokens - WIDE ? m :", "job->tokens - WIDE ? 0 :"),
     ("h < (g + 1) * each", "h < g * each + 1"),
     ("scratch->values + i / PANEL * room / 2 * PANEL * 4", "scratch->values"),
     ("multiply_panel(q, job->q_token,", "multiply_panel(q, job->size,")],
)  # fmt: skip
def test_a_wrong_kernel_does_not_count(fresh, tmp_path, right, wrong):  # noqa: F811
    found = find_changed(fresh, tmp_path, "avx512_bf16", "row_prompt.c", right, wrong)
    assert isinstance(found, Message)
    assert found.fields["name"] in ("attention", "block")


@pytest.mark.skipif(here is None, reason="no compiler, or switched off")
@pytest.mark.parametrize("size", [8, 24, 32, 64, 80, 128])
@pytest.mark.parametrize("pairs", ["half", "interleaved"])
def test_heads_are_turned_as_the_formula_turns_them(size, pairs):
    g = torch.Generator().manual_seed(size)
    angles, whole = torch.rand(2, 1, 5, size // 2, generator=g) * 6, torch.randn(2, 5, 4 * size, generator=g)
    turn = angles.cos(), angles.sin()
    for dtype, room in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        x = whole.to(dtype)
        heads = x[..., : 3 * size].unflatten(-1, (3, size)).transpose(1, 2).double()
        want = rotate(heads, turn, Rotary(size, pairs=pairs)).transpose(1, 2).flatten(2)
        got = x.clone()
        row_ops.rotate(here, got, 3, size, turn, neighbours=pairs != "half")
        assert (got[..., : 3 * size].double() - want).abs().max() <= room
        assert torch.equal(got[..., 3 * size :], x[..., 3 * size :])


@pytest.mark.skipif(here is None or not row_ops.attends_prompts(here), reason="no such kernel, or a faster one")
def test_layers_attend_prompts_by_it(monkeypatch):
    from .test_row_layers import build

    core = build()[1].to(torch.bfloat16)
    row_layers.use_rows(core)
    assert native.library() is not None  # whose check calls it too
    calls, read = [], row_ops.attend_prompt
    monkeypatch.setattr(row_ops, "attend_prompt", lambda *a, **k: calls.append(1) or read(*a, **k))
    with torch.inference_mode():
        core(torch.randint(0, 20, (2, 9)))
    assert len(calls) == len(core.decoder.layers)
