"""What people are told: the one error that they see (found, expected, what to do), and notes. Stdlib only."""

from collections.abc import Iterable
from difflib import get_close_matches


class QkvError(ValueError):
    """A mistake that the reader can mend; the message names the file, key or line."""


class Note(str):
    """What is told besides results: its English words, and the same in Chinese as `zh` where there are any."""

    zh: str

    def __new__(cls, text: str, *, zh: str = "") -> "Note":
        made = super().__new__(cls, text)
        made.zh = zh
        return made


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint naming the closest known name, or the empty string."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
