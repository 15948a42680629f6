"""The compiled products say what a slow loop says, in any company, and are absent where they cannot be made."""

import os
import struct
import subprocess
import sys

import pytest
import torch

from qkv.adapt import native, row_block, row_ops, row_products
from qkv.adapt.row_products import KINDS, Matrix, draw_matrix, multiply, multiply_together, open_matrix, unpack
from qkv.errors import QkvError
from qkv.messages import Message

here = native.library()
able = pytest.mark.skipif(here is None, reason="no compiler, or switched off")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Kernels that are looked for anew, with an empty cache."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    monkeypatch.delenv("QKV_NATIVE", raising=False)
    native.find_library.cache_clear()
    yield monkeypatch
    native.find_library.cache_clear()


def number(kind, weight, scale, i, j):
    """One number of a matrix, from its bytes alone."""
    if kind == "int8":
        return int(weight[i, j]) * float(scale[i, 0])
    block = bytes(weight[i, j // 32].tolist())
    (own,) = struct.unpack("<e", block[:2])
    if kind == "Q8_0":
        return own * struct.unpack("<b", block[2 + j % 32 : 3 + j % 32])[0]
    plus = struct.unpack("<e", block[2:4])[0] if kind == "Q4_1" else -8 * own
    byte = block[(4 if kind == "Q4_1" else 2) + j % 16]
    return struct.unpack("<f", struct.pack("<f", own * (byte & 15 if j % 32 < 16 else byte >> 4) + plus))[0]


@pytest.mark.parametrize("kind", ["int8", "Q8_0", "Q4_0", "Q4_1"])
def test_a_matrix_written_out_is_what_a_loop_reads(kind):
    weight, scale = draw_matrix(kind, 3, 96, torch.Generator().manual_seed(1))
    want = torch.tensor([[number(kind, weight, scale, i, j) for j in range(96)] for i in range(3)])
    assert torch.equal(open_matrix(kind, weight, scale), want)
    if here:
        assert torch.equal(unpack(here, kind, weight, scale, torch.float32), want)


@able
@pytest.mark.parametrize(("kind", "inputs"), [*((kind, 256) for kind in KINDS), ("fp32", 176)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_says_the_same_in_any_company(kind, inputs, threads):
    draw, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    weight, scale = draw_matrix(kind, 1031, inputs, draw)
    other = Matrix("int8", *draw_matrix("int8", 5, inputs, draw))
    x = torch.randn(21, inputs, generator=draw).to(torch.float32 if kind == "fp32" else torch.bfloat16)
    matrix = Matrix(kind, weight, scale)
    alone = [multiply(here, x[i : i + 1], matrix) for i in range(21)]
    try:
        torch.set_num_threads(threads)
        for rows in (2, 3, 4, 5, 8, 9, 21):
            together = multiply(here, x[:rows], matrix)
            assert torch.equal(together, torch.cat(alone[:rows]))
            assert all(torch.equal(one, together) for one in multiply_together(here, x[:rows], (matrix, matrix)))
            if kind not in ("fp32", "int8"):
                both = torch.cat(list(multiply_together(here, x[:rows], (matrix, other, matrix))), -1)
                assert torch.equal(both[:, -1031:], together)
                assert torch.equal(both[:, 1031:-1031], multiply(here, x[:rows], other))
    finally:
        torch.set_num_threads(before)


@able
@pytest.mark.parametrize("kind", ["bf16", "int8", "Q8_0", "Q4_0", "Q4_1"])
def test_no_row_of_many_says_anything_else_in_company(kind):  # so many that a sum in another order shows
    draw = torch.Generator().manual_seed(6)
    matrix, x = Matrix(kind, *draw_matrix(kind, 20_000, 1024, draw)), torch.randn(9, 1024, generator=draw).bfloat16()
    alone = torch.cat([multiply(here, row[None], matrix) for row in x])
    assert all(torch.equal(multiply(here, x[:rows], matrix), alone[:rows]) for rows in (2, 4, 9))


def test_the_environment_switches_it_off(fresh):
    fresh.setenv("QKV_NATIVE", "0")
    assert isinstance(native.find_library(), Message)
    assert native.library() is None


@pytest.mark.parametrize("command", ["no-such-compiler", f"{sys.executable} -c raise(SystemExit(3))"])
def test_a_compiler_that_fails_is_named(fresh, command):
    fresh.setenv("CC", command)
    found = native.find_library()
    assert isinstance(found, Message)
    assert found.fields["compiler"] == command


def test_without_a_compiler_there_is_none(fresh):
    fresh.setattr(native.shutil, "which", lambda name: None)
    fresh.setattr(native.importlib.util, "find_spec", lambda name: None)
    fresh.delenv("CC", raising=False)
    assert native.library() is None


@able
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [("row_products.c", "b++, w += block, x32", "b++, w += block - 1, x32"),
     ("row_products.c", "sum * (kind == INT8 ? job->scale[i] : 1.0f)", "sum"),
     ("row_products.c", "y + (job->bias ?", "y - (job->bias ?"),
     ("row_products.c", "n = job->n, each", "n = job->n - 1, each"),
     ("row_ops.c", "/ (float)job->n + job->eps", "/ (float)job->n"),
     ("row_ops.c", "exponential(-by) + 1.0f", "exponential(by) + 1.0f"),
     ("vectors.h", "x[i] = -__builtin_inff();", "x[i] = x[0];"), ("vectors.h", "x[i] += more[i]", "x[i] += more[0]"),
     ("row_ops.c", "int64_t s = 0; s < length; s += LANES) {", "int64_t s = LANES; s < length; s += LANES) {"),
     ("row_ops.c", "*(loose *)(sums + j) * job->scale", "*(loose *)(sums + j)"),
     ("row_ops.c", "sum[j] += read(job->k, k[j] + i, low) * y", "sum[j] += read(job->k, k[0] + i, low) * y"),
     ("row_ops.c", "mix_part(job, r, h, i, wide, 2,", "mix_part(job, r, h, i, wide, 1,"),
     ("row_ops.c", "j < KEYS && rest; j++)", "j < KEYS && !rest; j++)"),
     ("row_ops.c", "j < count; j++)\n      write_one(job->out", "j < count - 1; j++)\n      write_one(job->out"),
     ("row_ops.c", "(h + c) * job->bias_head + s", "(h + c) * job->bias_head"),
     ("row_ops.c", "job->barred[b] == id", "job->barred[b] == -1"),
     ("row_ops.c", "best[j - 1] < x; j--", "best[j - 1] > x; j--"),
     ("row_ops.c", "found >= wanted", "found >= 1"), ("row_ops.c", "wanted = job->count + job->bars", "wanted = 2"),
     ("row_ops.c", "some &= some - 1", "some = 0"),
     ("row_ops.c", "total += add_up((sums[0]", "total = add_up((sums[0]"),
     ("row_ops.c", "    total += exponential((vec){0} + (one - top))[0];\n", ""),
     ("row_ops.c", "r * job->step * (job->low", "r * job->n * (job->low"),
     ("row_block.c", "  norm_if(&b->norms[FFN][BEFORE], first, end);\n", ""),
     ("row_block.c", "  norm_if(&b->norms[part][AFTER], first, end);\n", ""),
     ("row_block.c", "  norm_if(&b->norms[part][OF_SUM], first, end);\n", ""),
     ("row_block.c", "if (norm.weight) norm_rows", "if (norm.weight && !n) norm_rows"),
     ("row_block.c", "memcpy((uint8_t *)at->k + (b->k_to[r]", "memcpy((uint8_t *)at->k + (b->k_to[0]"),
     ("row_block.c", "    add_update(b, CROSS, first, end);\n", ""),
     ("row_block.c", "b->norms[part_of(n)][BEFORE].weight ? normed : b->x", "normed"),
     ("row_block.c", "three, b->jobs[CROSS_Q].n, z)", "three, all, z)"),
     ("row_block.c", "&b->cross, thread, threads)", "&b->attend, thread, threads)"),
     ("vectors.h", "0.693359375f", "0.693f")],
)
def test_a_wrong_kernel_does_not_count(fresh, tmp_path, file, right, wrong):
    found = find_changed(fresh, tmp_path, "portable", file, right, wrong)  # the quickest to compile
    assert isinstance(found, Message)
    assert {"kind", "name"} & set(found.fields)


@able
@pytest.mark.skipif(not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="this CPU has no AVX2")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("127.0f / top", "126.0f / top"), ("top / 127.0f + add", "top / 126.0f + add"),
     ("_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)", "_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)"),
     ("if (kind == Q4_0) fours = ", "if (kind == Q4_1) fours = "), ("0.125f * add_eight", "0.25f * add_eight"),
     ("_mm_srli_epi16(pairs, 4), pairs)", "pairs, _mm_srli_epi16(pairs, 4))"),
     ("FOUR_BITS(kind) ? y : _mm256_sign_epi8(y, q)", "y"),
     ("w += block, x += wide)", "w += block, x += 1)"), ("LARGEST / top :", "15000 / top :"),
     ("top / LARGEST + add", "top / 15000 + add"),
     ("from += SEGMENT, scale += 4", "from += SEGMENT"), ("sum[v % deep][c + v / deep]", "sum[v % deep][c]"),
     ("_mm256_packs_epi32(n[0], n[1]), 0xd8", "_mm256_packs_epi32(n[0], n[1]), 0xe4"),
     ("permute2f128_ps(one, two, 0x31)", "permute2f128_ps(one, two, 0x20)"),
     ("bias[v] = read_one(job->bias, i + v % deep, 1)", "bias[v] = read_one(job->bias, i, 1)"),
     ("_mm_set_ss(job->scale[i])", "_mm_set_ss(1.0f)"), ("w + EACH, k, x + EACH * wide", "w + EACH, k, x"),
     ("i < to && i < next + block", "i < to && i < next + 4")],
)
def test_a_kernel_that_rounds_wrongly_does_not_count(fresh, tmp_path, right, wrong):
    found = find_changed(fresh, tmp_path, "avx2", "row_products.c", right, wrong)
    assert isinstance(found, Message)
    assert "kind" in found.fields


@able
@pytest.mark.skipif(not native.choose_isa().startswith("avx512"), reason="this CPU has no AVX-512")
def test_the_last_numbers_of_a_row_left_out_are_noticed(fresh, tmp_path):
    found = find_changed(fresh, tmp_path, "avx512", "row_products.c", "if (b < end) add", "if (0) add")
    assert isinstance(found, Message)
    assert found.fields["kind"] == "int8"


@able
@pytest.mark.skipif(native.choose_isa() != "avx512_bf16", reason="this CPU has no AVX-512 of this kind")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("unpackhi_pd(a, b)", "unpacklo_pd(a, b)"), ("(a, b, 0xdd)", "(a, b, 0x88)"),
     ("add_square(s, w, x, k, 32,", "add_square(s, w, x, k, 0,"), ("add_ps(even[n], s[n])", "add_ps(s[n], s[n])"),
     ("write_eight(out + 8,", "write_eight(out,"), ("read_one(job->bias, i + r, 1)", "read_one(job->bias, i, 1)"),
     ("out + 4 * c, 8)", "out, 8)"), ("x + 4 * b + 32 * c", "x + 4 * b + 32")],
)
def test_a_kernel_of_many_numbers_that_is_wrong_does_not_count(fresh, tmp_path, right, wrong):
    found = find_changed(fresh, tmp_path, "avx512_bf16", "row_products.c", right, wrong)
    assert isinstance(found, Message)
    assert "kind" in found.fields


