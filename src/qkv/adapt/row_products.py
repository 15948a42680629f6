"""Products of a few rows with matrices of 32, 16, 8 or 4 bits, by row_products.c where this machine can compile it."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.adapt import native
from qkv.adapt.native import Library
from qkv.core.kernels import has_unit
from qkv.errors import QkvError

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}  # the kind of a matrix that is a plain tensor
KINDS = {"fp32": 0, "bf16": 1, "int8": 2, "Q8_0": 3, "Q4_0": 4, "Q4_1": 5}  # as row_products.c numbers them
# by how it lays out an x: numbers with one scale, the greatest of them
ROUNDED = {2: (32, 127), 3: (1024, 16383), 4: (64, 127), 5: (32, 127)}
# rows; with more, the matrix is unpacked once; of bf16 oneDNN's packed copy is then read faster (bench/linear.py)
MOST = {"fp32": 32, "bf16": 1, "int8": 32, "Q8_0": 32, "Q4_0": 32, "Q4_1": 32}
FEW, FEW_TOKENS = 16, 4  # rows of bf16, and of a prompt, up to which a CPU with AVX-512's units but no AMX reads faster
EVERY = 1 << 40  # nothing is faster with any number of rows
SMALL = 1 << 20  # numbers of a bf16 matrix that is multiplied here with more rows, so that a block stays one call
BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}  # of a block
OF_BYTES = {count: kind for kind, count in BYTES.items()}


@cache
def has_bf16_units() -> bool:
    """Whether the kernels have AVX-512's bf16 units."""
    found = native.library()
    return bool(found and found.isa == "avx512_bf16")


def lacks_bf16_products() -> bool:
    """Whether nothing on this CPU multiplies bf16: an x86 one with AVX2 at most."""
    return has_unit("avx2") and not has_unit("avx512_bw")


def most_rows(kind: str, numbers: int, *, low: bool, tokens: int = 1) -> int:
    """The rows up to which a kernel multiplies with a matrix of so many numbers, where so many are of one text.

    MKL is faster with the tokens of a prompt in fp32, and AMX in bf16; a CPU without either has nothing faster in 8 or
    4 bits. `low`: the rows are bf16.
    """
    units, few = has_bf16_units() and not has_unit("amx_bf16"), kind not in DTYPES.values()
    if low and ((few and units) or (kind == "int8" and lacks_bf16_products())):
        return EVERY
    if kind == "bf16" and lacks_bf16_products():
        return MOST["int8"]
    if kind == "bf16" and numbers <= SMALL and has_bf16_units() and (tokens == 1 or not has_unit("amx_bf16")):
        return MOST["int8"]
    if kind == "bf16" and units:
        return FEW if tokens == 1 else FEW_TOKENS
    return 0 if kind == "fp32" and tokens > 1 else MOST[kind]


def fits_kernels(kind: str, inputs: int) -> bool:
    """Whether matrices of a kind with so many inputs can be multiplied."""
    return inputs % (16 if kind == "fp32" else 32) == 0


class Matrix(NamedTuple):
    """A matrix [n, k] of a kind, the scales that stand apart from it, and what is added to each of n."""

    kind: str
    weight: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None


