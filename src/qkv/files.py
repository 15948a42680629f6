"""Files are written beside their place, flushed to the disk and renamed: whole or not at all. Stdlib and filelock only.

What a process that was killed left beside a file or a directory is removed by the next write of that name.
"""

import errno
import glob
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.messages import Message

try:
    import fcntl
except ImportError:  # Windows: nothing is known to be abandoned there
    fcntl: Any = None

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
MARK = ".qkv-"  # in the names of temporary directories
UNCHANGED = Message("what was there before is unchanged")


@contextmanager
def make_aside(target: Path) -> Iterator[Path]:
    """A temporary directory beside `target`, which is removed in the end, as are those that dead processes left.

    This process holds a lock on it, which the kernel releases however the process ends.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = os.fsencode(f".{target.name}")[:230].decode(errors="ignore") + MARK
    for stray in target.parent.glob(glob.escape(prefix) + "*"):
        if (lock := lock_abandoned(stray)) is not None:
            shutil.rmtree(stray, ignore_errors=True)
            os.close(lock)
    while True:  # until no other process has taken it for abandoned
        aside = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            lock = lock_abandoned(aside, certain=False)
        except OSError:  # no more files may be open
            aside.rmdir()
            raise
        if lock is not None:
            break
    try:
        yield aside
    finally:
        os.close(lock)  # first: to remove a directory is to open it
        shutil.rmtree(aside, ignore_errors=True)


def lock_abandoned(folder: Path, *, certain: bool = True) -> int | None:
    """A lock on a temporary directory that no process holds; None where one does, or, if `certain`, may."""
    if fcntl is None:
        return None if certain else os.open(os.devnull, os.O_RDONLY)
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = folder.exists()
    except OSError as e:  # another process holds it, or the file system has no locks
        free = not certain and not isinstance(e, BlockingIOError)
    if free:
        return handle
    os.close(handle)
    return None


def is_abandoned(folder: Path) -> bool:
    """Whether a temporary directory was left by a process that is dead."""
    lock = lock_abandoned(folder)
    if lock is not None:
        os.close(lock)
    return lock is not None


@contextmanager
def hold_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file; False, without `wait`, where another process does. On a file system without locks, nothing.

    The kernel releases it when the process ends, however it ends.
    """
    from filelock import FileLock, Timeout

    lock, free = FileLock(path), True
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=wait)
    except Timeout:
        free = False
    except (OSError, NotImplementedError):  # no locks here, or nothing can be written, which whoever writes reports
        pass
    try:
        yield free
    finally:
        lock.release()


@contextmanager
def replace_file(path: Path, *, hint: Message = UNCHANGED) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` when the block ends; a pipe or device is written as it is.

    Raises:
        QkvError: it cannot be written; `hint` says what that means, and the old file is as it was.
    """
    path = Path(os.path.realpath(path)) if Path(path).is_file() else Path(path)
    with explain_failure(path, hint):
        if path.exists() and not path.is_file():
            yield path
            return
        with make_aside(path) as aside:
            file = aside / path.name
            yield file
            if path.exists():
                shutil.copymode(path, file)
            fsync_path(file)
            os.replace(file, path)
            settle(path.parent)


def write_text_file(path: Path, text: str, *, hint: Message = UNCHANGED) -> None:
    """A text as a file, whole or not at all; errors as of `replace_file`."""
    data = text.encode("utf-8")
    with replace_file(path, hint=hint) as file, name_missing_bytes(file, len(data)):
        file.write_bytes(data)


def to_json_value(value: Any) -> Any:
    """A value as JSON holds it: dataclasses as objects, tensors and arrays as lists, NaN and infinity as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [to_json_value(item) for item in value]
    if callable(to_list := getattr(value, "tolist", None)):
        return to_json_value(to_list())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def to_json(value: Any, **how: Any) -> str:
    """A value as strict JSON that ends its line."""
    return json.dumps(to_json_value(value), ensure_ascii=False, allow_nan=False, **how) + "\n"


@contextmanager
def replace_dir(directory: Path) -> Iterator[Path]:
    """A new directory whose files take the place of their namesakes in `directory` when the block ends.

    Raises:
        QkvError: it cannot be written; the old files are as they were.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise QkvError("{directory}: is a file, expected a directory to save into", directory=directory)
    with explain_failure(directory), make_aside(directory) as aside:
        made = aside / "new"
        made.mkdir()
        yield made
        for path in (*made.rglob("*"), made):
            fsync_path(path)
        if os.path.lexists(directory):
            move_files(made, directory, aside / "old")
        else:
            os.replace(made, directory)
        settle(directory, directory.parent)


def move_files(source: Path, directory: Path, backup: Path) -> None:
    """Each file of `source` over its namesake in `directory`, configs last; where one cannot be, all are put back."""
    undo: list[Callable[[], object]] = []
    try:
        for path in sorted((p for p in source.rglob("*") if p.is_file()), key=lambda p: (p.suffix == ".json", str(p))):
            target, old = directory / path.relative_to(source), backup / path.relative_to(source)
            for parent in (target.parent, old.parent):
                parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(target, old)
                undo.append(lambda target=target, old=old: os.replace(old, target))
            except FileNotFoundError:
                undo.append(lambda target=target: target.unlink(missing_ok=True))
            except OSError:  # a file system without links: the new file stays then
                pass
            os.replace(path, target)
    except BaseException:
        for put_back in reversed(undo):
            with suppress(OSError):
                put_back()
        raise


def fsync_path(path: Path) -> None:
    """Wait until a file (or a directory's list of names) is on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def settle(*directories: Path) -> None:
    """Wait until renames are on the disk, as far as it says so: they are done, and what failed now could undo none."""
    for directory in directories:
        with suppress(OSError):
            fsync_path(directory)


@contextmanager
def name_missing_bytes(path: Path, size: int) -> Iterator[None]:
    """An error within it that means a full disk says how many of the `size` bytes of the file at `path` are missing."""
    try:
        yield
    except OSError as e:
        if e.errno not in FULL:
            raise
        room = path.stat().st_size if path.is_file() else 0
        with suppress(OSError):
            room += shutil.disk_usage(path.parent).free if e.errno == errno.ENOSPC else 0
        reason = Message("{reason}: {missing:,} of {size:,} bytes are missing", reason=e.strerror or str(e),
                         missing=max(1, size - room), size=size)
        raise OSError(e.errno, reason, str(path)) from e


@contextmanager
def explain_failure(path: Path, hint: Message = UNCHANGED) -> Iterator[None]:
    """An OSError within it as a QkvError that names `path`; `hint` is what it means and what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.parent.exists():
            raise QkvError("{path}: the folder {folder} is not there: was it moved or removed, or can it not be made?",
                           code="folder-gone", path=path, folder=path.parent) from error
        inside = Path(os.fsdecode(error.filename)).name if error.filename else ""
        file = path / inside if path.is_dir() and MARK in str(error.filename) and inside != "new" else path
        raise QkvError("{path}: could not be written ({reason}); {hint}", path=file, reason=error.strerror or error,
                       hint=hint, code="disk-full" if error.errno in FULL else "not-written") from error
