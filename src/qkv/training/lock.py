"""One run at a time in a directory: a lock that the kernel releases when the process ends, however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from qkv.errors import QkvError

NAME = "lock"


@contextmanager
def lock_directory(folder: Path) -> Iterator[None]:
    """Hold `folder`/lock, which names this process; on a file system without locks, nothing.

    Raises:
        QkvError: another process holds it; the message gives its number.
    """
    path, who, lock = folder / NAME, "", FileLock(folder / NAME)
    with suppress(OSError):
        who = path.read_text(encoding="utf-8").strip()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        who = who or "another"
        raise QkvError("{parent}: process {who} is training here; wait for it, stop it, or give another --out",
                       parent=folder.parent, who=who) from None
    except OSError:  # no locks here, or nothing can be written, which whatever must write here will report
        yield
        return
    try:
        with suppress(OSError):
            path.write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        lock.release()