@able
@pytest.mark.skipif(native.choose_isa() != "avx512_bf16", reason="this CPU has no AVX-512 of this kind")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("127.0f / top.f", "126.0f / top.f"), ("*scale = top.f / 127.0f", "*scale = top.f / 126.0f"),
     ("-128 * _mm512_reduce", "-127 * _mm512_reduce"), ("_mm512_set1_epi8((char)128)", "_mm512_set1_epi8((char)127)"),
     ("~(__mmask64)0", "0xffffffff"), ("? 0xffffffff :", "? 0xffff :"), ("t[i + 8], 0xdd)", "t[i + 8], 0x88)"),
     ("r[from + 4], 0xdd)", "r[from + 4], 0x88)"), ("unpackhi_epi64(t[from]", "unpacklo_epi64(t[from]"),
     ("unpackhi_epi32(r[2 * i]", "unpacklo_epi32(r[2 * i]"), ("t[2 * n + 1], 0xdd)", "t[2 * n + 1], 0x88)"),
     ("unpackhi_epi32(r[2 * n]", "unpacklo_epi32(r[2 * n]"), ("unpackhi_epi64(t[2 * n]", "unpacklo_epi64(t[2 * n]"),
     ("memcpy(&four, x + 4 * n, 4)", "memcpy(&four, x, 4)"), ("epi32(all[0], all[1])", "epi32(all[0], all[0])"),
     ("memcpy(&start, scale + 4 * spans(k), 4)", "memcpy(&start, scale, 4)"),
     ("at += SPAN, scale += 4)", "at += SPAN)"),
     ("whole, scale + c * row)", "whole, scale)"), ("multiply_span(r, x + c * row + at)", "multiply_span(r, x + at)"),
     ("of_span[s]), by)", "of_span[s]), scale)"), ("scale + 4 * (16 * b + s)", "scale + 4 * s"),
     ("kept[c * blocks + b];", "kept[b];"), ("x + c * row + s * SPAN)", "x + s * SPAN)"),
     ("if (b < blocks) sum_spans", "if (0) sum_spans"), ("i + n < to ? i + n : to - 1", "i"),
     ("multiply_few(job, 2, i, to, m)", "multiply_few(job, 1, i, to, m)"),
     ("case 1: multiply_few(job, 1, i, to, m)", "case 1: multiply_few(job, 1, i, to, 0)"),
     ("left -= TOGETHER)", "left -= 2 * TOGETHER)"),
     ("scale + at / SPAN * 4", "scale"), ("panel + at * PANEL, k", "panel, k"),
     ("(sum, scale, bias)", "(sum, scale, sum)"), ("(1 << (to - i)) - 1", "(1 << (to - i)) - 2"),
     ("rows - WIDE ? m :", "rows - WIDE ? 0 :"), ("all[c][v], scale + c * row)", "all[c][v], scale)"),
     ("read_start(scale + c * row, k);", "read_start(scale, k);"), ("x + c * row, 4)", "x, 4)"),
     ("const uint16_t *)job->bias + i)", "const uint16_t *)job->bias)")],
)
def test_a_kernel_of_many_rows_that_is_wrong_does_not_count(fresh, tmp_path, right, wrong):
    found = find_changed(fresh, tmp_path, "avx512_bf16", "row_tiles.c", right, wrong)
    assert isinstance(found, Message)
    assert found.fields["kind"] == "int8"