class Job(ctypes.Structure):
    """The struct of that name in row_products.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias", "x", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "n", "k", "step")),
        *((name, ctypes.c_int32) for name in ("kind", "narrow")), ("laid", ctypes.c_void_p),
    )


def check_library(found: Library) -> None:
    """QkvError where a kernel says something else than the formula written out, on small random numbers."""
    draw = torch.Generator().manual_seed(0)
    for kind in KINDS:
        n, k = {"fp32": (13, 80), "bf16": (13, 96), "int8": (77, 1184)}.get(kind, (21, 736))
        weight, scale = draw_matrix(kind, n, k, draw)
        for dtype in (torch.float32, torch.bfloat16):
            if (kind, dtype) in (("bf16", torch.float32), ("fp32", torch.bfloat16)):
                continue
            open_weight = open_matrix(kind, weight, scale)
            few = kind not in DTYPES.values()
            if few and not torch.equal(unpack(found, kind, weight, scale, dtype), open_weight.to(dtype)):
                raise QkvError("the compiled kernel unpacks {kind} wrongly for {isa}", kind=kind, isa=found.isa)
            for rows in (1, 2, 3, 4, 9, *((65, 68, 131) if few else ())):
                x, bias = (torch.randn(*s, generator=draw).to(dtype) for s in ((rows, k), (n,)))
                got = multiply(found, x, Matrix(kind, weight, scale, bias)).double()
                read, held = round_input(found, kind, x).double(), open_weight.double()
                want = read @ held.T + bias.double()
                room = (read.abs() @ held.abs().T + bias.double().abs()) * 2**-18
                if dtype == torch.bfloat16:
                    room += want.abs() * 2**-8
                if not bool(((got - want).abs() <= room).all()):
                    raise QkvError("the compiled kernel multiplies {kind} wrongly for {isa}", kind=kind, isa=found.isa)


def round_input(found: Library, kind: str, x: Tensor) -> Tensor:
    """x [rows, k] as the kernel takes it where it multiplies it with such a matrix: of one in bf16 all numbers of a
    block may be rounded to whole ones times a scale. As fp32 where they are.
    """
    laid = found.opened.qkv_laid(KINDS[kind]) if x.dtype == torch.bfloat16 else 0
    return round_blocks(x, *ROUNDED[laid]) if laid in ROUNDED else x


def round_blocks(x: Tensor, size: int, most: int) -> Tensor:
    """x with each so many numbers of a row rounded to so many parts of the largest of them, as fp32."""
    found = list[Tensor]()
    for block in x.float().split(size, -1):
        top = block.abs().amax(-1, keepdim=True)
        by = torch.where(top > 1e-30, torch.full_like(top, most) / top, 0)  # most / top would take its reciprocal
        found.append((block * by).round() * (top / most))
    return torch.cat(found, -1)


def draw_matrix(kind: str, n: int, k: int, draw: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """A random matrix [n, k] of a kind, and the scales that stand apart from it."""
    if kind in ("fp32", "bf16"):
        return torch.randn(n, k, generator=draw).to(torch.bfloat16 if kind == "bf16" else torch.float32), None
    if kind == "int8":
        return torch.randint(-127, 128, (n, k), generator=draw, dtype=torch.int8), torch.rand(n, 1, generator=draw)
    weight = torch.randint(0, 256, (n, k // 32, BYTES[kind]), generator=draw, dtype=torch.uint8)
    apart = 2 if kind == "Q4_1" else 1  # fp16 numbers before the bytes
    weight[..., : 2 * apart] = torch.randn(n, k // 32, apart, generator=draw).half().view(torch.uint8)
    return weight, None


def open_matrix(kind: str, weight: Tensor, scale: Tensor | None) -> Tensor:
    """The numbers [n, k] of a matrix, written out in PyTorch: what each kernel is held to. fp32."""
    if kind in ("fp32", "bf16"):
        return weight.float()
    if kind == "int8":
        assert scale is not None
        return weight.float() * scale.float()
    own = weight[..., :2].contiguous().view(torch.float16).float()  # n blocks 1
    if kind == "Q8_0":
        return (weight[..., 2:].contiguous().view(torch.int8) * own).flatten(1)
    pairs = weight[..., 4 if kind == "Q4_1" else 2 :]
    numbers = torch.cat((pairs & 15, pairs >> 4), -1).to(torch.int8)
    if kind == "Q4_0":
        return (numbers.sub(8) * own).flatten(1)
    return (numbers * own + weight[..., 2:4].contiguous().view(torch.float16).float()).flatten(1)


def multiply(found: Library, x: Tensor, matrix: Matrix) -> Tensor:
    """x [..., k] times a matrix [n, k] transposed, plus bias, in x's type: fp32 or bf16."""
    (out,) = multiply_together(found, x, (matrix,))
    return out


def multiply_together(found: Library, x: Tensor, matrices: Sequence[Matrix]) -> Sequence[Tensor]:
    """The products of x [..., k] with up to four matrices: each [..., n], views of one tensor in which they stand side
    by side.
    """
    k, x, low = x.shape[-1], x.contiguous(), x.dtype == torch.bfloat16
    widths = [m.weight.shape[0] for m in matrices]
    total = sum(widths)
    out = torch.empty((*x.shape[:-1], total), dtype=x.dtype)
    jobs, rows = (Job * len(matrices))(), x.numel() // k
    to, read, size = out.data_ptr(), x.data_ptr(), out.element_size()
    for n, (m, width) in enumerate(zip(matrices, widths, strict=True)):
        jobs[n] = Job(m.weight.data_ptr(), address(m.scale), address(m.bias), read, to, rows, width, k, total,
                      KINDS[m.kind], low, 0)
        to += width * size
    start(found, jobs, total * k)
    return out.split_with_sizes(widths, -1) if len(widths) > 1 else (out,)


def unpack(
    found: Library, kind: str, weight: Tensor, scale: Tensor | None, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """The numbers [n, k] of a matrix in fp32 or bf16, in `out` where it has room for them."""
    n, k = read_shape(weight)
    out = torch.empty(n, k, dtype=dtype) if out is None else out[: n * k].view(n, k)
    low = dtype == torch.bfloat16
    job = Job(weight.data_ptr(), address(scale), 0, 0, out.data_ptr(), 0, n, k, k, KINDS[kind], low)
    start(found, (Job * 1)(job), n * k)
    return out


@contextmanager
def unpack_for_now(
    found: Library, kind: str, weight: Tensor, scale: Tensor | None, dtype: torch.dtype
) -> Iterator[Tensor]:
    """The numbers of a matrix, in memory that the next one uses again: new memory costs page faults."""
    n, k = read_shape(weight)
    out = found.spare.pop(dtype, None)  # another thread finds none, and takes its own
    if out is None or len(out) < n * k:
        out = torch.empty(n * k, dtype=dtype)
    yield unpack(found, kind, weight, scale, dtype, out)
    found.spare[dtype] = out


def read_shape(weight: Tensor) -> tuple[int, int]:
    """Outputs and inputs of a matrix as it is stored: in numbers or in blocks of 32."""
    return weight.shape[0], weight.shape[1] * (32 if weight.ndim == 3 else 1)


def address(t: Tensor | None) -> int:
    """Where the numbers of a tensor begin; 0 where there is none."""
    return 0 if t is None else t.data_ptr()


def start(found: Library, jobs: ctypes.Array[Job], work: int) -> None:
    """Run jobs on as many threads as PyTorch has; small ones on one."""
    fork, number, threads = found.share_out(work)
    if found.opened.qkv_run(ctypes.addressof(jobs), len(jobs), fork, number, found.barrier, threads):
        raise MemoryError
