"""What a run says while it learns: events as JSON lines in a file, and to a function that may show them."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qkv.convert.store import sync

Event = dict[str, Any]  # always a "kind": step, evaluation, note, end; and the "step" at which it happened
Report = Callable[[Event], None]


def finite(value: Any) -> Any:
    """A value as strict JSON holds it: NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def whole(path: Path, value: Any) -> None:
    """A value as a JSON file, whole or not at all: written beside, flushed, then renamed over the old one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(finite(value), ensure_ascii=False, allow_nan=False), encoding="utf-8")
        sync(aside)
        os.replace(aside, path)
        sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def reporter(path: Path | None, report: Report | None) -> Report:
    """A function that writes each event as a line of `path` and hands it to `report`."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)

    def tell(event: Event) -> None:
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite(event), ensure_ascii=False, allow_nan=False) + "\n")
        if report is not None:
            report(event)

    return tell


def events(path: Path) -> list[Event]:
    """The events of a log; a half line at its end, from a crash, is left out."""
    if not path.is_file():
        return []
    found: list[Event] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def cut(path: Path, step: int) -> None:
    """Drop the events after `step`: a resumed run tells them again."""
    kept = [e for e in events(path) if e.get("step", 0) <= step]
    path.write_text("".join(json.dumps(e, ensure_ascii=False) + "\n" for e in kept), encoding="utf-8")
