"""What is wrong in a file: each kind of fault with its place and how often it occurs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.data.bad_rows import BadRowPolicy
from qkv.data.text_files import Line
from qkv.errors import QkvError
from qkv.messages import Message, Trimmed

WHERE = re.compile(r"^.*?:\d+(?:: |\uff1a)")  # file:line before a message, English or Chinese


@dataclass(frozen=True)
class Fault:
    """Something found: how often, the place of the first, and whether it must be mended (`broken`) or only known."""

    place: str
    text: Message
    count: int = 1
    broken: bool = True


def strip_place(said: Message) -> Message:
    """A message without the place before it."""
    return Trimmed(said, WHERE.pattern)


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
            yield Fault(place, strip_place(first), count)
