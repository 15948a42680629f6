"""What was made of a file once and is used again: folders in the user's cache, each named by what it was made of.

An entry is there whole or not at all. Two processes that need the same one wait for each other. Next: large_text.py.
"""

import atexit
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qkv.errors import QkvError
from qkv.files import hold_lock, is_abandoned
from qkv.messages import Message
from qkv.paths import cache_dir

T = TypeVar("T")
Tell = Callable[[dict[str, Any]], None]  # an event as a run reports it
HEARER: ContextVar[Tell | None] = ContextVar("HEARER", default=None)  # see hear_progress()
USER = "user."  # begins the name of the empty file by which a process says that it reads an entry


@contextmanager
def hear_progress(tell: Tell | None) -> Iterator[None]:
    """Within it `tell` gets events of how far the reading and encoding of large data is."""
    token = HEARER.set(tell)
    try:
        yield
    finally:
        HEARER.reset(token)


def tell_progress(doing: Message, done: int, of: int) -> None:
    """Say how far something is to whoever hears it: how much `of` all is done; with 0 after how many seconds."""
    if hearer := HEARER.get():
        hearer({"kind": "reading", "step": 0, "text": doing, "done": done, "of": of})


@dataclass(frozen=True)
class Entry:
    """An entry: its folder, the file it was made of, its bytes, the days since a run used it, whether one does now."""

    folder: Path
    source: str
    bytes: int
    days: float
    in_use: bool


def encoded_dir() -> Path:
    """The folder of all entries."""
    return cache_dir() / "encoded"


def fetch_entry(name: str, read: Callable[[Path], T], write: Callable[[Path], object]) -> T:
    """What `read` makes of an entry; `write` makes the folder first, all at once, where there is none or a broken one.

    Raises:
        QkvError: as `write` does.
    """
    place = encoded_dir() / name
    with hold_lock(place.with_name(f"{place.name}.lock")):
        try:
            found = read(place)
        except QkvError:
            for old in (place, *place.parent.glob(f".{name}.*")):  # also what a process that was killed left
                shutil.rmtree(old, ignore_errors=True)
            write(place)
            found = read(place)
        with suppress(OSError):
            marker = place / f"{USER}{os.getpid()}"
            marker.touch()
            os.utime(place)
            atexit.register(marker.unlink, missing_ok=True)
    return found


def list_entries() -> list[Entry]:
    """Every entry, the one that was used last first."""
    root = encoded_dir()
    found = [describe_entry(place) for place in root.iterdir() if place.is_dir()] if root.is_dir() else []
    return sorted(found, key=lambda entry: entry.days)


def describe_entry(place: Path) -> Entry:
    """Size, age and use of an entry."""
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    users = [file.name.removeprefix(USER) for file in place.glob(f"{USER}*")]
    try:
        source = str(json.loads((place / "index.json").read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError):
        source = place.name
    in_use = any(map(is_running, users)) or (place.name.startswith(".") and not is_abandoned(place))  # not whole yet
    return Entry(place, source, size, (time.time() - place.stat().st_mtime) / 86400, in_use)


def is_running(number: str) -> bool:
    """Whether a process of this number runs here."""
    if os.name == "nt":  # a signal to ask with would end it there
        return number.isdigit()
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:  # another user's
        return True
    return True


def prune_entries(older_than: float) -> list[Entry]:
    """Remove the entries that no run has used for so many days and none uses now; returns those removed."""
    for file in encoded_dir().glob("rows.*"):  # what a process that was killed left
        if not is_running(file.name.split(".")[1]):
            file.unlink(missing_ok=True)
    removed = [entry for entry in list_entries() if entry.days >= older_than and not entry.in_use]
    for entry in removed:
        with hold_lock(entry.folder.with_name(f"{entry.folder.name}.lock")):
            shutil.rmtree(entry.folder, ignore_errors=True)
        entry.folder.with_name(f"{entry.folder.name}.lock").unlink(missing_ok=True)
    return removed
