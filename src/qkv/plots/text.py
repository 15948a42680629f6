"""Words and numbers as they stand in a picture: their width, their cells, and marks made of letters."""

import unicodedata
from collections.abc import Iterable

from rich.cells import cell_len

from qkv.plots.forms import Cell

SHADES, HEIGHTS = " ░▒▓█", "▁▂▃▄▅▆▇█"


def clean(text: str) -> str:
    """A token in one cell: no spaces around it, a line's end as ⏎, control characters as their escapes."""
    kept = text.strip(" ").replace("\n", "⏎")
    letters = (c if unicodedata.category(c) != "Cc" else repr(c)[1:-1] for c in kept)
    return "".join(letters) or "␣" * bool(text)


def find_widest(texts: Iterable[str]) -> int:
    """The columns of the widest text in a terminal, where a Chinese character takes two."""
    return max(map(cell_len, texts), default=0)


def pad(text: str, size: int) -> str:
    """A text filled up to so many columns."""
    return text + " " * max(0, size - cell_len(text))


def format_number(x: float, digits: int = 3) -> str:
    """A number in few characters: whole ones with commas."""
    return f"{x:,.0f}" if float(x).is_integer() and abs(x) < 1e15 else f"{x:.{digits}g}"


def format_signed(x: float) -> str:
    """A number with its sign and three decimals, which stand under each other."""
    return f"{x:+.3f}" if 1e-3 <= abs(x) < 1e4 or x == 0 else f"{x:+.1e}"


def make_cell(cell: str, weight: float = 0.0) -> Cell:
    """A cell of words."""
    return clean(cell), weight


def bar(x: float, largest: float, size: int = 20) -> Cell:
    """A cell with a bar: solid for what pushes up, hatched for what pushes down."""
    count = round(abs(x) / largest * size) if largest else 0
    return ("█" if x > 0 else "▒") * count or "▏", abs(x) / largest if largest else 0.0


def percent(weight: float) -> Cell:
    """A cell with a share: a shade and its percentage."""
    return (f"{SHADES[min(4, int(weight * 4.999))]}{100 * weight:3.0f}" if weight >= 0.01 else "·", weight)
