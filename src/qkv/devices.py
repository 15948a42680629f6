"""Devices and dtypes by the names that people type (auto, cuda:0, fp32, bf16), and the memory that they have free."""

import ctypes
import re
import sys
import sysconfig
from pathlib import Path

import torch

from qkv.errors import QkvError, nearest

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # version 2, 1
OPENMP = re.compile(r"/lib(gomp|iomp5|omp)\b[^/]*$")
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def parse_device(name: str) -> torch.device:
    """The device of a name: auto takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise QkvError("unknown device {name!r} (known: auto, cpu, cuda, cuda:0, mps)", name=name) from None
    count = {"cuda": torch.cuda.device_count, "mps": torch.backends.mps.is_available}.get(device.type)
    if count and (device.index or 0) >= (there := int(count())):
        raise QkvError("device {name!r}: this machine, or this build of PyTorch, has {there} of these; use --device "
                       "cpu", name=name, there=there)
    return device


def read_free_memory(name: str) -> int | None:
    """The bytes that are free on a device; None where nobody says."""
    device = parse_device(name)
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else read_free()


def parse_dtype(name: str) -> torch.dtype | None:
    """The dtype of a name; auto is None: the checkpoint decides."""
    if name not in DTYPES:
        known = (*DTYPES, "int8", "int4")  # the last two are made of bf16: adapt/quantise.py
        raise QkvError("unknown dtype {name!r}{hint} (known: {dtypes})", name=name, hint=nearest(name, known),
                       dtypes=", ".join(known))
    return DTYPES[name]


def read_free() -> int | None:
    """Bytes that a new process may take, within the limit of this one's container; None where it is not Linux.

    What this process holds itself is not among them.
    """
    try:
        rows = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = next(1024 * int(row.split()[1]) for row in rows if row.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    limits = (path.read_text(encoding="ascii").strip() for path in LIMITS if path.is_file())
    return min([found, *(int(limit) for limit in limits if limit.isdigit())])


def list_openmp() -> list[str]:
    """The OpenMP runtimes that this process has loaded, by file; where there are several, their threads disturb each
    other (bench/openmp.py). Empty where the system does not say.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return sorted(path for path in paths if OPENMP.search(path))


def find_openmp() -> list[str]:
    """Installed packages, PyTorch apart, that bring an OpenMP runtime of their own."""
    found: set[str] = set()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for pattern in ("*.libs/lib*omp*", "*/lib/lib*omp*", "*/lib*omp*"):
            found |= {p.relative_to(place).parts[0].removesuffix(".libs") for p in Path(place).glob(pattern)
                      if OPENMP.search(str(p))}
    return sorted(found - {"torch"})


def keep_freed() -> bool:
    """Let glibc reuse freed blocks instead of unmapping them; True where that was understood (Linux with glibc).

    Else every large tensor goes back to the kernel, and page faults cost more than small matrix products (measured: 1.6
    times the training speed at width 128, docs/LOG.md).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # a fixed threshold also stops glibc from moving it; 1 GiB is its own upper bound for one block of the heap
    wanted = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 64 << 20}
    return [mallopt(key, value) for key, value in wanted.items()] == [1, 1, 1]
