"""Products of a few rows with matrices of 16, 8 or 4 bits, by row_products.c where this machine has a C compiler.

It is compiled at its first use, kept in the cache by what it was made of, and held to the open formula first.
Where there is no compiler, or QKV_NATIVE=0 forbids it, there is no such kernel, and nothing else changes.
"""

import ctypes
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import replace_file
from qkv.messages import Message
from qkv.paths import cache_dir

SOURCE = Path(__file__).with_suffix(".c")
KINDS = {"bf16": 0, "int8": 1, "Q8_0": 2, "Q4_0": 3}  # as row_products.c numbers them
MOST = {"bf16": 8, "int8": 32, "Q8_0": 32, "Q4_0": 32}  # rows; with more, the matrix is unpacked once (not tuned)
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
FLAGS = {"avx512_bf16": (*AVX512, "-mavx512bf16"), "avx512": AVX512, "avx2": AVX2, "portable": ()}
ALWAYS = ("-O3", "-std=c11", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")
SECONDS = 120.0  # for a compiler that hangs


class Job(ctypes.Structure):
    """The struct of that name in row_products.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias", "x", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "n", "k")),
        *((name, ctypes.c_int32) for name in ("kind", "narrow")),
    )


@dataclass(frozen=True)
class Library:
    """The compiled kernels, the instruction set that they were compiled for, and how they share out their work.

    Threads are those of PyTorch's own OpenMP; without it (`fork` is None) one thread does the work.
    """

    run: Any
    isa: str
    compiler: str
    fork: int | None
    number: int | None


@cache
def find_library() -> Library | Message:
    """The kernels of this machine, or why there are none."""
    if os.environ.get("QKV_NATIVE", "1").lower() in ("0", "false", "no", "off"):
        return Message("switched off by QKV_NATIVE")
    try:
        found = open_library(*compile_source(choose_isa()))
        check_library(found)
    except (QkvError, OSError, subprocess.SubprocessError, AttributeError) as e:
        return e.message if isinstance(e, QkvError) else Message("{e}", e=e)
    return found


def library() -> Library | None:
    """The kernels of this machine, None where there are none."""
    found = find_library()
    return found if isinstance(found, Library) else None


def choose_isa() -> str:
    """The widest instruction set of the CPU that PyTorch uses too (ATEN_CPU_CAPABILITY may narrow it)."""
    used, known = torch.backends.cpu.get_cpu_capability(), getattr(torch.cpu, "get_capabilities", dict[str, Any])()
    if used.startswith("AVX512"):
        return "avx512_bf16" if known.get("avx512_bf16") else "avx512"
    return "avx2" if used == "AVX2" and known.get("f16c", True) else "portable"


def find_compiler() -> tuple[str, ...] | None:
    """The command of a C compiler: `CC`, then what the system has, then that of the package ziglang."""
    if named := os.environ.get("CC"):
        return tuple(shlex.split(named))
    for name in ("cc", "clang", "gcc"):
        if path := shutil.which(name):
            return (path,)
    return (sys.executable, "-m", "ziglang", "cc") if importlib.util.find_spec("ziglang") else None


def compile_source(isa: str) -> tuple[Path, str, str]:
    """The library compiled for an instruction set, from the cache where it is; with that set and the compiler.

    Raises:
        QkvError: there is no compiler, or it failed; the message has its first line.
    """
    command = find_compiler()
    if command is None:
        raise QkvError("no C compiler (cc, clang, gcc or the package ziglang)")
    flags = (*ALWAYS, *FLAGS[isa])
    made_of = [SOURCE.read_bytes(), *(part.encode() for part in (*command, *flags, sys.platform))]
    path = cache_dir() / "native" / f"row_products-{isa}-{hashlib.sha256(b'|'.join(made_of)).hexdigest()[:16]}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as aside:
            try:
                subprocess.run([*command, *flags, str(SOURCE), "-o", str(aside)], capture_output=True, text=True,
                               timeout=SECONDS, check=True)
            except (OSError, subprocess.SubprocessError) as e:
                said = (getattr(e, "stderr", None) or str(e)).strip().splitlines()[0]
                raise QkvError("the compiler {compiler} failed: {said}", compiler=" ".join(command),
                               said=said) from None
    return path, isa, " ".join(command)


def open_library(path: Path, isa: str, compiler: str) -> Library:
    """A compiled library, with PyTorch's OpenMP to run it on several threads."""
    run = ctypes.CDLL(str(path)).qkv_run
    run.argtypes, run.restype = (ctypes.c_void_p,) * 3 + (ctypes.c_int64,), ctypes.c_int
    try:  # a runtime of its own would fight with PyTorch's over the cores
        loaded = ctypes.CDLL(None)
        fork, number = (ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
                        for name in ("GOMP_parallel", "omp_get_thread_num"))
    except (AttributeError, OSError, TypeError):
        fork = number = None
    return Library(run, isa, compiler, fork, number)


def check_library(found: Library) -> None:
    """QkvError where a kernel says something else than the formula written out, on small random numbers."""
    draw = torch.Generator().manual_seed(0)
    for kind in KINDS:
        n, k = 13, 96
        weight, scale = draw_matrix(kind, n, k, draw)
        for dtype in (torch.float32, torch.bfloat16):
            if (kind, dtype) == ("bf16", torch.float32):
                continue
            open_weight = open_matrix(kind, weight, scale)
            got = unpack(found, kind, weight, scale, dtype)
            if not torch.equal(got, open_weight.to(dtype)):
                raise QkvError("the compiled kernel unpacks {kind} wrongly for {isa}", kind=kind, isa=found.isa)
            for rows in (1, 3, 4, 9):
                x, bias = (torch.randn(*s, generator=draw).to(dtype) for s in ((rows, k), (n,)))
                got = multiply(found, kind, x, weight, scale, bias).double()
                want = x.double() @ open_weight.double().T + bias.double()
                room = (x.double().abs() @ open_weight.double().abs().T + bias.double().abs()) * 2**-18
                if dtype == torch.bfloat16:
                    room += want.abs() * 2**-8
                if not bool(((got - want).abs() <= room).all()):
                    raise QkvError("the compiled kernel multiplies {kind} wrongly for {isa}", kind=kind, isa=found.isa)


def draw_matrix(kind: str, n: int, k: int, draw: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """A random matrix [n, k] of a kind, and the scales that stand apart from it."""
    if kind == "bf16":
        return torch.randn(n, k, generator=draw).bfloat16(), None
    if kind == "int8":
        return torch.randint(-127, 128, (n, k), generator=draw, dtype=torch.int8), torch.rand(n, 1, generator=draw)
    bytes_ = {"Q8_0": 34, "Q4_0": 18}[kind]
    weight = torch.randint(0, 256, (n, k // 32, bytes_), generator=draw, dtype=torch.uint8)
    scales = torch.randn(n, k // 32, 1, generator=draw).half()
    weight[..., :2] = scales.view(torch.uint8)
    return weight, None


def open_matrix(kind: str, weight: Tensor, scale: Tensor | None) -> Tensor:
    """The numbers [n, k] of a matrix, written out in PyTorch: what each kernel is held to. fp32."""
    if kind == "bf16":
        return weight.float()
    if kind == "int8":
        assert scale is not None
        return weight.float() * scale.float()
    own = weight[..., :2].contiguous().view(torch.float16).float()  # n blocks 1
    if kind == "Q8_0":
        return (weight[..., 2:].contiguous().view(torch.int8) * own).flatten(1)
    pairs = weight[..., 2:]
    return (torch.cat((pairs & 15, pairs >> 4), -1).to(torch.int8).sub(8) * own).flatten(1)


def multiply(found: Library, kind: str, x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """x [..., k] times a matrix [n, k] transposed, plus bias [n], in x's type: fp32 or bf16 (for bf16 alone bf16)."""
    n, k = len(weight), x.shape[-1]
    x = x.contiguous()
    out = torch.empty((*x.shape[:-1], n), dtype=x.dtype)
    job = Job(weight.data_ptr(), 0 if scale is None else scale.data_ptr(), 0 if bias is None else bias.data_ptr(),
              x.data_ptr(), out.data_ptr(), x.numel() // k, n, k, KINDS[kind], x.dtype == torch.bfloat16)
    start(found, job)
    return out


def unpack(found: Library, kind: str, weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The numbers [n, k] of a matrix in fp32 or bf16."""
    n = len(weight)
    k = weight.shape[1] * (32 if weight.ndim == 3 else 1)
    out = torch.empty(n, k, dtype=dtype)
    job = Job(weight.data_ptr(), 0 if scale is None else scale.data_ptr(), 0, 0, out.data_ptr(), 0, n, k, KINDS[kind],
              dtype == torch.bfloat16)
    start(found, job)
    return out


def start(found: Library, job: Job) -> None:
    """Run a job on as many threads as PyTorch has; a small one on one."""
    threads = torch.get_num_threads() if found.fork and job.n * job.k >= 1 << 16 else 1
    if found.run(ctypes.addressof(job), found.fork, found.number, threads):
        raise MemoryError
