"""Layers of few bits are held to F.linear with their numbers written out, with and without the compiled kernels."""

import copy
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.adapt import lora, native, quantise, row_products
from qkv.errors import QkvError
from qkv.messages import Message


@pytest.fixture(params=["kernels", "plain"])
def way(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(native, "find_library", lambda: Message("none"))
    return request.param


def layer(dtype, kind, width=96):
    torch.manual_seed(0)
    made = torch.nn.Linear(width, 64).to(dtype)
    quantise.hold(made, *quantise.round_weight(made.weight.detach(), kind))
    return made


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 40)])
def test_a_layer_multiplies_by_its_numbers(way, kind, dtype, shape):
    few, x = layer(dtype, kind), torch.randn(*shape, 96).to(dtype)
    with torch.inference_mode():
        got, wide = few(x), few.weight.double()
    want = F.linear(x.double(), wide, few.bias.double())
    room = 2**-7 if dtype == torch.bfloat16 else 2**-18  # roundings of the sum and of the output
    assert got.dtype == dtype
    assert (got - want).abs().max() <= room * F.linear(x.double().abs(), wide.abs()).max()


def test_threads_that_multiply_at_once_share_no_memory():
    layers = [layer(torch.float32, "int4", width) for width in (96, 64, 256, 32)]
    inputs = [torch.randn(40, one.in_features) for one in layers]
    with torch.inference_mode():
        alone = [one(x) for one, x in zip(layers, inputs, strict=True)]

    def work(n):
        with torch.inference_mode():
            return all(torch.equal(layers[n](inputs[n]), alone[n]) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def spread():
    return torch.randn(40, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 2, 40)[:, None]


def test_numbers_lie_within_half_a_step():
    weight = spread()
    held, scale = quantise.round_weight(weight, "int8")
    back = row_products.open_matrix("int8", held, scale)
    assert ((back - weight).abs() <= scale * 0.51 + weight.abs() * 2**-7).all()
    assert torch.equal(scale.bfloat16().float(), scale)


def test_four_bits_err_less_than_ggml_does():
    weight = spread()
    held, _ = quantise.round_weight(weight, "int4")
    kind = gguf.GGMLQuantizationType.Q4_0
    theirs = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind))
    ours = row_products.open_matrix("Q4_0", held, None)
    errors = [((back - weight).square().sum(1) / weight.square().sum(1)).mean() for back in (ours, theirs)]
    assert errors[0] < 0.95 * errors[1]
    scale = held[..., :2].contiguous().view(torch.float16).float()
    assert torch.equal(scale.bfloat16().float(), scale)
    assert (quantise.round_weight(torch.zeros(2, 64), "int4")[0][..., 2:] == 0x88).all()


def test_q4_1_keeps_the_numbers_of_its_file(way):
    weight, kind = spread(), gguf.GGMLQuantizationType.Q4_1
    blocks = gguf.quants.quantize(weight.numpy(), kind)
    layer = torch.nn.Linear(64, 40, bias=False)
    quantise.hold(layer, torch.from_numpy(blocks).view(40, 2, 20), None)
    assert np.array_equal(layer.weight.numpy(), gguf.quants.dequantize(blocks, kind))
    x = torch.randn(3, 64)
    with torch.inference_mode():
        assert torch.allclose(layer(x), x @ layer.weight.T, rtol=1e-5, atol=1e-3)
    assert not quantise.is_storable(layer)


