"""Keeping freed memory in the process: glibc hands every large tensor back to the kernel, and page faults cost more
than small matrix products (measured: 1.6 times the training speed at width 128, docs/LOG.md). Stdlib only."""

import ctypes
import sys
from pathlib import Path

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # version 2, 1
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h


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


def keep_freed() -> bool:
    """Let glibc reuse freed blocks instead of unmapping them; True where that was understood (Linux with glibc)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # a fixed threshold also stops glibc from moving it; 1 GiB is its own upper bound for one block of the heap
    wanted = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 64 << 20}
    return [mallopt(key, value) for key, value in wanted.items()] == [1, 1, 1]
