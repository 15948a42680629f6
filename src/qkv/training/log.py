"""What a run says while it learns: events as JSON lines in a file, and to a function that may show them."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from qkv.files import write_failure, write_text_file
from qkv.messages import Message

Event = dict[str, Any]  # always a "kind": step, evaluation, note, end; and the "step" at which it happened
Report = Callable[[Event], None]
RESUME = Message("what was saved before is intact. Make room (or name an --out that can be written) and run again with "
                 "--resume auto")


def replace_nonfinite(value: Any) -> Any:
    """A value as strict JSON holds it: NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(k): replace_nonfinite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any, **how: Any) -> str:
    """A value as strict JSON that ends its line."""
    return json.dumps(replace_nonfinite(value), ensure_ascii=False, allow_nan=False, **how) + "\n"


def open_log(path: Path | None, report: Report | None) -> Report:
    """A function that writes each event as a line of `path` and hands it to `report`.

    Raises:
        QkvError: the disk is full or not writable, then or later.
    """
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise write_failure(path, e, RESUME) from e

    def report_event(event: Event) -> None:
        if path is not None:
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(to_json(event))
            except OSError as e:
                raise write_failure(path, e, RESUME) from e
        if report is not None:
            report(event)

    return report_event


def make_progress(every: float = 5.0) -> Report:
    """A report for Python: notes, evaluations and, `every` so many seconds, the loss of a step, as lines on stderr."""
    last = time.monotonic()

    def tell(event: Event) -> None:
        nonlocal last
        if event["kind"] == "step" and (event["step"] == 1 or time.monotonic() - last >= every):
            last = time.monotonic()
            of = f"/{event['of']}" if event["of"] else ""
            print(f"step {event['step']}{of}  loss {event['loss']:.3f}  lr {event['lr']:.2e}", file=sys.stderr)
        elif event["kind"] == "evaluation":
            numbers = "  ".join(f"{key} {value:.4g}" for key, value in event.items() if isinstance(value, float))
            print(f"step {event['step']}  {numbers}{'  *' if event.get('best') else ''}", file=sys.stderr)
        elif event["kind"] == "note":
            print(event["text"], file=sys.stderr)

    return tell


def print_lines(lines: Iterable[object]) -> None:
    """Lines on stderr, without the empty ones."""
    for line in filter(None, lines):
        print(line, file=sys.stderr)


def read_events(path: Path) -> list[Event]:
    """The events of a log; a half line, from a crash, is left out."""
    if not path.is_file():
        return []
    found: list[Event] = []
    for raw in path.read_bytes().splitlines():  # a text would end lines at U+2028 too, and a crash may halve a letter
        try:
            found.append(json.loads(raw.decode("utf-8")))
        except ValueError:
            continue
    return found


def truncate(path: Path, step: int) -> None:
    """Drop the events after `step`, and half lines: a resumed run logs them again.

    Raises:
        QkvError: the disk is full or not writable; the log is as it was.
    """
    kept = "".join(to_json(e) for e in read_events(path) if e.get("step", 0) <= step)
    if path.is_file() and path.read_bytes() != kept.encode("utf-8"):
        write_text_file(path, kept, hint=RESUME)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object to a file atomically; numbers that are not finite become null."""
    write_text_file(path, to_json(value, indent=2, default=str), hint=RESUME)
