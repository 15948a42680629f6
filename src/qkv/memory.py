"""Keeping freed memory in the process: glibc hands every large tensor back to the kernel, and page faults cost more
than small matrix products (measured: 1.6 times the training speed at width 128, docs/LOG.md). Stdlib only."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h


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
