"""The one error that people see: found, expected, what to do. Stdlib only."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from qkv.messages import Message

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 100


class QkvError(ValueError):
    """A mistake that the reader can mend; the message names the file, key or line. `code` names the kind of mistake."""

    code = ""

    def __init__(self, template: str = "", /, *, code: str = "", **fields: Any) -> None:
        self.message = Message(template, **fields)
        super().__init__(self.message)
        if code:
            self.code = code


def show_value(value: object) -> str:
    """A wrong value as a message shows it: short, whatever it is."""
    return SHORT.repr(value)


def nearest(name: str, known: Iterable[str]) -> Message:
    """A hint naming the closest known name, or the empty string."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return meant(close[0]) if close else Message()


def meant(name: str) -> Message:
    """A hint that a name was meant."""
    return Message("; did you mean {name!r}?", name=name)
