"""The kernels in C of this folder, where this machine has a C compiler: found, compiled, kept, opened and checked.

They are compiled at their first use, kept in the cache by what they were made of, and held to the open formulas first.
Where there is no compiler, or QKV_NATIVE=0 forbids it, there are no such kernels, and nothing else changes.
"""

import ctypes
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import replace_file
from qkv.messages import Message
from qkv.paths import cache_dir

SOURCE = Path(__file__).with_name("row_block.c")  # it includes the others
INCLUDED = tuple(SOURCE.with_name(name) for name in (
    "vectors.h", "row_products.c", "row_tiles.c", "row_ggml.c", "row_ops.c", "row_prompt.c"))
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
FLAGS = {"avx512_bf16": (*AVX512, "-mavx512bf16", "-mavx512vnni"), "avx512": AVX512, "avx2": AVX2, "portable": ()}
ALWAYS = ("-O3", "-std=c11", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")
SECONDS = 300.0  # for a compiler that hangs; the package ziglang compiles its own C library first


@dataclass(frozen=True)
class Library:
    """The compiled kernels, the instruction set that they were compiled for, and how they share out their work.

    Threads are those of PyTorch's own OpenMP; without it (`fork` is None) one thread does the work.
    """

    opened: Any
    isa: str
    compiler: str
    fork: int | None
    number: int | None
    barrier: int | None
    spare: dict[torch.dtype, Tensor] = field(default_factory=dict[torch.dtype, Tensor])  # to unpack into

    def __str__(self) -> str:
        return f"{self.isa} ({self.compiler})"

    def share_out(self, work: int) -> tuple[int | None, int | None, int]:
        """The last arguments of a kernel that reads so many numbers: few of them need no second thread."""
        return self.fork, self.number, torch.get_num_threads() if self.fork and work >= 1 << 16 else 1


@cache
def find_library() -> Library | Message:
    """The kernels of this machine, or why there are none."""
    from qkv.adapt import row_block, row_ops, row_products  # they check what is compiled here

    if os.environ.get("QKV_NATIVE", "1").lower() in ("0", "false", "no", "off"):
        return Message("switched off by QKV_NATIVE")
    try:
        found = open_library(*compile_sources(choose_isa()))
        row_products.check_library(found)
        row_ops.check_library(found)
        row_block.check_library(found)
    except (QkvError, OSError, subprocess.SubprocessError, AttributeError) as e:
        return e.message if isinstance(e, QkvError) else Message("{e}", e=e)
    return found


def library() -> Library | None:
    """The kernels of this machine, None where there are none."""
    found = find_library()
    return found if isinstance(found, Library) else None


def is_plain(x: Tensor) -> bool:
    """Whether x is numbers on a CPU that nothing but a kernel will read: no graph, no gradient, no fake."""
    return (
        type(x) is Tensor and x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float32)
        and not (torch.is_grad_enabled() and x.requires_grad) and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]
    )


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


def compile_sources(isa: str) -> tuple[Path, str, str]:
    """The library compiled for an instruction set, from the cache where it is; with that set and the compiler.

    Raises:
        QkvError: there is no compiler, or it failed; the message has its first line.
    """
    command = find_compiler()
    if command is None:
        raise QkvError("no C compiler (cc, clang, gcc or the package ziglang)")
    flags = (*ALWAYS, *FLAGS[isa], f"-I{SOURCE.parent}")
    texts = [path.read_bytes() for path in (*INCLUDED, SOURCE)]
    made_of = [*texts, *(part.encode() for part in (*command, *flags[:-1], sys.platform))]
    path = cache_dir() / "native" / f"rows-{isa}-{hashlib.sha256(b'|'.join(made_of)).hexdigest()[:16]}.so"
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
    opened, address, whole = ctypes.CDLL(str(path)), ctypes.c_void_p, ctypes.c_int64
    opened.qkv_run.argtypes = (address, whole, address, address, address, whole)
    opened.qkv_laid.argtypes = (ctypes.c_int,)
    for name in ("qkv_attend", "qkv_norm", "qkv_rotate", "qkv_gate", "qkv_select", "qkv_attend_prompt"):
        getattr(opened, name).argtypes = (address, address, address, whole)
    opened.qkv_blocks.argtypes = (address, whole, address, address, address, whole)
    opened.qkv_open.argtypes = (address,)
    opened.qkv_block_scratch.argtypes, opened.qkv_block_scratch.restype = (address,), whole
    try:  # a runtime of its own would fight with PyTorch's over the cores
        loaded = ctypes.CDLL(None)
        fork, number, barrier, size = (
            ctypes.cast(getattr(loaded, name), address).value
            for name in ("GOMP_parallel", "omp_get_thread_num", "GOMP_barrier", "omp_get_num_threads"))
        opened.qkv_open(size)
    except (AttributeError, OSError, TypeError):
        fork = number = barrier = None
    return Library(opened, isa, compiler, fork, number, barrier)