@able
@pytest.mark.skipif(native.choose_isa() != "avx512_bf16", reason="this CPU has no AVX-512 of this kind")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("127.0f / top.f", "126.0f / top.f"), ("*scale = top.f / 127.0f", "*scale = top.f / 126.0f"),
     ("? 128 : 8)", "? 127 : 8)"), ("? 128 : 8)", "? 128 : 7)"), ("*scale * (float)total", "(float)total"),
     ("place_of(b) + 64 * p", "place_of(b)"), ("block % 4 * 16", "block % 4 * 8"),
     ("srli_epi16(*first, 4)", "srli_epi16(*first, 3)"), ("0x8fffe000", "0x8fffc000"), ("0x1p112f", "0x1p111f"),
     ("by[blocks]), sum) : sum", "*by), sum) : sum"), ("if (kind != Q4_1) whole", "if (kind == Q4_1) whole"),
     ("0x0f00, read_head", "0x0700, read_head"), ("(at + next[2])), 3)", "(at + next[1])), 3)"),
     ("0x1111 << g", "0x1111"), ("loadu_si512(y + 64)", "loadu_si512(y)"), ("x + c * row + 128 * g", "x + 128 * g"),
     ("(at + 18, next)", "(at + 2, next)"), ("if (p < parts) sum_blocks", "if (0) sum_blocks"),
     ("b % 4 * 4 + b % 16 / 4", "b % 16"), ("kept[(c + 1) * parts + b / 16]", "kept[parts + b / 16]"),
     ("unpackhi_epi64(one, two)", "unpacklo_epi64(one, two)"), ("n / 4 * 64 + n % 4 * 4", "n % 4 * 4"),
     ("b * size + 18, q + 4", "b * size + 2, q + 4"), ("x + c * row + place_of(b)", "x + place_of(b)"),
     ("heads[b] + n, rows[n]", "heads[b] + n, rows[0]"), ("rows[n + 12]", "rows[n + 8]"),
     ("unpackhi_epi32(v[2], v[3])", "unpacklo_epi32(v[2], v[3])"), ("to, m + c, sum[c])", "to, c, sum[c])"),
     ("i + n < to ? i + n : to - 1", "i"), ("multiply_alone(job, kind, rows, 2", "multiply_alone(job, kind, rows, 1")],
)
def test_a_kernel_of_blocks_that_is_wrong_does_not_count(fresh, tmp_path, right, wrong):
    found = find_changed(fresh, tmp_path, "avx512_bf16", "row_ggml.c", right, wrong)
    assert isinstance(found, Message)
    assert found.fields["kind"][0] == "Q"


