"""Quantised checkpoints: each matrix is that of its method's formula, written here as slow loops, or of its package.

The loops pack; nothing here calls our unpacking but through `qkv.load`.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.adapt import quantise
from qkv.checkpoints import model_dir, quantized, storage
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Rotary, Spec, Stack

BLOCK = Block(Attention(2, 1, 32, Mask("causal"), rotary=Rotary(32)), Ffn(64, "silu", gated=True),
              norm_in=Norm("rms", 1e-6))
SMALL = Spec(16, Stack(64, (BLOCK,), final_norm=Norm("rms", 1e-6), context=64), head=Head("untied"))
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 16, "n_positions": 64}
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each 4 bits of a word, by its paper's code


def as_word(numbers, bits: int) -> int:
    """Numbers as one word with a sign, the first in the lowest bits."""
    word = sum(int(n) << (bits * i) for i, n in enumerate(numbers))
    return word - (1 << 32) if word >= 1 << 31 else word


def pack_columns(rows, bits: int, order=None) -> torch.Tensor:
    """Rows of numbers without sign as words, `32 / bits` columns in each."""
    many = 32 // bits
    order = order or range(many)
    return torch.tensor([[as_word([row[at + i] for i in order], bits) for at in range(0, len(row), many)]
                         for row in rows], dtype=torch.int32)


def draw(shape, groups: int, low: int, high: int):
    """Numbers, scales and zeros that a method could have found."""
    codes = torch.randint(low, high + 1, shape)
    return codes, torch.rand(shape[0], groups) / 50 + 0.01, torch.randint(low + 1, high, (shape[0], groups))


def multiply(codes, scale, zero, group) -> torch.Tensor:
    """(code - zero) * scale, number by number in float64."""
    made = torch.empty(codes.shape, dtype=torch.float64)
    for o in range(codes.shape[0]):
        for i in range(codes.shape[1]):
            g = int(group[i])
            made[o, i] = (float(codes[o, i]) - float(zero[o, g])) * float(scale[o, g])
    return made


def make_gptq(shape, bits: int = 4, order: bool = False, **_):
    groups = shape[1] // 32
    codes, scale, zero = draw(shape, groups, 0, 2**bits - 1)
    group = torch.arange(shape[1]) // 32
    group = group[torch.randperm(shape[1])] if order else group
    parts = {"qweight": pack_columns(codes.tolist(), bits).T, "scales": scale.T,
             "qzeros": pack_columns((zero.T - 1).tolist(), bits), "g_idx": group.int(), "bias": torch.zeros(shape[0])}
    return parts, multiply(codes, scale, zero, group)


def make_awq(shape, **_):
    codes, scale, zero = draw(shape, shape[1] // 32, 0, 15)
    parts = {"qweight": pack_columns(codes.T.tolist(), 4, AWQ), "scales": scale.T,
             "qzeros": pack_columns(zero.T.tolist(), 4, AWQ)}
    return parts, multiply(codes, scale, zero, torch.arange(shape[1]) // 32)


def make_packed(shape, bits: int = 4, zeros: bool = False, order: bool = False, **_):
    half = 2 ** (bits - 1)
    codes, scale, zero = draw(shape, shape[1] // 32, -half, half - 1)
    group = torch.arange(shape[1]) // 32
    group = group[torch.randperm(shape[1])] if order else group
    parts = {"weight_packed": pack_columns((codes + half).tolist(), bits), "weight_shape": torch.tensor(shape),
             "weight_scale": scale}
    parts |= {"weight_zero_point": pack_columns((zero + half).T.tolist(), bits).T} if zeros else {}
    parts |= {"weight_g_idx": group.int()} if order else {}
    return parts, multiply(codes, scale, zero if zeros else 0 * zero, group)


def make_int8(shape, **_):
    codes, scale, zero = draw(shape, 1, -128, 127)
    return ({"weight": codes.to(torch.int8), "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)},
            multiply(codes, scale, zero, [0] * shape[1]))


def make_fp8(shape, block: int = 0, name: str = "weight_scale", **_):
    codes = torch.randn(shape).to(torch.float8_e4m3fn)
    rows, columns = ([-(-n // block) for n in shape] if block else (shape[0], 1))
    scale = torch.rand(rows, columns) + 0.5
    made = torch.tensor([[float(codes[o, i]) * float(scale[o // block if block else o, i // block if block else 0])
                          for i in range(shape[1])] for o in range(shape[0])], dtype=torch.float64)
    return {"weight": codes, name: scale, "input_scale": torch.ones(())}, made


def make_bytes(shape, **_):
    codes, largest = torch.randint(-127, 128, shape), torch.rand(shape[0]) * 9 + 1
    made = torch.tensor([[float(codes[o, i]) * float(largest[o]) / 127 for i in range(shape[1])]
                         for o in range(shape[0])], dtype=torch.float64)
    return {"weight": codes.to(torch.int8), "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}, made


def make_table(shape, nested: bool = False, run: int = 64, **_):
    count = shape[0] * shape[1]
    codes, table, runs = torch.randint(0, 16, (count,)), torch.linspace(-1, 1, 16), -(-count // run)
    state = {"quant_type": "nf4", "blocksize": run, "shape": list(shape), "dtype": "float32"}
    parts = {"weight": torch.tensor([[int(codes[i]) * 16 + int(codes[i + 1])] for i in range(0, count, 2)],
                                    dtype=torch.uint8), "weight.quant_map": table}
    if nested:
        small, outer = torch.randint(0, 256, (runs,), dtype=torch.uint8), torch.rand(-(-runs // 256)) + 1
        inner = torch.linspace(-1, 1, 256)
        state |= {"nested_blocksize": 256, "nested_offset": 0.25, "nested_dtype": "float32"}
        parts |= {"weight.absmax": small, "weight.nested_absmax": outer, "weight.nested_quant_map": inner}
        largest = [float(inner[int(small[i])]) * float(outer[i // 256]) + 0.25 for i in range(runs)]
    else:
        largest = (torch.rand(runs) / 9).tolist()
        parts["weight.absmax"] = torch.tensor(largest)
    said = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    made = [float(table[int(codes[i])]) * largest[i // run] for i in range(count)]
    return {**parts, "weight.quant_state.bitsandbytes__nf4": said}, torch.tensor(made, dtype=torch.float64).view(shape)


def pressed(form: str, **weights) -> dict:
    """The settings of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, **weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


