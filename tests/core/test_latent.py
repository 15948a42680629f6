"""Latent attention against the paper's equations taken one token and one head at a time; absorbed equals expanded."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import zoo
from support.rounding import assert_same
from support.shapes import checked, claims
from torch import Tensor, nn

from qkv.core import attention, kernels, latent
from qkv.core.cache import Static
from qkv.core.latent import Latent
from qkv.core.masks import AttentionBias, MaskContext, build_mask
from qkv.core.model import Transformer, build_step
from qkv.core.step import Inputs, active_tracer
from qkv.spec import Block, Ffn, Head, Mask, Norm, Rotary, Spec, Stack
from qkv.spec import Latent as Part

RMS = Norm("rms", 1e-6)
PARTS = {
    "v2": Part(3, 40, 24, 32, 20, Mask("causal"), Rotary(16, pairs="interleaved"), RMS),
    "straight": Part(4, None, 32, 24, 28, Mask("causal"), Rotary(32, pairs="interleaved"), RMS, bias=True),
    "halves": Part(2, 20, 28, 32, 36, Mask("causal"), Rotary(16), RMS, scale=0.3),
}
CHUNKS = {"one by one": [1] * 11, "in chunks": [4, 1, 3, 3], "prefill, then one by one": [8, 1, 1, 1]}


def model(part: Part, layers: int = 3) -> Transformer:
    block = Block(part, Ffn(80, "silu", gated=True), norm_in=RMS)
    return zoo.made(Spec(97, Stack(48, (block,) * layers, final_norm=RMS), head=Head("untied")))


def run_cached(core: Any, ids: Tensor, chunks: list[int], cache: Static, first: str = "decode") -> Tensor:
    """Logits over chunks; the first may run as a prefill (expanded), all later ones decode (absorbed)."""
    out: list[Tensor] = []
    for i, part in enumerate(ids.split(chunks, 1)):
        out.append(zoo.run(core, part, cache=cache, mode="decode" if i else first))  # type: ignore[arg-type]
    return torch.cat(out, 1)


def turned(x: Tensor, position: int, s: Rotary) -> Tensor:
    """One vector turned by its position, pair by pair as a complex number (Su et al. 2021)."""
    first, second = (x[0::2], x[1::2]) if s.pairs == "interleaved" else x.chunk(2)
    rates = torch.tensor([s.base ** (-2 * i / s.dim) for i in range(s.dim // 2)], dtype=torch.float64)
    z = torch.complex(first, second) * torch.polar(torch.ones_like(rates), position * rates)
    return torch.stack((z.real, z.imag), -1).flatten() if s.pairs == "interleaved" else torch.cat((z.real, z.imag))


def paper(m: Latent, h: Tensor) -> Tensor:
    """Equations 9 to 19 of DeepSeek-V2 for one text [T, D], in doubles, one query, head and key at a time."""
    s, dim = m.spec, m.spec.nope_head_dim + m.spec.rotary.dim

    def at(linear: nn.Linear, x: Tensor) -> Tensor:
        y = linear.weight.double() @ x
        return y if linear.bias is None else y + linear.bias.double()

    def norm(n: Any, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + n.spec.eps).sqrt() * n.weight.double()

    c, k_rope, out = [], [], []
    w = m.kv_up.weight.double().reshape(s.heads, s.nope_head_dim + s.value_dim, s.kv_rank)
    for t, x in enumerate(h.double()):
        down = at(m.kv_down, x)
        c.append(norm(m.kv_norm, down[: s.kv_rank]))  # eq. 9
        k_rope.append(turned(down[s.kv_rank :], t, s.rotary))  # eq. 15
        q = at(m.q_up, norm(m.q_norm, at(m.q_down, x))) if s.q_rank else at(m.q, x)  # eq. 12, 13
        u = []
        for i, q_i in enumerate(q.reshape(s.heads, dim)):
            q_c, q_r = q_i[: s.nope_head_dim], turned(q_i[s.nope_head_dim :], t, s.rotary)  # eq. 14, 16
            k_c = [w[i, : s.nope_head_dim] @ c_j for c_j in c]  # eq. 10
            v_c = [w[i, s.nope_head_dim :] @ c_j for c_j in c]  # eq. 11
            scores = [q_c @ k + q_r @ r for k, r in zip(k_c, k_rope, strict=True)]  # eq. 17
            p = (torch.stack(scores) * (dim**-0.5 if s.scale is None else s.scale)).softmax(0)
            u.append(sum(p_j * v_j for p_j, v_j in zip(p, v_c, strict=True)))  # eq. 18
        out.append(at(m.out, torch.cat(u)))  # type: ignore[arg-type]  # eq. 19
    return torch.stack(out)


def gap_to_paper(m: Latent, *, mode: str, right: Latent | None = None) -> float:
    """|ours - paper's|; `right` holds the weights that the paper's equations take, m's own by default."""
    x = torch.randn(2, 7, 48, generator=torch.Generator().manual_seed(5))

    class Alone:
        masks, rotaries = (m.spec.mask,), (m.spec.rotary,)

    step = build_step(Alone(), torch.zeros(2, 7, dtype=torch.int64), mode=mode)  # type: ignore[arg-type]
    with torch.no_grad():
        got = m(x, step)
        return float((got - torch.stack([paper(right or m, row) for row in x])).abs().max())


