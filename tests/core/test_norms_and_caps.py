"""Norms with an offset, over all heads, shared by both parts of a layer; capped scores and logits."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import zoo
from torch import Tensor

from qkv.core import kernels
from qkv.core.attention import Attention, attend
from qkv.core.masks import MaskContext, build_mask
from qkv.core.norm import Norm
from qkv.data.collate import Batch
from qkv.errors import QkvError
from qkv.spec import Attention as AttentionSpec
from qkv.spec import Block, Ffn, Mask
from qkv.spec import Norm as NormSpec
from qkv.training.losses import token_loss

IDS = zoo.words(3, 9)


def heard(core: Any, *names: str) -> list[Tensor]:
    """Taps of one run, by name."""
    from qkv.lens.trace import Trace

    with Trace(core, save=list(names)) as t, torch.no_grad():
        zoo.run(core, IDS)
    return [t[name] for name in names]


def rms(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("kind", ["rms", "unbiased", "layer"])
def test_an_offset_is_added_to_the_weight(kind: Any) -> None:
    norm, x = Norm(NormSpec(kind, 1e-6, offset=1.0), 48, "norm").double(), torch.randn(5, 48, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.normal_()
    centred = x if kind == "rms" else x - x.mean(-1, keepdim=True)
    assert torch.allclose(norm(x), rms(centred, 1 + norm.weight), atol=1e-12)
    object.__setattr__(norm.spec, "offset", 0.0)
    assert not torch.allclose(norm(x), rms(centred, 1 + norm.weight), atol=1e-2)


def test_q_and_k_are_normed_over_all_heads_together() -> None:
    core = zoo.made(zoo.together())
    attn = core.decoder.layers[0].attn
    before, after = heard(core, "layers.0.attn.k_pre", "layers.0.attn.k")  # B G T K
    joined = before.transpose(1, 2).flatten(2)
    want = rms(joined, attn.k_norm.weight).unflatten(-1, (2, 16)).transpose(1, 2)
    assert attn.k_norm.weight.shape == (32,)
    assert torch.allclose(want[:, :, 0], after[:, :, 0], atol=1e-6)  # nothing is turned at position 0
    assert not torch.allclose(rms(before, attn.k_norm.weight.view(2, 1, 16))[:, :, 0], after[:, :, 0], atol=1e-2)


def test_both_parts_of_a_parallel_layer_read_one_norm() -> None:
    core = zoo.made(zoo.together())
    block = core.decoder.layers[1]
    names = ("resid_in", "attn.norm", "ffn.norm", "attn.out", "ffn.out", "resid_out")
    x, left, right, a, f, y = heard(core, *(f"layers.1.{n}" for n in names))
    assert torch.allclose(left, F.layer_norm(x, (48,), block.attn_in.weight, block.attn_in.bias), atol=1e-6)
    assert torch.equal(left, right)
    assert torch.allclose(y, x + a + f, atol=1e-6)
    assert not [n for n, _ in block.named_parameters() if n.startswith("ffn_in")]


def test_only_a_parallel_layer_shares_its_norm() -> None:
    with pytest.raises(QkvError, match="norms='each'"):
        Block(AttentionSpec(2, 2, 16, Mask("causal")), Ffn(32, "relu"), norms="one")


@pytest.mark.parametrize("cap", [2.0, None])
def test_capped_scores_are_the_formula_word_by_word(cap: float | None) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, 7, 16, generator=draw, dtype=torch.float64) * 3 for n in (4, 2, 2))
    at = Attention(AttentionSpec(4, 2, 16, Mask("causal", 4), cap=cap), 48, 0, "attn")
    where = torch.arange(7)
    mask = build_mask(at.spec.mask, MaskContext(where, where))
    want = torch.zeros(2, 4, 7, 16, dtype=torch.float64)
    for b in range(2):
        for h in range(4):
            for t in range(7):
                seen = range(max(0, t - 3), t + 1)
                scores = torch.stack([q[b, h, t] @ k[b, h // 2, s] / 4 for s in seen])
                weights = (2.0 * torch.tanh(scores / 2.0)).softmax(0)
                want[b, h, t] = sum(w * v[b, h // 2, s] for s, w in zip(seen, weights, strict=True))
    step = zoo_step()
    for kernel in (attend, kernels.attend, kernels.small_matmul):
        assert torch.allclose(kernel(q, k, v, mask, at, step), want, atol=1e-12) == (cap == 2.0)


def zoo_step() -> Any:
    from core.test_kernels import begin_nothing

    return begin_nothing()


def test_a_capped_score_never_reaches_a_kernel_that_cannot_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: pytest.fail("capped nothing"))
    zoo.run(zoo.made(zoo.capped()), IDS)


def test_logits_are_capped_and_the_loss_is_that_of_capped_logits() -> None:
    core = zoo.made(zoo.capped())
    logits, labels = zoo.run(core, IDS), zoo.words(3, 9, seed=5)
    hidden = core.hidden(IDS)
    assert torch.allclose(logits, 3 * torch.tanh(hidden @ core.embed.weight.T / 3), atol=1e-6)
    assert not torch.allclose(logits, hidden @ core.embed.weight.T, atol=1e-2)
    for smoothing in (0.0, 0.1):
        want = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                got = token_loss(core, Batch(target=IDS, labels=labels), smoothing=smoothing)
            assert got.item() == pytest.approx(want.item(), rel=1e-5)


def test_a_trace_explains_capped_scores_and_logits() -> None:
    from qkv.lens.trace import Trace

    core = zoo.made(zoo.capped())
    with Trace(core, save=["*.pattern", "*.v", "*.z"]) as t, torch.no_grad():
        zoo.run(core, IDS)
    assert max(t.check().values()) <= 1e-5
    for attn in (layer.attn for layer in core.decoder.layers):
        object.__setattr__(attn.spec, "cap", 9.0)
    assert max(t.check().values()) > 1e-2