CASES = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, make_gptq, {}),
    "gptq 8 bits in another order": ({"quant_method": "gptq", "bits": 8, "desc_act": True}, make_gptq,
                                     {"bits": 8, "order": True}),
    "gptq 2 bits": ({"quant_method": "gptq", "bits": 2}, make_gptq, {"bits": 2}),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, make_awq, {}),
    "int4": (pressed("pack-quantized"), make_packed, {}),
    "int4 with zeros": (pressed("pack-quantized"), make_packed, {"zeros": True}),
    "int4 in another order": (pressed("pack-quantized"), make_packed, {"order": True, "zeros": True}),
    "int8 packed": (pressed("pack-quantized", num_bits=8), make_packed, {"bits": 8}),
    "int8": (pressed("int-quantized", num_bits=8, group_size=None), make_int8, {}),
    "fp8 by rows": (pressed("float-quantized", num_bits=8, group_size=None), make_fp8, {}),
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [48, 48]}, make_fp8,
                      {"block": 48, "name": "weight_scale_inv"}),
    "bitsandbytes int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, make_bytes, {}),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, make_table, {}),
    "nf4 packed twice": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, make_table, {"nested": True}),
}  # fmt: skip


def write(tmp_path, settings, make, **how):
    """A llama whose linear layers are packed; what each was packed from."""
    torch.manual_seed(0)
    qkv.build(SMALL).save(tmp_path, family="llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    tensors, expected = load_file(tmp_path / "model.safetensors"), {}
    for name in [n for n in tensors if "_proj." in n]:
        parts, expected[name] = make(list(tensors.pop(name).shape), **how)
        tensors |= {f"{name.removesuffix('.weight')}.{p}": t.contiguous() for p, t in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    return expected


def read_back(model, tmp_path):
    """The tensors of a loaded model as it saves them."""
    model.save(tmp_path / "plain", dtype=torch.float32)
    assert "quantization_config" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    return load_file(tmp_path / "plain" / "model.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_matrices_are_those_of_the_formula(case, tmp_path):
    settings, make, how = CASES[case]
    expected = write(tmp_path, settings, make, **how)
    found = read_back(qkv.load(tmp_path, device="cpu", dtype="fp32"), tmp_path)
    assert len(expected) == 7
    for name, want in expected.items():
        assert (found[name].double() - want).abs().max() <= 4e-7 * want.abs().max(), name


def test_a_kernel_may_take_the_numbers_as_they_are_packed(tmp_path):
    settings, make, how = CASES["gptq 8 bits in another order"]
    expected = write(tmp_path, settings, make, **how)
    read = model_dir.read_packing(tmp_path)
    tensors, zeros = quantized.unpack_tensors(storage.open_tensors(tmp_path), read, tmp_path / "config.json")
    packed = tensors["model.layers.0.mlp.down_proj.weight"].read()
    assert isinstance(packed, quantized.Grouped)
    assert packed.codes.dtype == torch.uint8
    want = expected["model.layers.0.mlp.down_proj.weight"]
    assert torch.allclose(multiply(packed.codes, packed.scale, packed.zero, packed.group), want, rtol=1e-6)
    assert len(zeros) == 7  # GPTQ's biases of zeros


def make_held(shape, bits: int = 4, method: str = "gptq", zero: int = 0, many: int = 32):
    """As a method writes it when zeros stand in the middle, or `zero` off it, and fp16 holds the scales."""
    groups, half = -(-shape[1] // many), 2 ** (bits - 1)
    codes, scale, zeros = draw(shape, groups, 0, 2**bits - 1)
    scale, zeros, group = scale.half().float(), torch.full_like(zeros, half + zero), torch.arange(shape[1]) // many
    want = multiply(codes, scale, zeros, group)
    if method == "gptq":
        return {"qweight": pack_columns(codes.tolist(), bits).T, "scales": scale.T, "g_idx": group.int(),
                "qzeros": pack_columns((zeros.T - 1).tolist(), bits)}, want
    parts = {"weight_packed": pack_columns(codes.tolist(), bits), "weight_shape": torch.tensor(shape)}
    low = {"weight_zero_point": pack_columns(zeros.T.tolist(), bits).T} if zero else {}
    return {**parts, **low, "weight_scale": scale}, want


GPTQ = {"quant_method": "gptq", "group_size": 32}


@pytest.mark.parametrize(("settings", "how", "kind"), [
    ({**GPTQ, "bits": 4}, {}, "Q4_0"), ({**GPTQ, "bits": 8}, {"bits": 8}, "Q8_0"),
    (pressed("pack-quantized"), {"method": "packed"}, "Q4_0"),
    (pressed("pack-quantized", group_size=48), {"method": "packed", "many": 48}, ""),
    ({**GPTQ, "bits": 4}, {"zero": 1}, ""), (pressed("pack-quantized"), {"method": "packed", "zero": 1}, ""),
    (pressed("pack-quantized"), {"method": "packed", "zero": 8 - 1}, ""),
])  # fmt: skip
def test_symmetric_numbers_stay_in_few_bits_and_others_are_written_out(settings, how, kind, tmp_path):
    expected = write(tmp_path, settings, make_held, **how)
    model = qkv.load(tmp_path, device="cpu")
    held = quantise.find_quantised(model.core)
    assert {m.kind for m in held.values()} == ({kind} if kind else set())
    assert len(held) == (7 if kind else 0)
    found = read_back(model, tmp_path)
    for name, want in expected.items():
        assert (found[name].double() - want).abs().max() <= 4e-7 * want.abs().max(), name


@pytest.mark.parametrize(("settings", "named"), [
    ({"quant_method": "aqlm"}, "aqlm"), ({"quant_method": "hqq"}, "hqq"), ({}, "None"),
    ({"quant_method": "gptq", "bits": 3}, "bits = 3"), ({"quant_method": "awq", "version": "gemv"}, "version = gemv"),
    ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
    (pressed("nvfp4-pack-quantized"), "nvfp4-pack-quantized"), (pressed("pack-quantized", num_bits=3), "num_bits = 3"),
    ({**pressed("pack-quantized"), "transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
    ({**pressed("dense"), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
])  # fmt: skip
def test_a_method_that_is_not_read_is_named(settings, named, tmp_path):
    write(tmp_path, {**settings, "_": 1}, make_packed)
    with pytest.raises(QkvError, match=named) as e:
        qkv.load(tmp_path)
    assert e.value.code == "quantised"


def drop(part: str):
    return lambda parts: parts.pop(part)


def change(part: str, how):
    return lambda parts: parts.update({part: how(parts[part])})


@pytest.mark.parametrize(("case", "fault", "named"), [
    ("gptq", drop("scales"), "scales"), ("gptq", change("g_idx", lambda g: g + 9), "g_idx"),
    ("gptq", change("qweight", lambda t: t[:-1]), "qweight"), ("awq", change("qzeros", lambda t: t[:, 1:]), "qzeros"),
    ("int4", change("weight_shape", lambda t: t * 3), "weight_packed"), ("awq", drop("qzeros"), "qzeros"),
    ("int4", change("weight_scale", lambda t: t[:, :-1]), "scales"), ("int8", drop("weight_scale"), "int8|zero_point"),
    ("fp8 in blocks", change("weight_scale_inv", lambda t: t[1:]), "weight_scale"),
    ("fp8 in blocks", drop("weight_scale_inv"), "float8"), ("nf4", drop("weight.quant_map"), "quant_map"),
    ("nf4", change("weight.quant_state.bitsandbytes__nf4", lambda t: t[1:]), "quant_state"),
    ("nf4", change("weight", lambda t: t[2:]), "packed bytes"), ("bitsandbytes int8", drop("SCB"), "int8"),
    ("bitsandbytes int8", change("weight_format", lambda t: t + 1), "weight_format"),
    ("int4", change("weight_packed", torch.Tensor.double), "float64"),
    ("int4", change("weight_shape", torch.Tensor.float), "float32"),
    ("gptq", change("qweight", torch.Tensor.float), "float32"),
    ("awq", change("qzeros", torch.Tensor.float), "float32"),
])  # fmt: skip
def test_parts_that_do_not_fit_are_named(case, fault, named, tmp_path):
    settings, make, how = CASES[case]

    def spoil(shape, **how):
        parts, expected = make(shape, **how)
        fault(parts)
        return parts, expected

    write(tmp_path, settings, spoil, **how)
    with pytest.raises(QkvError, match=named):
        qkv.load(tmp_path)


def test_a_packed_matrix_of_a_family_that_transposes_is_refused(tmp_path):
    qkv.build(model_dir.spec_from_config(GPT2, "test")).save(tmp_path, family="gpt2")
    config = {**json.loads((tmp_path / "config.json").read_text()), "quantization_config": CASES["int8"][0]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(n for n in tensors if n.endswith("attn.c_proj.weight")).removesuffix(".weight")
    tensors |= {f"{name}.weight": tensors[f"{name}.weight"].to(torch.int8), f"{name}.weight_scale": torch.ones(1)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(QkvError, match="transposed"):
        qkv.load(tmp_path)


def test_compressed_tensors_packs_what_we_unpack(tmp_path):
    pack = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers", reason="not installed")
    how = pytest.importorskip("compressed_tensors.quantization")
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")

    def make(shape, **_):
        args = how.QuantizationArgs(num_bits=4, strategy="group", group_size=32, symmetric=False)
        codes, scale, zero = draw(shape, shape[1] // 32, -8, 7)
        codes, zero = codes.to(torch.int8), zero.to(torch.int8)
        want = forward.dequantize(x_q=codes, scale=scale, zero_point=zero, args=args)
        return {"weight_packed": pack.pack_to_int32(codes, 4), "weight_shape": torch.tensor(shape),
                "weight_scale": scale, "weight_zero_point": pack.pack_to_int32(zero, 4, packed_dim=0)}, want

    expected = write(tmp_path, pressed("pack-quantized", symmetric=False), make)
    found = read_back(qkv.load(tmp_path, device="cpu", dtype="fp32"), tmp_path)
    for name, want in expected.items():
        assert torch.allclose(found[name], want, rtol=1e-6)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_packs_what_we_unpack(kind, nested, tmp_path):
    theirs = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")

    def make(shape, **_):
        packed, state = theirs.quantize_4bit(torch.randn(shape), quant_type=kind, compress_statistics=nested)
        return ({"weight": packed, **{f"weight.{n}": t for n, t in state.as_dict(packed=True).items()}},
                theirs.dequantize_4bit(packed, state))

    expected = write(tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True}, make)
    found = read_back(qkv.load(tmp_path, device="cpu", dtype="fp32"), tmp_path)
    for name, want in expected.items():
        assert torch.allclose(found[name], want, rtol=1e-5, atol=1e-7)
