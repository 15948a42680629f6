"""What people are told: the one error that they see (found, expected, what to do), and notes. Stdlib only."""

from collections.abc import Iterable
from difflib import get_close_matches


class QkvError(ValueError):
    """A mistake that the reader can mend; the message names the file, key or line. `zh` says the same in Chinese."""

    zh = ""

    def __init__(self, *args: object, zh: str = "") -> None:
        super().__init__(*args)
        if zh:
            self.zh = zh

    @property
    def note(self) -> "Note":
        """Its words, in Chinese too where it has them."""
        return Note(str(self), zh=self.zh or str(self))


class Note(str):
    """What is told besides results: its English words, and the same in Chinese as `zh` where there are any."""

    zh: str

    def __new__(cls, text: str, *, zh: str = "") -> "Note":
        made = super().__new__(cls, text)
        made.zh = zh
        return made


def nearest(name: str, known: Iterable[str]) -> Note:
    """A hint naming the closest known name, or the empty string."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return meant(close[0]) if close else Note("")


def meant(name: str) -> Note:
    """A hint that a name was meant."""
    return Note(f"; did you mean {name!r}?", zh=f"；是不是 {name!r}？")