@able
@pytest.mark.parametrize("kind", ["int8", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_says_the_same_among_many(kind, threads):
    draw, before = torch.Generator().manual_seed(3), torch.get_num_threads()
    matrix, x = Matrix(kind, *draw_matrix(kind, 1031, 736, draw)), torch.randn(197, 736, generator=draw).bfloat16()
    want = multiply(here, x, matrix)
    try:
        torch.set_num_threads(threads)
        for first, end in ((0, 197), (0, 97), (0, 33), (11, 50), (60, 97), (70, 72), (196, 197)):
            assert torch.equal(multiply(here, x[first:end], matrix), want[first:end])
            both = multiply_together(here, x[first:end], (matrix, matrix))
            assert all(torch.equal(one, want[first:end]) for one in both)
    finally:
        torch.set_num_threads(before)


@able
@pytest.mark.parametrize("kind", ["int8", "Q8_0", "Q4_0", "Q4_1"])
def test_rows_of_any_number_of_blocks_are_multiplied(kind):
    draw = torch.Generator().manual_seed(5)
    for inputs in range(32, 320, 32):
        weight, scale = draw_matrix(kind, 6, inputs, draw)
        for rows in (1, 3, 9, 40):
            x = torch.randn(rows, inputs, generator=draw).bfloat16()
            read, held = row_products.round_input(here, kind, x).double(), open_matrix(kind, weight, scale).double()
            room = (read.abs() @ held.abs().T) * 2**-18 + (read @ held.T).abs() * 2**-8
            assert ((multiply(here, x, Matrix(kind, weight, scale)).double() - read @ held.T).abs() <= room).all()


@able
@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_a_right_kernel_counts_wherever_it_is_compiled(fresh, tmp_path, isa):
    if isa == "avx2" and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("this CPU has no AVX2")
    assert isinstance(find_changed(fresh, tmp_path, isa, "", "", ""), native.Library)


def find_changed(fresh, tmp_path, isa, file, right, wrong):
    """The library of a changed source, compiled for `isa`."""
    for path in (*native.INCLUDED, native.SOURCE):
        text = path.read_text(encoding="utf-8")
        assert path.name != file or text.count(right) == 1
        (tmp_path / path.name).write_text(text.replace(right, wrong) if path.name == file else text, encoding="utf-8")
    fresh.setattr(native, "INCLUDED", tuple(tmp_path / path.name for path in native.INCLUDED))
    fresh.setattr(native, "SOURCE", tmp_path / native.SOURCE.name)
    fresh.setattr(native, "ALWAYS", tuple("-O0" if flag == "-O3" else flag for flag in native.ALWAYS))
    fresh.setitem(native.FLAGS, native.choose_isa(), native.FLAGS[isa])
    return native.find_library()


@pytest.mark.parametrize("kind", ["int8", "Q8_0", "Q4_0", "Q4_1"])
def test_what_is_not_finite_stays_so(kind):
    if here is None:
        pytest.skip("no compiler, or switched off")
    weight, scale = draw_matrix(kind, 7, 96, torch.Generator().manual_seed(2))
    for bad in (torch.nan, torch.inf):
        for rows in (2, 40):
            x = torch.ones(rows, 96, dtype=torch.bfloat16)
            x[0, 40] = bad
            got = multiply(here, x, Matrix(kind, weight, scale))
            assert not got[0].isfinite().any()
            assert got[1:].isfinite().all()
    assert not multiply(here, torch.zeros(1, 96, dtype=torch.bfloat16), Matrix(kind, weight, scale)).any()


@able
@pytest.mark.parametrize("least", [-128, -127])
def test_the_largest_sums_of_int8_have_room(least):
    weight = torch.tensor([127, least, 0], dtype=torch.int8)[:, None].repeat(1, 2080)
    x, scale = torch.ones(40, 2080, dtype=torch.bfloat16), torch.ones(3, 1)
    want = torch.tensor([127.0, least, 0]) * 2080
    for signed in (x, -x, x[:5], -x[:5]):
        got = multiply(here, signed, Matrix("int8", weight, scale)).double()
        assert ((got - want * signed[:, :1].double()).abs() <= want.abs() * 2**-8).all()


@able
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_narrower_instructions_say_the_same(fresh, isa):
    used = torch.backends.cpu.get_cpu_capability()
    if isa != "portable" and not used.startswith("AVX512" if isa == "avx512" else "AVX"):
        pytest.skip(f"this CPU has no {isa}")
    found = native.open_library(*native.compile_sources(isa))
    for module in (row_products, row_ops, row_block):
        module.check_library(found)
    again = native.compile_sources(isa)[0]
    assert [p.name for p in again.parent.iterdir()] == [again.name]
    assert set(native.AVX2) <= set(native.FLAGS["avx512"])


@able
def test_a_broken_source_says_what_the_compiler_says(fresh, tmp_path):
    fresh.setattr(native, "SOURCE", tmp_path / "wrong.c")
    native.SOURCE.write_text("int qkv_run(", encoding="utf-8")
    with pytest.raises(QkvError) as e:
        native.compile_sources("portable")
    assert "error" in str(e.value.message.fields["said"])


@pytest.mark.skipif(native.find_compiler() is None or os.environ.get("QKV_NATIVE", "1") != "1", reason="no compiler")
def test_where_there_is_a_compiler_there_are_kernels():
    assert isinstance(native.find_library(), native.Library), native.find_library()  # else all of these are skipped


@able
@pytest.mark.parametrize("limit", ["OMP_THREAD_LIMIT", "OMP_DYNAMIC"])
def test_fewer_threads_than_were_called_do_all_of_the_work(limit):
    code = """if True:
        import torch
        from qkv import spec
        from qkv.adapt import native, row_ops, row_products
        torch.set_num_threads(4)
        found, draw = native.library(), torch.Generator().manual_seed(0)
        weight, scale = row_products.draw_matrix("int8", 1024, 512, draw)
        x, k = torch.randn(3, 512, generator=draw), torch.randn(8, 2, 400, 32, generator=draw)
        want = x @ row_products.open_matrix("int8", weight, scale).T
        got = row_products.multiply(found, x, row_products.Matrix("int8", weight, scale))
        assert (got - want).abs().max() <= 1e-4 * want.abs().max(), "product"
        x = torch.randn(300, 512, generator=draw)
        want = torch.nn.functional.layer_norm(x, (512,))
        got = row_ops.norm(found, x, torch.ones(512), spec.Norm("unbiased"))
        assert (got - want).abs().max() <= 1e-4, "norm"
        q = torch.randn(8, 4, 1, 32, generator=draw)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        got = row_ops.attend(found, q, k, k, scale=32**-0.5)
        assert (got - want.flatten(1)).abs().max() <= 1e-4, "attention"
    """
    env = {**os.environ, limit: "1" if limit == "OMP_THREAD_LIMIT" else "true", "OMP_NUM_THREADS": "4"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
