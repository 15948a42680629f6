"""Packed layers say what open ones say, notice changed weights, and leave training and checkpoints alone."""

import copy

import pytest
import torch
from torch import nn

from qkv.adapt import pack

able = pytest.mark.skipif(not pack.fits(torch.zeros(1, dtype=torch.bfloat16)), reason="no bf16 products in oneDNN here")


def pair(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(96, 160, bias=bias).to(torch.bfloat16)
    twin = copy.deepcopy(plain)
    assert pack.pack(twin) == 1
    return plain, twin


def gap(plain: nn.Linear, packed: nn.Linear, x: torch.Tensor) -> float:
    with torch.inference_mode():
        return float((plain(x) - packed(x)).abs().max() / plain(x).abs().max())


@able
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (130, 1)])
def test_a_packed_layer_says_the_same(shape: tuple[int, int], bias: bool) -> None:
    plain, packed = pair(bias)
    assert gap(plain, packed, torch.randn(*shape, 96).bfloat16()) <= 2**-8  # one rounding of bf16
    assert isinstance(packed, pack.Packed)
    assert packed.packed is not None


@able
def test_a_changed_weight_is_packed_again() -> None:
    plain, packed = pair()
    x = torch.randn(4, 96).bfloat16()
    gap(plain, packed, x)
    with torch.no_grad():
        packed.weight.mul_(2)
    assert gap(plain, packed, x) > 0.1
    with torch.no_grad():
        plain.weight.mul_(2)
    assert gap(plain, packed, x) <= 2**-8
    packed.weight = nn.Parameter(torch.zeros(160, 96, dtype=torch.bfloat16))
    with torch.no_grad():
        assert torch.equal(packed(x), packed.bias.expand(4, -1))


@able
def test_a_stale_copy_would_be_noticed() -> None:
    plain, packed = pair()
    x = torch.randn(4, 96).bfloat16()
    gap(plain, packed, x)
    assert isinstance(packed, pack.Packed)
    assert packed.packed is not None
    packed.packed = packed.packed[0], torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach() * 2, 32)
    assert gap(plain, packed, x) > 0.1


@able
def test_training_copies_and_checkpoints_know_nothing_of_it() -> None:
    plain, packed = pair()
    x = torch.randn(4, 96).bfloat16()
    gap(plain, packed, x)
    packed(x).sum().backward()
    plain(x).sum().backward()
    assert plain.weight.grad is not None
    assert packed.weight.grad is not None
    assert torch.equal(packed.weight.grad, plain.weight.grad)
    assert list(packed.state_dict()) == ["weight", "bias"]
    assert torch.equal(packed.state_dict()["weight"], plain.weight)
    assert gap(plain, copy.deepcopy(packed), x) <= 2**-8
    assert gap(copy.deepcopy(plain).float(), copy.deepcopy(packed).float(), x.float()) == 0
    assert repr(packed).startswith("Packed(in_features=96, out_features=160")


def test_other_precisions_and_other_layers_are_left_alone() -> None:
    class Own(nn.Linear):
        pass

    assert pack.pack(nn.Linear(4, 4)) == 0
    assert pack.pack(Own(4, 4).to(torch.bfloat16)) == 0
    assert pack.pack(nn.Linear(4, 4, device="meta", dtype=torch.bfloat16)) == 0


def test_where_two_copies_would_fill_the_memory_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(nn.Linear(64, 64)).to(torch.bfloat16)
    monkeypatch.setattr(pack, "installed", lambda: 4 * 64 * 64 * 2 - 1)
    assert pack.pack(layers) == 0
    assert type(layers[0]) is nn.Linear
