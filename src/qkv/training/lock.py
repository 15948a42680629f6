"""One run at a time in a directory: a lock that the kernel lets go of when the process ends, however it ends."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.errors import QkvError

NAME = "lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold `folder`/lock, which names this process; where there are no locks (Windows, some file systems), nothing.

    Raises:
        QkvError: another process holds it; its number is told.
    """
    try:
        fcntl: Any = importlib.import_module("fcntl")
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / NAME).open("a+", encoding="utf-8")
    except (ImportError, OSError):  # what cannot be written is told by what must write there
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip() or "another"
            raise QkvError(f"{folder.parent}: process {who} is training here; wait for it, stop it, or give another "
                           "--out",
                           zh=f"{folder.parent}：进程 {who} 正在这里训练；请等它、停它，"
                           "或另给 --out") from None  # fmt: skip
        except OSError:  # this file system has no locks
            yield
            return
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
