"""Layers that multiply by oneDNN say what open ones say, notice changed weights, and learn as open ones do."""

import copy

import pytest
import torch
from torch import nn

from qkv.adapt import native, onednn_linear, quantise, row_layers, row_products

able = pytest.mark.skipif(not onednn_linear.has_bf16_products(), reason="no bf16 products in oneDNN here")


def pair(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(96, 160, bias=bias).to(torch.bfloat16)
    twin = copy.deepcopy(plain)
    assert onednn_linear.pack_weights(twin) == 1
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
    assert isinstance(packed, onednn_linear.Packed)
    most = row_products.most_rows("bf16", packed.weight.numel(), low=True, tokens=shape[1])
    few = native.library() is not None and shape[0] * shape[1] <= most
    assert (packed.packed is None) == few


@able
def test_a_changed_weight_is_packed_again() -> None:
    plain, packed = pair()
    x = torch.randn(40, 96).bfloat16()
    gap(plain, packed, x)
    with torch.no_grad():
        packed.weight.mul_(2)
    assert gap(plain, packed, x) > 0.1
    with torch.no_grad():
        plain.weight.mul_(2)
    assert gap(plain, packed, x) <= 2**-8
    packed.weight = nn.Parameter(torch.zeros(160, 96, dtype=torch.bfloat16))
    with torch.no_grad():
        assert torch.equal(packed(x), packed.bias.expand(40, -1))


@able
def test_a_stale_copy_would_be_noticed() -> None:
    plain, packed = pair()
    x = torch.randn(40, 96).bfloat16()
    gap(plain, packed, x)
    assert isinstance(packed, onednn_linear.Packed)
    assert packed.packed is not None
    packed.packed = packed.packed[0], torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach() * 2, 32)
    assert gap(plain, packed, x) > 0.1


@able
def test_training_copies_and_checkpoints_know_nothing_of_it() -> None:
    plain, packed = pair()
    x = torch.randn(40, 96).bfloat16()
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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("native_too", [True, False])
def test_where_nothing_multiplies_bf16_many_rows_take_fp32(
    native_too: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn_linear, "has_bf16_products", lambda: False)
    if not native_too:
        monkeypatch.setattr(native, "library", lambda: None)
    torch.manual_seed(0)
    layer = nn.Linear(96, 1210, bias=bias).to(torch.bfloat16)
    x, exact = torch.randn(2, 50, 96).bfloat16(), copy.deepcopy(layer).double()
    assert onednn_linear.pack_weights(layer) == 1
    widened, real = list[int](), onednn_linear.multiply_widened
    monkeypatch.setattr(onednn_linear, "multiply_widened", lambda *a: (widened.append(1), real(*a))[1])
    with torch.inference_mode():
        got, want = layer(x), exact(x.double())
        assert widened == [1]
        assert got.dtype == torch.bfloat16
        assert (got.double() - want).abs().max() <= 2**-8 * want.abs().max()  # rounded once
    layer(x).sum().backward()
    assert widened == [1]
    assert layer.weight.grad is not None
    quantised = nn.Sequential(nn.Linear(96, 1210, bias=bias).to(torch.bfloat16))
    for kind in ("int8", "int4"):
        core = nn.ModuleDict({"decoder": nn.ModuleDict({"layers": copy.deepcopy(quantised)})})
        quantise.quantise(core, kind)
        (few,) = quantise.find_quantised(core).values()
        with torch.inference_mode():
            want = nn.functional.linear(x.double(), few.weight.double(), few.bias.double() if bias else None)
            assert (few(x).double() - want).abs().max() <= 2**-7 * want.abs().max(), kind


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_in_fp32_a_wide_product_says_the_same_without_a_copy(
    rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn_linear, "is_mkl_slow", lambda: True)
    layer = nn.Linear(1024, 1040, bias=bias)
    x, exact = torch.randn(rows, 1024), copy.deepcopy(layer).double()
    assert onednn_linear.pack_weights(layer) == 1
    with torch.inference_mode():
        got = layer(x)
        assert (got - exact(x.double())).abs().max() <= 1e-5
        assert (layer(x[:, None])[:, 0] - exact(x.double())).abs().max() <= 1e-5  # by our own kernel
    assert isinstance(layer, onednn_linear.Packed)
    assert layer.packed is None


