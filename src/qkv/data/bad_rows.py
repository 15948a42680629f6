"""How bad rows are treated: an error, skipped, written to a quarantine file, or counted by kind."""

import base64
import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from qkv.data.text_files import Line
from qkv.errors import QkvError, nearest
from qkv.messages import Message, Trimmed

DRY_RUN = ContextVar("DRY_RUN", default=False)  # see tried()
WHERE = re.compile(r"^.*?:\d+(?:: |\uff1a)")  # file:line before a message, English or Chinese
Action = Literal["error", "skip", "quarantine"]


@dataclass
class BadRowPolicy(AbstractContextManager["BadRowPolicy"]):
    """How bad rows are treated: the first is an error, or each is skipped, or written to a quarantine file.

    Used in a `with` block; the file, JSON lines of {file, line, why, text}, is there when the block ends, and no other
    than before if it ends with an error. Rows that are not UTF-8 are also kept in base64, so that nothing is lost.
    """

    action: Action = "error"
    aside: Path | None = None  # where rows in quarantine go
    dropped: dict[str, int] = field(default_factory=dict)  # rows left out, by file
    first: dict[str, Message] = field(default_factory=dict)  # what was wrong with the first of them, by file
    file: IO[str] | None = None

    def __post_init__(self) -> None:
        known = ("error", "skip", "quarantine")
        if self.action not in known:
            hint = nearest(self.action, known)
            raise QkvError("on_bad_row: found {action!r}{hint} (known: {known})", action=self.action, hint=hint,
                           known=", ".join(known))
        if self.action == "quarantine" and self.aside is None:
            raise QkvError("on_bad_row: quarantine needs a file for the bad rows")
        if self.action == "quarantine" and DRY_RUN.get():
            self.action = "skip"

    def __exit__(self, kind: object, *error: object) -> None:
        if self.file is not None and self.aside is not None:
            self.file.close()
            if kind is None:
                os.replace(self.file.name, self.aside)
            else:
                Path(self.file.name).unlink()
            self.file = None

    def refuse(self, error: QkvError, *rows: tuple[Path, Line]) -> None:
        """A bad row, which may be one line in each of several files; under `error` this raises."""
        if self.action == "error":
            raise error
        name = str(rows[0][0])
        self.first.setdefault(name, error.message)
        self.dropped[name] = self.dropped.get(name, 0) + 1
        if self.action == "quarantine" and self.aside is not None:
            if self.file is None:
                refuse_overwrite(self.aside)
                self.aside.parent.mkdir(parents=True, exist_ok=True)
                self.file = self.aside.with_name(f".{self.aside.name}.{os.getpid()}").open("w", encoding="utf-8")
            for path, line in rows:
                self.file.write(json.dumps(describe_row(path, line, str(error)), ensure_ascii=False) + "\n")

    @property
    def notes(self) -> list[Message]:
        """One sentence for each file that lost rows."""
        kept = self.action == "quarantine"
        where = Message(", written to {aside}", aside=self.aside) if kept else ""
        return [Message("{n} bad row(s) left out{where}; the first: {first}", n=n, where=where, first=self.first[name])
                for name, n in self.dropped.items()]


@contextmanager
def dry_run() -> Iterator[None]:
    """Within it no quarantine is written, as by what only tries whether data can be read; bad rows are left out."""
    token = DRY_RUN.set(True)
    try:
        yield
    finally:
        DRY_RUN.reset(token)


def refuse_overwrite(aside: Path) -> None:
    """QkvError if the file is neither an earlier quarantine nor empty."""
    try:
        with aside.open("rb") as file:
            line = file.readline()
        first = json.loads(line) if line else None
        earlier = not line or (isinstance(first, dict) and {"file", "line", "why"} <= first.keys())
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        earlier = False
    if not earlier:
        raise QkvError("{aside}: exists and is not a quarantine file, so it is not overwritten; name another file: "
                       "data.quarantine=FILE", aside=aside)


def describe_row(path: Path, line: Line, why: str) -> dict[str, str | int]:
    text = line.raw.decode("utf-8", "replace")
    row: dict[str, str | int] = {"file": str(path), "line": line.number, "why": why, "text": text}
    whole = len(line.raw) == line.size
    if not whole:
        return row | {"bytes": line.size, "offset": line.offset}
    return row if text.encode("utf-8") == line.raw else row | {"base64": base64.b64encode(line.raw).decode("ascii")}


@dataclass(frozen=True)
class Fault:
    """Something found: how often, the place of the first, and whether it must be mended (`broken`) or only known."""

    place: str
    text: Message
    count: int = 1
    broken: bool = True


class FaultCounter(BadRowPolicy):
    """A policy that counts each kind of fault and keeps the first of each kind."""

    def __init__(self) -> None:
        super().__init__("skip")
        self.kinds: dict[str, tuple[int, Message]] = {}
        self.count = 0

    def refuse(self, error: QkvError, *rows: tuple[Path, Line]) -> None:
        """Count a bad row."""
        super().refuse(error, *rows)
        self.count += 1
        what = re.sub(r"0x\w+|[\d,]+|'[^']*'", "", WHERE.sub("", str(error))).split(":")[0].split(";")[0]
        seen, first = self.kinds.get(what, (0, error.message))
        self.kinds[what] = (seen + 1, first)

    def faults(self) -> Iterator[Fault]:
        """One fault for each kind."""
        for count, first in self.kinds.values():
            found = WHERE.match(first)
            place = found.group().removesuffix(": ") if found else ""
            yield Fault(place, Trimmed(first, WHERE.pattern), count)
