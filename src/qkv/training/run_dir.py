"""The directory of a run: what lies in it, who may write there, and how it is read again. Without torch.

The directory is a model that can be loaded, from the first evaluation on. In its folder `train` lie

    run.json, result.json         the settings; how it ended, its numbers on the test and beside trivial ones
    log.jsonl, test.hyp           the events, a line each; the answers to the test
    last.safetensors, last.json   the checkpoint to resume from: one file, or in parts (checkpoint.py, fsdp.py)
    best.safetensors, snapshots   weights alone
    bad_batches, watch, lock      what bad steps read; what probes recorded; the process that trains here
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import MARK, explain_failure, hold_lock, to_json, write_text_file
from qkv.json_files import read_json, read_text
from qkv.messages import Message
from qkv.options import flatten

FOLDER = "train"
SETTINGS, RESULT, LOG, ANSWERS = (Path(FOLDER, name) for name in ("run.json", "result.json", "log.jsonl", "test.hyp"))
PARTIAL = re.compile(r"\..+\.(safetensors|jsonl?)\.\d+")  # a file while it is written, by the process of that number
RESUME = Message("what was saved before is intact. Make room (or name an --out that can be written) and run again with "
                 "--resume auto")

Event = dict[str, Any]  # always a "kind": step, evaluation, note, end; and the "step" at which it happened
Report = Callable[[Event], None]


def is_run(directory: Path) -> bool:
    """Whether a run has begun in a directory."""
    return (directory / SETTINGS).is_file()


def find_last(folder: Path | None) -> Path | None:
    """The newest checkpoint of a run's folder to resume from, if there is one."""
    found = [folder / name for name in ("last.safetensors", "last.json")] if folder else []
    return max((path for path in found if path.is_file()), key=lambda path: path.stat().st_mtime, default=None)


def refuse_others(directory: Path, *, begun: bool = False) -> None:
    """QkvError where a run's directory would be a file, is that of a model which is no run, or has `begun` already."""
    for path in (directory, *directory.parents):
        if path.exists() and not path.is_dir():
            raise QkvError("{path}: is a file, and the run needs a directory; give another --out", path=path)
    models = [name for name in ("config.json", "adapter_config.json") if (directory / name).exists()]
    if models and not (directory / SETTINGS).exists():
        raise QkvError("{directory}: contains a model that is not a run, and would be overwritten; give another --out",
                       directory=directory)
    if begun and find_last(directory / FOLDER):
        raise QkvError("{directory}: there is a run here already; continue it with --resume auto, or give another "
                       "--out", directory=directory)


@contextmanager
def lock_directory(folder: Path) -> Iterator[None]:
    """Hold `folder`/lock, which names this process, so that one run at a time is in a directory.

    Raises:
        QkvError: another process holds it; the message gives its number.
    """
    path, who = folder / "lock", ""
    for odd in (p for p in folder.rglob("*") if p.exists() and not p.is_file() and not p.is_dir()):
        raise QkvError("{path}: is a pipe or a device, expected a file of a run", path=odd)
    with suppress(QkvError):
        who = read_text(path).strip()
    with hold_lock(path, wait=False) as free:
        if not free:
            raise QkvError("{parent}: process {who} is training here; wait for it, stop it, or give another --out",
                           parent=folder.parent, who=who or "another")
        with suppress(OSError):
            path.write_text(str(os.getpid()), encoding="utf-8")
        yield


def remove_partial(folder: Path) -> None:
    """Remove what runs that were killed in the midst of writing left beside their files."""
    for path in folder.rglob(".*"):
        if path.is_file() and PARTIAL.fullmatch(path.name):
            path.unlink(missing_ok=True)
        elif path.is_dir() and (path.name.startswith(".last-") or MARK in path.name):
            shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object for people to read, whole or not at all; numbers that are not finite become null."""
    write_text_file(path, to_json(value, indent=2), hint=RESUME)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object that a run wrote; an empty one where it is not there or broken."""
    with suppress(OSError, QkvError):
        return read_json(path)
    return {}


def read_settings(directory: Path) -> dict[str, Any]:
    """The settings of a run by `part.key`, under the names of today; without its name and notes."""
    from qkv.training.settings import RENAMED

    kept = flatten(read_object(directory / SETTINGS))
    return {RENAMED.get(key, key): value for key, value in kept.items() if key not in ("name", "notes")}


def open_log(path: Path | None, report: Report | None) -> Report:
    """A function that writes each event as a line of `path` and hands it to `report`.

    Raises:
        QkvError: the disk is full or not writable, then or later.
    """
    if path is not None:
        with explain_failure(path, RESUME):
            path.parent.mkdir(parents=True, exist_ok=True)

    def report_event(event: Event) -> None:
        if path is not None:
            with explain_failure(path, RESUME), path.open("a", encoding="utf-8") as file:
                file.write(to_json(event))
        if report is not None:
            report(event)

    return report_event


def read_events(path: Path) -> list[Event]:
    """The events of a log; a half line, from a crash, is left out, and what is no event."""
    if not path.is_file():
        return []
    found: list[Event] = []
    for raw in path.read_bytes().splitlines():  # a text would end lines at U+2028 too, and a crash may halve a letter
        with suppress(ValueError, RecursionError):
            event = json.loads(raw.decode("utf-8"))
            found += [event] if is_event(event) else []
    return found


def is_event(row: Any) -> bool:
    """Whether a line of a log is an event: its kind, its step, and what every event may have."""
    if not (isinstance(row, dict) and isinstance(row.get("kind"), str) and type(row.get("step", 0)) is int):
        return False
    numbers = (row.get(key) for key in ("seconds", "tokens", "tokens_per_second", "loss", "of", "lr"))
    return (all(n is None or type(n) in (int, float) for n in numbers) and isinstance(row.get("why", ""), str)
            and isinstance(row.get("metrics") or {}, dict))


def truncate(path: Path, step: int) -> None:
    """Drop the events after `step`, and half lines: a resumed run logs them again.

    Raises:
        QkvError: the disk is full or not writable; the log is as it was.
    """
    kept = "".join(to_json(e) for e in read_events(path) if e.get("step", 0) <= step)
    if path.is_file() and path.read_bytes() != kept.encode("utf-8"):
        write_text_file(path, kept, hint=RESUME)
