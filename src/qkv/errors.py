"""The one error that people see: it says what was found, what was expected, and what to do. Stdlib only."""

from collections.abc import Iterable
from difflib import get_close_matches


class QkvError(ValueError):
    """A mistake that the reader can mend; the message names the file, key or line."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint naming the closest known name, or the empty string."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