@pytest.mark.skipif(native.library() is None, reason="no compiled kernels here")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inputs", [96, 176, 40])  # 40 is no multiple of 16
def test_in_fp32_a_token_says_the_same_in_any_company(inputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(inputs, 1210, bias=bias))
    exact, x = copy.deepcopy(layer).double(), torch.randn(40, 1, inputs)
    row_layers.use_rows(layer)
    assert isinstance(layer[0], onednn_linear.Packed)
    with torch.inference_mode():
        alone = torch.cat([layer(row[None]) for row in x])
        together = {rows: layer(x[:rows]) for rows in (2, 3, 8, 9, 32, 40)}
        many = layer(x.transpose(0, 1))  # the tokens of one text
    for got in (*together.values(), alone, many):
        assert (got.flatten(0, 1) - exact(x.double())[: got[..., 0].numel(), 0]).abs().max() <= 1e-5
    if inputs % 16 == 0:
        assert all(torch.equal(got, alone[:rows]) for rows, got in together.items() if rows <= 32)
    layer(x).sum().backward()
    exact(x.double()).sum().backward()
    assert torch.allclose(layer[0].weight.grad.double(), exact[0].weight.grad, atol=1e-5)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, torch.Size]]:
    """A processor of which MKL uses half: the sizes of what oneDNN multiplies, as it does."""
    asked, real = list[tuple[torch.Size, torch.Size]](), torch.ops.mkldnn._linear_pointwise

    def heard(x: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
        asked.append((x.shape, weight.shape))
        return real(x, weight, *rest)

    monkeypatch.setattr(onednn_linear, "is_mkl_slow", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", heard)
    return asked


def test_in_fp32_oneDNN_multiplies_where_it_pays_and_nowhere_else(wide: list[object]) -> None:
    layer = nn.Linear(512, 1024)
    onednn_linear.pack_weights(layer)
    with torch.inference_mode():
        layer(torch.ones(1, 512))
        assert not wide
        layer(torch.ones(2, 512))
        assert len(wide) == 1
        layer.double()(torch.ones(64, 512).double())
        with torch.autocast("cpu", torch.bfloat16):
            assert layer.float()(torch.ones(64, 512)).dtype == torch.bfloat16
    assert len(wide) == 1
    torch.func.jvp(layer, (torch.ones(64, 512),), (torch.ones(64, 512),))
    assert len(wide) == 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lay", ["rows", "turned", "repeated"])
def test_in_fp32_gradients_and_theirs_are_what_they_are_in_fp64(wide: list[object], bias: bool, lay: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(160, 96, bias=bias)
    exact = copy.deepcopy(layer).double()
    onednn_linear.pack_weights(layer)
    x = {"rows": torch.randn(3, 50, 160), "turned": torch.randn(3, 160, 50).mT,
         "repeated": torch.randn(3, 1, 160).expand(3, 50, 160)}[lay]  # fmt: skip
    found = list[list[torch.Tensor]]()
    for one, made in ((layer, x), (exact, x.double())):
        given = made.detach().requires_grad_()
        inner = one(given).pow(3).sum()
        first = torch.autograd.grad(inner, [given, *one.parameters()], create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), [given, *one.parameters()])
        found.append([*first, *second])
    assert len(wide) >= 6  # forward, two gradients, and what they are made of again
    for got, want in zip(*found, strict=True):
        assert got.shape == want.shape
        assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_a_frozen_weight_gets_no_gradient_and_costs_none(wide: list[object]) -> None:
    layer = nn.Linear(512, 256).requires_grad_(False)
    onednn_linear.pack_weights(layer)
    layer(torch.randn(64, 512, requires_grad=True)).sum().backward()
    assert layer.weight.grad is None
    assert wide == [((64, 512), (256, 512)), ((64, 256), (512, 256))]
    wide.clear()
    layer.requires_grad_()
    layer(torch.randn(64, 512)).sum().backward()  # nor is one made for an input that wants none
    assert wide == [((64, 512), (256, 512)), ((256, 64), (512, 64))]


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"avx512_f": True, "cpu_name": "AMD EPYC"}, True),
        ({"avx512_f": True, "cpu_name": "Intel Xeon Processor (SapphireRapids)"}, False),
        ({"avx512_f": False, "cpu_name": "AMD Ryzen 7"}, False),
        ({"cpu_name": "Apple M4", "architecture": "arm64"}, False),
        ({"avx512_f": True}, False),  # nobody knows whose it is
        (None, False),
    ],
)
def test_fp32_is_wide_where_mkl_leaves_half_of_the_processor_unused(
    known: dict[str, object] | None, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert onednn_linear.is_mkl_slow.__wrapped__() is says
    monkeypatch.setattr(onednn_linear, "OPERATIONS", ("_gone",))
    onednn_linear.has_operations.cache_clear()
    assert onednn_linear.is_mkl_slow.__wrapped__() is False
    onednn_linear.has_operations.cache_clear()


def test_other_precisions_and_other_layers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Linear):
        pass

    monkeypatch.setattr(onednn_linear, "is_mkl_slow", lambda: False)
    assert onednn_linear.pack_weights(nn.Linear(4, 4)) == 0
    assert onednn_linear.pack_weights(nn.Linear(4, 4).double()) == 0
    assert onednn_linear.pack_weights(Own(4, 4).to(torch.bfloat16)) == 0
    assert onednn_linear.pack_weights(nn.Linear(4, 4, device="meta", dtype=torch.bfloat16)) == 0


def test_where_two_copies_would_fill_the_memory_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(nn.Linear(64, 64)).to(torch.bfloat16)
    monkeypatch.setattr(onednn_linear, "has_bf16_products", lambda: True)
    monkeypatch.setattr(onednn_linear, "read_memory_size", lambda: 4 * 64 * 64 * 2 - 1)
    assert onednn_linear.pack_weights(layers) == 0
    assert type(layers[0]) is nn.Linear