def test_the_head_multiplies_in_int8_and_keeps_its_weight(way):
    plain, few = (qkv.load("demo-lm", device="cpu", dtype=kind).core for kind in ("bf16", "int8"))
    assert type(few.head) is quantise.RoundedHead
    assert torch.equal(few.head.weight, plain.head.weight)
    assert few.state_dict().keys() >= {"head.weight"} & plain.state_dict().keys()
    x = torch.randn(40, few.head.in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    held, scale = quantise.round_weight(plain.head.weight.detach(), "int8")
    want = x.double() @ (held * scale).double().T
    for rows in (1, 40):
        with torch.inference_mode():
            got = few.head(x[:rows])
        assert 0 < (got - want[:rows]).abs().max() <= 2**-7 * want.abs().max()
    with torch.no_grad():
        few.head.weight.mul_(2)  # a changed one is rounded again
        assert (few.head(x) - 2 * want).abs().max() <= 2**-6 * want.abs().max()


def test_blocks_are_those_of_the_gguf_package():
    held, _ = quantise.round_weight(torch.randn(6, 128, generator=torch.Generator().manual_seed(0)), "int4")
    want = gguf.quants.dequantize(held.flatten(1).numpy(), gguf.GGMLQuantizationType.Q4_0)
    assert np.array_equal(row_products.open_matrix("Q4_0", held, None).numpy(), want)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_model_in_few_bits_says_what_its_numbers_say(way, kind):
    few = qkv.load("demo-lm", device="cpu", dtype=kind)
    kinds = {name: layer.kind for name, layer in quantise.find_quantised(few.core).items()}
    assert len(kinds) == 7 * len(few.core.decoder.layers)
    assert {k for n, k in kinds.items() if not n.endswith(".v")} == {quantise.KINDS[kind]}
    assert {k for n, k in kinds.items() if n.endswith(".v")} == {"int8"}
    assert few.core.head.weight.dtype == few.core.embed.weight.dtype == torch.bfloat16
    assert few.generate("The cat", max_new_tokens=5).tokens
    few.core.float()  # so that rounding does not hide a fault
    ids = torch.tensor([few.ids("The cat sat on the mat.")])
    got = few(ids).hidden
    quantise.write_out(few.core)
    assert torch.allclose(got, few(ids).hidden, atol=1e-4)


def test_more_bits_lie_nearer_to_the_model(way):
    plain, gaps = qkv.load("demo-lm", device="cpu"), []
    ids = torch.tensor([plain.ids("The cat sat on the mat. The dog ran into the garden.")])
    for kind in ("int8", "int4"):
        few = quantise.share(plain.core, kind)
        with torch.inference_mode():
            gaps.append(float((few(ids).logits - plain(ids).logits).square().mean().sqrt()))
    assert 0 < 4 * gaps[0] < gaps[1]  # a step is 16 times as wide in int4 but for its smaller groups
    assert not quantise.find_quantised(plain.core)


def test_cached_and_whole_agree_in_few_bits(way):
    few = qkv.load("demo-lm", device="cpu", dtype="int8")
    few.core.float()  # so that rounding does not hide a fault
    ids = few.ids("The cat sat on the mat and looked at the")
    long = few.generate(ids, max_new_tokens=6)
    assert long.tokens == few.generate(ids, max_new_tokens=6, cache=False).tokens


def test_gradients_pass_through_to_the_input(way):
    few = layer(torch.float32, "int8")
    x = torch.randn(2, 96, requires_grad=True)
    few(x).sum().backward()
    assert torch.allclose(x.grad, few.weight.sum(0).expand(2, -1), atol=1e-5)


def test_written_out_it_is_an_ordinary_layer_again():
    model = qkv.load("demo-lm", device="cpu")
    before = {name: p.shape for name, p in model.core.named_parameters()}
    quantise.quantise(model.core, "int4")
    wanted = {name: m.weight for name, m in quantise.find_quantised(model.core).items()}
    assert quantise.write_out(model.core) == len(wanted)
    assert {name: p.shape for name, p in model.core.named_parameters()} == before
    assert all(torch.equal(model.core.get_parameter(f"{name}.weight"), w) for name, w in wanted.items())
    assert len(lora.attach(model.core, lora.Lora(2))) > 0


def test_globs_choose_the_layers():
    model = qkv.load("demo-lm", device="cpu")
    quantise.quantise(model.core, "int8", ["*.ffn.*"])
    assert {name.rpartition(".")[2] for name in quantise.find_quantised(model.core)} == {"gate", "up", "down"}
    with pytest.raises(QkvError, match="int4"):
        quantise.quantise(qkv.load("demo-lm", device="cpu").core, "int4", ["none"])


def test_a_copy_and_a_move_keep_the_bytes():
    few = layer(torch.float32, "int8")
    twin = copy.deepcopy(few).to(torch.bfloat16)
    assert twin.weight_scale.dtype == torch.float32
    assert twin.weight.dtype == torch.bfloat16
    assert torch.equal(twin.weight, few.weight.bfloat16())
