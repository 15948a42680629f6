"""The compiled products say what a slow loop says, in any company, and are absent where they cannot be made."""

import struct
import sys

import pytest
import torch

from qkv.adapt import row_products
from qkv.adapt.row_products import AVX2, KINDS, draw_matrix, multiply, open_matrix, unpack
from qkv.errors import QkvError
from qkv.messages import Message

here = row_products.library()
able = pytest.mark.skipif(here is None, reason="no compiler, or switched off")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Kernels that are looked for anew, with an empty cache."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    monkeypatch.delenv("QKV_NATIVE", raising=False)
    row_products.find_library.cache_clear()
    yield monkeypatch
    row_products.find_library.cache_clear()


def number(kind, weight, scale, i, j):
    """One number of a matrix, from its bytes alone."""
    if kind == "int8":
        return int(weight[i, j]) * float(scale[i, 0])
    block = bytes(weight[i, j // 32].tolist())
    (own,) = struct.unpack("<e", block[:2])
    if kind == "Q8_0":
        return own * struct.unpack("<b", block[2 + j % 32 : 3 + j % 32])[0]
    byte = block[2 + j % 16]
    return own * ((byte & 15 if j % 32 < 16 else byte >> 4) - 8)


@pytest.mark.parametrize("kind", ["int8", "Q8_0", "Q4_0"])
def test_a_matrix_written_out_is_what_a_loop_reads(kind):
    weight, scale = draw_matrix(kind, 3, 96, torch.Generator().manual_seed(1))
    want = torch.tensor([[number(kind, weight, scale, i, j) for j in range(96)] for i in range(3)])
    assert torch.equal(open_matrix(kind, weight, scale), want)
    if here:
        assert torch.equal(unpack(here, kind, weight, scale, torch.float32), want)


@able
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_says_the_same_in_any_company(kind, threads):
    draw, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    weight, scale = draw_matrix(kind, 1031, 256, draw)
    x = torch.randn(21, 256, generator=draw).bfloat16()
    alone = [multiply(here, kind, x[i : i + 1], weight, scale, None) for i in range(21)]
    try:
        torch.set_num_threads(threads)
        for rows in (2, 3, 4, 5, 8, 9, 21):
            together = multiply(here, kind, x[:rows], weight, scale, None)
            assert torch.equal(together, torch.cat(alone[:rows]))
    finally:
        torch.set_num_threads(before)


def test_the_environment_switches_it_off(fresh):
    fresh.setenv("QKV_NATIVE", "0")
    assert isinstance(row_products.find_library(), Message)
    assert row_products.library() is None


@pytest.mark.parametrize("command", ["no-such-compiler", f"{sys.executable} -c raise(SystemExit(3))"])
def test_a_compiler_that_fails_is_named(fresh, command):
    fresh.setenv("CC", command)
    found = row_products.find_library()
    assert isinstance(found, Message)
    assert found.fields["compiler"] == command


def test_without_a_compiler_there_is_none(fresh):
    fresh.setattr(row_products.shutil, "which", lambda name: None)
    fresh.setattr(row_products.importlib.util, "find_spec", lambda name: None)
    fresh.delenv("CC", raising=False)
    assert row_products.library() is None


@able
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("b++, w += block", "b++, w += block - 1"), ("* (kind == INT8 ? job->scale[i + r] : 1.0f)", ""),
     ("job->bias ? widen(", "job->bias ? -widen("),
     ("int64_t n = team->job->n, each", "int64_t n = team->job->n - 1, each")],
)
def test_a_wrong_kernel_does_not_count(fresh, tmp_path, right, wrong):
    text = row_products.SOURCE.read_text(encoding="utf-8")
    assert text.count(right) == 1
    fresh.setattr(row_products, "SOURCE", tmp_path / "wrong.c")
    row_products.SOURCE.write_text(text.replace(right, wrong), encoding="utf-8")
    fresh.setattr(row_products, "ALWAYS", tuple("-O1" if flag == "-O3" else flag for flag in row_products.ALWAYS))
    found = row_products.find_library()
    assert isinstance(found, Message)
    assert "kind" in found.fields


@able
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_narrower_instructions_say_the_same(fresh, isa):
    used = torch.backends.cpu.get_cpu_capability()
    if isa != "portable" and not used.startswith("AVX512" if isa == "avx512" else "AVX"):
        pytest.skip(f"this CPU has no {isa}")
    row_products.check_library(row_products.open_library(*row_products.compile_source(isa)))
    again = row_products.compile_source(isa)[0]
    assert [p.name for p in again.parent.iterdir()] == [again.name]
    assert set(AVX2) <= set(row_products.FLAGS["avx512"])


def test_a_broken_source_says_what_the_compiler_says(fresh, tmp_path):
    if row_products.find_compiler() is None:
        pytest.skip("no compiler")
    fresh.setattr(row_products, "SOURCE", tmp_path / "wrong.c")
    row_products.SOURCE.write_text("int qkv_run(", encoding="utf-8")
    with pytest.raises(QkvError) as e:
        row_products.compile_source("portable")
    assert "error" in str(e.value.message.fields["said"])
