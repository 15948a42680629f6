"""Every architecture that GGUF names: tensors are called and shifted as llama.cpp's converter does, and come back."""

import re
from contextlib import suppress

import gguf
import pytest
import torch
from checkpoints.test_gguf import build, edit
from support.gguf_models import DRAWN, draw

import qkv
from qkv import hub
from qkv.checkpoints.gguf import architectures
from qkv.errors import QkvError
from qkv.gguf_file import open_gguf

SHIFTED = ("gemma", "gemma2", "gemma3")  # whose norms hold 1 + w there
IDS = torch.arange(3, 60)[None]


@pytest.fixture(scope="module", params=DRAWN)
def pair(request, tmp_path_factory):
    """An architecture, transformers' model of it, ours, and the GGUF file."""
    place, oracle = tmp_path_factory.mktemp("gguf"), draw(request.param)
    oracle.save_pretrained(place)
    model = qkv.load(place, device="cpu", dtype="fp32")
    model.save(place / "m.gguf", dtype=torch.float32)
    return request.param, oracle, model, place / "m.gguf"


def test_it_comes_back_and_computes_as_transformers_does(pair):
    name, oracle, model, path = pair
    again = qkv.load(path, device="cpu", dtype="fp32")
    assert open_gguf(path).metadata["general.architecture"] == name.partition("+")[0]
    assert again.config["model_type"] == model.config["model_type"]
    with torch.no_grad():
        back, theirs = again(IDS).logits, oracle(IDS).logits
        again.save(path.with_name("dir"))
        stored = qkv.load(path.with_name("dir"), device="cpu")(IDS).logits
    assert (back - theirs).abs().max() <= 4e-5 * theirs.std()
    assert torch.equal(stored, back)


def test_tensors_are_called_as_in_the_table_of_the_gguf_package(pair):
    name, oracle, model, path = pair
    plain, tensors = name.partition("+")[0], open_gguf(path).tensors
    kind = next(key for key, word in gguf.MODEL_ARCH_NAMES.items() if word == plain)
    known = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[kind]}
    bare = {re.sub(r"blk\.\d+", "blk.{bid}", n.rpartition(".")[0]) for n in tensors}
    assert bare <= known
    table = gguf.get_tensor_name_map(kind, len(model.spec.stack.blocks))
    named = {}
    for key, tensor in oracle.state_dict().items():
        theirs = table.get_name(key.removeprefix("transformer.") if plain == "bloom" else key, (".weight", ".bias"))
        if theirs and not (theirs == "output.weight" and oracle.config.tie_word_embeddings):
            named[theirs] = tensor
    assert set(named) == set(tensors)
    for n, tensor in named.items():
        if tensor.ndim == 1 and "qkv" not in n and not re.search(r"attn_[qk]\.bias", n):  # those are sorted otherwise
            by = 1 if plain in SHIFTED and "norm" in n else 0
            assert torch.allclose(tensors[n]().double() - by, tensor.double(), atol=1e-6), n


@pytest.mark.parametrize(("name", "change"), [
    ("gptneox", {"attention_bias": False}), ("gemma", {"tie_word_embeddings": False}),
    ("olmo2", {"tie_word_embeddings": True}), ("starcoder2", {"use_bias": False}), ("falcon", {"bias": True}),
])
def test_what_llama_cpp_does_not_know_is_not_written(name, change, tmp_path):
    oracle = draw(name)
    config = type(oracle.config)(**oracle.config.to_dict() | change)
    type(oracle)(config).save_pretrained(tmp_path)
    with pytest.raises(QkvError, match=f"can say this model; {name}"):
        qkv.load(tmp_path, device="cpu").save(tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_names_of_architectures_are_those_of_the_gguf_package():
    assert {a.name for a in architectures().values()} <= set(gguf.MODEL_ARCH_NAMES.values())


def test_windows_of_gemma_3_turn_by_10000_where_a_file_says_nothing(tmp_path):
    draw("gemma3").save_pretrained(tmp_path)
    qkv.load(tmp_path, device="cpu").save(tmp_path / "m.gguf")
    edit(tmp_path / "m.gguf", tmp_path / "n.gguf", gemma3__rope__freq_base_swa=...)
    blocks = hub.spec_of(tmp_path / "n.gguf").stack.blocks
    assert {b.attn.rotary.base for b in blocks if b.attn.mask.window} == {10_000.0}
    assert any(not b.attn.mask.window for b in blocks)


@pytest.mark.parametrize("name", ["gemma3", "falcon", "chatglm", "olmo2+attention.sliding_window", "bloom", "stablelm"])
def test_metadata_that_are_missing_or_mean_nothing_are_one_error(name, tmp_path):
    draw(name).save_pretrained(tmp_path)
    qkv.load(tmp_path, device="cpu").save(tmp_path / "m.gguf")
    plain = name.partition("+")[0]
    for key in [k for k in open_gguf(tmp_path / "m.gguf").metadata if k.startswith(f"{plain}.")]:
        for value in (..., "x", [1], 2**31, 0):
            edit(tmp_path / "m.gguf", tmp_path / "n.gguf", **{key.replace(".", "__"): value})
            with suppress(QkvError):
                hub.spec_of(tmp_path / "n.gguf")


def test_what_llama_cpp_computes_otherwise_is_not_written(tmp_path):
    config = draw("gemma3").config
    config.rope_parameters["full_attention"] |= {"rope_type": "yarn", "original_max_position_embeddings": 16}
    model = build(config.to_dict())
    with pytest.raises(QkvError, match=r"gemma3: llama\.cpp computes the rope_type yarn otherwise .*default, linear"):
        model.save(tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
