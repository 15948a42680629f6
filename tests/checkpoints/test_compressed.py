"""Weights of few bits on disk: others read ours, we read theirs, and bits stay bits."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.adapt import quantise
from qkv.checkpoints import compressed, quantized
from qkv.cli import main
from qkv.errors import QkvError

IDS = torch.arange(5, 25)[None]


def logits(model):
    with torch.inference_mode():
        return model(IDS).logits.float()


def bits(model):
    return {n: m.kind for n, m in quantise.find_quantised(model.core).items()}


@pytest.fixture(scope="module", params=["int8", "int4"])
def saved(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("few") / request.param
    qkv.load("demo-lm", device="cpu").save(place, dtype=request.param)
    return request.param, place


def test_numbers_and_words_go_both_ways():
    draw = torch.Generator().manual_seed(0)
    for width in (4, 8):
        most = 1 << width - 1
        numbers = torch.randint(-most, most, (5, 64), generator=draw, dtype=torch.int8)
        words = compressed.pack_words(numbers, width)
        by_hand = sum((int(numbers[1, i]) + most) << i * width for i in range(32 // width))
        assert int(words[1, 0]) & 0xFFFFFFFF == by_hand
        assert torch.equal(quantized.unpack_bits(words, width).short() - most, numbers.short())
        scale = torch.rand(5, 2, generator=draw).half()
        back = compressed.from_blocks(compressed.to_blocks(numbers, scale.float(), width))
        assert torch.equal(back[0], numbers)
        assert torch.equal(back[1], scale)


def test_a_saved_model_comes_back_with_the_same_bits(saved, tmp_path):
    kind, place = saved
    model, twin = qkv.load(place, device="cpu"), qkv.load("demo-lm", device="cpu", dtype=kind)
    assert set(bits(model).values()) == {quantise.KINDS[kind], "int8"}  # values of attention stay in int8
    assert bits(model) == bits(twin)
    held = dict(model.core.named_buffers())
    model.save(tmp_path / "again")
    again = dict(qkv.load(tmp_path / "again", device="cpu").core.named_buffers())
    assert set(held) == set(again)
    assert all(torch.equal(held[name], again[name]) for name in held)
    assert "quantization_config" not in (model.config or {})


def test_written_out_it_says_the_same(saved, tmp_path):
    place = saved[1]
    few, whole = qkv.load(place, device="cpu"), qkv.load(place, device="cpu", dtype="fp32")
    assert bits(whole) == {}
    assert torch.allclose(logits(few), logits(whole), atol=1e-4)
    few.save(tmp_path / "whole", dtype="fp32")
    assert "quantization_config" not in json.loads((tmp_path / "whole/config.json").read_text())
    assert torch.equal(logits(qkv.load(tmp_path / "whole", device="cpu")), logits(whole))
    assert len(bits(few)) > 0


def test_transformers_computes_the_same(saved):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(saved[1], dtype=torch.float32).eval()
    ours = logits(qkv.load(saved[1], device="cpu", dtype="fp32"))
    with torch.inference_mode():
        assert (theirs(IDS).logits - ours).abs().max() <= 1e-4 * ours.std()


def test_the_head_and_norms_stay_whole(saved):
    kind, place = saved
    stored = load_file(place / "model.safetensors")
    said = json.loads((place / "config.json").read_text())["quantization_config"]
    assert said["format"] == "pack-quantized"
    assert said["config_groups"]["group_0"]["weights"]["num_bits"] == int(kind[3:])
    assert {n for n, t in stored.items() if t.dtype == torch.int32} == {n for n in stored if n.endswith("_packed")}
    assert all(t.is_floating_point() for n, t in stored.items() if "embed" in n or "norm" in n or "lm_head" in n)


def test_bytes_with_scales_are_read_as_well(tmp_path):
    """The layout int-quantized, which others write for eight bits."""
    qkv.load("demo-lm", device="cpu").save(tmp_path / "a", dtype="int8")
    stored = load_file(tmp_path / "a/model.safetensors")
    other = {n: t for n, t in stored.items() if not n.endswith(("_packed", "_shape"))}
    for name in [n for n in stored if n.endswith("_packed")]:
        width = int(stored[name.replace("_packed", "_shape")][1])
        numbers = quantized.unpack_bits(stored[name], 8)[:, :width].short() - 128
        other[name.removesuffix("_packed")] = numbers.to(torch.int8)
    config = json.loads((tmp_path / "a/config.json").read_text())
    before = logits(qkv.load(tmp_path / "a", device="cpu"))
    save_file(other, tmp_path / "a/model.safetensors")
    config["quantization_config"]["format"] = "int-quantized"
    (tmp_path / "a/config.json").write_text(json.dumps(config))
    model = qkv.load(tmp_path / "a", device="cpu")
    assert set(bits(model).values()) == {"int8"}
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"quant_method": "gptq"}, "Missing"), ({"format": "marlin-24"}, "marlin-24"),
     ({"config_groups": {"g": {"weights": {"type": "int", "symmetric": False}}}}, "num_bits")],
)
def test_what_is_not_read_is_named(saved, tmp_path, change, named):
    config = json.loads((saved[1] / "config.json").read_text())
    config["quantization_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(saved[1] / "model.safetensors")
    with pytest.raises(QkvError, match=named):
        qkv.load(tmp_path, device="cpu")


@pytest.mark.parametrize("end", ["weight_packed", "weight_scale", "weight_shape"])
def test_a_missing_part_is_named(saved, tmp_path, end):
    stored = load_file(saved[1] / "model.safetensors")
    lost = next(n for n in stored if n.endswith(end))
    save_file({n: t for n, t in stored.items() if n != lost}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(saved[1] / "config.json")
    with pytest.raises(QkvError, match=lost.removesuffix(f".{end}")):
        qkv.load(tmp_path, device="cpu")


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_convert_writes_few_bits(kind, tmp_path):
    for i, args in enumerate((["--to-dtype", kind], ["--dtype", kind])):
        assert main(["convert", "demo-lm", str(tmp_path / str(i)), *args, "--device", "cpu", "-q"]) == 0
    same = [load_file(tmp_path / name / "model.safetensors") for name in "01"]
    assert same[0].keys() == same[1].keys()
    assert all(torch.equal(same[0][n], same[1][n]) for n in same[0])
    assert main(["generate", str(tmp_path / "0"), "The cat", "--max-new-tokens", "3", "-q"]) == 0


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_a_gguf_file_keeps_its_bits(kind, tmp_path):
    path = tmp_path / "m.gguf"
    qkv.load("demo-lm", device="cpu").save(path, dtype=kind)
    few, whole = qkv.load(path, device="cpu"), qkv.load(path, device="cpu", dtype="fp32")
    if not bits(few):
        pytest.skip("no kernel here: its tensors are written out")
    assert set(bits(few).values()) == {kind.upper()}
    for name, module in quantise.find_quantised(few.core).items():  # rows of q and k are sorted otherwise there
        assert torch.equal(module.weight, whole.core.get_parameter(f"{name}.weight"))
    assert torch.allclose(logits(few), logits(whole), atol=1e-4)
    few.save(tmp_path / "dir")
    assert torch.equal(logits(qkv.load(tmp_path / "dir", device="cpu")), logits(few))


def test_other_ways_round_are_refused(tmp_path):
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 64}
    model = qkv.build(qkv.hub.model_dir.spec_from_config(config, "test"))
    with pytest.raises(QkvError, match="other way round"):
        model.save(tmp_path / "m", dtype="int8", family="gpt2")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("value", [3, "gptq", [1], True, 0, ""])
def test_settings_that_are_no_object_are_named(saved, tmp_path, value):
    config = json.loads((saved[1] / "config.json").read_text()) | {"quantization_config": value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(saved[1] / "model.safetensors")
    with pytest.raises(QkvError, match="'quantization_config' is"):
        qkv.load(tmp_path, device="cpu")


@pytest.mark.parametrize(("place", "key", "bad"), [
    ((), "config_groups", 1), ((), "config_groups", ["a"]), (("config_groups",), "group_0", None),
    (("config_groups",), "group_0", "abc"), (("config_groups", "group_0"), "weights", [1]),
    (("config_groups", "group_0", "weights"), "group_size", [1]),
    (("config_groups", "group_0", "weights"), "type", "abc"), ((), "format", {}), ((), "sparsity_config", 3),
])
def test_settings_of_another_type_are_told_by_their_key(place, key, bad, tmp_path):
    qkv.load("demo-lm").save(tmp_path, dtype="int4")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    part = config["quantization_config"]
    for step in place:
        part = part[step]
    part[key] = bad
    file.write_text(json.dumps(config))
    with pytest.raises(QkvError, match=f"{key}' is "):
        qkv.load(tmp_path)