@pytest.mark.parity
@pytest.mark.parametrize("mode", ["train", "prefill", "decode"])
@pytest.mark.parametrize("name", PARTS)
def test_latent_attention_is_the_paper_s(name: str, mode: str) -> None:
    part = model(PARTS[name]).decoder.layers[1].attn
    assert gap_to_paper(part, mode=mode) <= 1e-5


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("fault", ["unshared", "unnormed", "scale", "unturned", "swapped"])
def test_a_deliberate_fault_shows(fault: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = model(PARTS["v2"]).decoder.layers[1].attn
    part, expand = deepcopy(right), Latent.expand
    if fault == "unshared":  # each head reads a rotary key of its own
        mode = "prefill"
        own = lambda k: torch.cat((k, k.roll(1, -1), k.roll(2, -1)), 1)  # noqa: E731
        monkeypatch.setattr(Latent, "expand", lambda m, c, k: expand(m, c, own(k)))
    elif fault == "unnormed":
        part.kv_norm = nn.Identity()
    elif fault == "scale":  # the rotary numbers forgotten
        part.scale = part.spec.nope_head_dim**-0.5
    elif fault == "unturned":
        monkeypatch.setattr(latent, "rotate", lambda x, turn, s: x)
    else:  # values' rows where the keys' should be
        with torch.no_grad():
            part.kv_up.weight.copy_(right.kv_up.weight.unflatten(0, (3, -1)).flip(1).flatten(0, 1))
    assert gap_to_paper(part, mode=mode, right=right) > 1e-3


@pytest.mark.parity
@pytest.mark.parametrize("first", ["prefill", "decode"])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("name", PARTS)
def test_absorbed_decoding_equals_the_expanded_forward(name: str, chunks: str, first: str) -> None:
    core, ids = model(PARTS[name]), zoo.words(3, 11)
    with torch.no_grad():
        assert zoo.run(core, ids).std() > 0.3
        assert_same(
            core,
            lambda c: zoo.run(c, ids),
            lambda c: run_cached(c, ids, CHUNKS[chunks], Static(3, capacity=2), first),
        )


@pytest.mark.parametrize("mask", [Mask("causal", 3), Mask("prefix"), Mask("full")])
def test_absorbed_equals_expanded_under_every_mask_padded(mask: Mask) -> None:
    core, ids = model(replace(PARTS["v2"], mask=mask)), zoo.words(3, 11)
    real = torch.arange(11)[None] >= torch.tensor([0, 2, 5])[:, None]
    given = Inputs(padding_mask=real, prefix_len=torch.tensor([4, 3, 2]) if mask.kind == "prefix" else None)
    with torch.no_grad():
        assert_same(
            core,
            lambda c: c(ids, given, mode="prefill").logits[real],
            lambda c: c(ids, given, mode="decode").logits[real],
        )


def test_only_the_latent_and_the_rotary_key_are_cached() -> None:
    s, cache = PARTS["v2"], Static(3, capacity=4)
    core = model(s)
    with torch.no_grad():
        run_cached(core, zoo.words(2, 11), [8, 1, 1, 1], cache, "prefill")
    assert cache.bytes == 2 * 11 * 3 * (s.kv_rank + s.rotary.dim) * 4
    pair = cache.buffers[1]
    assert pair
    assert [b.shape[1::2] for b in pair] == [(1, s.kv_rank), (1, s.rotary.dim)]
    cache.reorder(torch.tensor([1, 1]))
    cache.select_rows(torch.tensor([1]))
    cache.truncate(5)
    assert cache.bytes == 5 * 3 * (s.kv_rank + s.rotary.dim) * 4


def test_taps_tell_enough_to_rebuild_the_pattern() -> None:
    heard: dict[str, Tensor] = {}

    class Ear:
        needs_eager_attention = True

        def tap(self, module: Any, name: str, x: Tensor) -> Tensor:
            heard.setdefault(f"{module.path}.{name}", x)
            return x

    core, at = model(PARTS["v2"]), "layers.1.attn."
    token = active_tracer.set(Ear())
    with torch.no_grad():
        zoo.run(core, zoo.words(2, 6), mode="prefill")
    active_tracer.reset(token)
    names = [n.removeprefix(at) for n in heard if n.startswith(at)]
    assert names == ["norm", "q_pre", "q", "latent", "k_rope", "k", "v", "score", "pattern", "z", "out"]
    part = core.decoder.layers[1].attn
    k, v = part.expand(heard[f"{at}latent"], heard[f"{at}k_rope"])
    assert torch.equal(k, heard[f"{at}k"])
    score = (heard[f"{at}q"] @ k.mT * part.scale).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    assert (score.softmax(-1) @ v - heard[f"{at}z"]).abs().max() <= 1e-6


def test_its_shape_comments_hold() -> None:
    core, ids = model(PARTS["v2"]), zoo.words(5, 9)
    with torch.no_grad(), checked(latent) as checker:
        zoo.run(core, ids)
        run_cached(core, ids, [8, 1], Static(3), "prefill")
    said = set(claims(Path(str(latent.__file__)).read_text(encoding="utf-8")))
    assert said == {line for _, line in checker.checked}


@pytest.mark.parametrize("kernel", kernels.KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("mask", [Mask("full"), Mask("causal"), Mask("causal", 3), Mask("prefix"), Mask("memory")])
def test_kernels_take_values_of_another_width_than_keys(kernel: Callable[..., torch.Tensor], mask: Mask) -> None:
    at, draw = Latent(PARTS["v2"], 48, 0, "attn"), torch.Generator().manual_seed(1)
    step = type("S", (), {"drop": staticmethod(lambda x, p: x), "tap": staticmethod(lambda m, n, x: x)})
    for groups, keys in ((3, 6), (1, 6), (1, 9), (3, 9)):
        slots = torch.arange(keys)
        free = torch.tensor([3, 1]) if mask.kind == "prefix" else None
        hidden = build_mask(mask, MaskContext(slots[-6:], slots, None, None, free))
        q, k, v = (torch.randn(2, n, t, d, generator=draw, requires_grad=True)
                   for n, t, d in ((3, 6, 48), (groups, keys, 48), (groups, keys, 20)))  # fmt: skip
        asked = q
        if kernel.__name__ == "gqa_decode":  # it takes the last query alone
            bias = None if hidden.bias is None else hidden.bias[:, :, -1:]
            asked, hidden = q[:, :, -1:], AttentionBias(bias, causal=False)
        both = [attend(asked, k, v, hidden, at, step) for attend in (kernel, attention.attend)]
        assert both[0].shape == (2, 3, asked.shape[2], 20)
        assert (both[0] - both[1]).abs().max() <= 1e-5
        grads = [torch.autograd.grad(z.square().sum(), (q, k, v)) for z in both]
        assert all((a - b).abs().max() <= 1e-4 for a, b in zip(*grads, strict=True))
