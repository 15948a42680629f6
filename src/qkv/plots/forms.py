"""What a picture is: lines, bars, a grid of shaded cells or a table, with a title, axes and a note. Next: html.py.

A title, label or note is one text, or a pair of Chinese and English, of which both are shown.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qkv.messages import Message, translate_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

Point = tuple[float, float]
Cell = tuple[str, float]  # a text, and the weight that colours it in a terminal
COLOURS = ("#0077d4", "#b06200", "#008560", "#a050c8", "#757575", "#c4476b", "#00808f", "#7d7400")
BLUE, ORANGE = COLOURS[:2]  # for what is positive and negative
MAX_CELLS = 64  # rows and columns of a grid that are drawn: the last ones


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What stands beside any picture; `published` marks numbers of others, which are drawn on grey."""

    x_label: str = ""
    y_label: str = ""
    log: bool = False
    published: bool = False


@dataclass(frozen=True)
class Grid(Axes):
    """Cells [R, C] shaded from -1 (orange) over 0 to 1 (blue), with a text in each where `cells` has one."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    shade: "Tensor | Sequence[Sequence[float]]"
    cells: Sequence[Sequence[str]] = ()
    note: str = ""

    @property
    def shades(self) -> list[list[float]]:
        """The shades as numbers."""
        return self.shade.tolist() if hasattr(self.shade, "tolist") else [list(row) for row in self.shade]  # type: ignore[union-attr]


@dataclass(frozen=True)
class Bars(Axes):
    """One bar a name, orange where it is negative; or one for each of several named series, each in its colour."""

    title: str
    names: Sequence[str]
    values: Sequence[float] | Mapping[str, Sequence[float]]
    note: str = ""

    @property
    def series(self) -> Mapping[str, Sequence[float]]:
        """The values by series; a single one has no name."""
        return self.values if isinstance(self.values, Mapping) else {"": self.values}


@dataclass(frozen=True)
class Lines(Axes):
    """Series over the same named places; without places each is a list of points (x, y)."""

    title: str
    places: Sequence[str]
    series: Mapping[str, Sequence[Any]]
    note: str = ""

    @property
    def curves(self) -> dict[str, list[Point]]:
        """The finite points of each series; places are counted from 0."""
        every = {name: list(enumerate(row)) if self.places else row for name, row in self.series.items()}
        return {name: [p for p in row if math.isfinite(p[0]) and math.isfinite(p[1])] for name, row in every.items()}


@dataclass(frozen=True)
class Table(Axes):
    """Rows of words, or of words with weights; the first row is the head in HTML."""

    title: str
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""


Form = Grid | Bars | Lines | Table


class Drawn:
    """A readout that can be seen: a notebook shows it, `plot` makes a figure of it."""

    def forms(self) -> Sequence[Form]:
        """What is drawn, from the top."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """The pictures as HTML."""
        from qkv.plots import html

        return "".join(map(html.render, self.forms()))

    def plot(self) -> "Figure":
        """A matplotlib figure, which saves itself: `t.lens().plot().savefig("lens.svg")`.

        Raises:
            QkvError: matplotlib is not there.
        """
        from qkv.plots import figure

        return figure.draw([figure.mark_cut(form) for form in self.forms()])


def list_words(words: str, lang: str = "") -> list[str]:
    """The texts of a title or a note: of a message that of `lang`, or one for each language where they differ."""
    return [w for w in dict.fromkeys(translate_value(words, one) for one in ([lang] if lang else ["zh", "en"])) if w]


def list_notes(form: Any) -> list[str]:
    """What stands below a picture: its note, and that its scale is logarithmic."""
    return [words for words in (form.note, Message("logarithmic scale") if form.log else "") if words]


def name_both(message: Message) -> str:
    """A message in Chinese and in English, as the name of a series."""
    return " ".join(list_words(message))


def trim(form: Form) -> tuple[Any, str]:
    """A grid's last rows and columns where it has very many, and a note that says so."""
    if not isinstance(form, Grid) or max(len(form.rows), len(form.columns)) <= MAX_CELLS:
        return form, ""
    last = slice(-MAX_CELLS, None)
    shades, cells = ([row[last] for row in part[last]] for part in (form.shades, form.cells))
    kept = replace(form, rows=form.rows[last], columns=form.columns[last], shade=shades, cells=cells)
    size = f"{len(form.rows)} × {len(form.columns)}"
    return kept, Message("the last {max_cells} of {size}", max_cells=MAX_CELLS, size=size)


def scale(series: Iterable[Sequence[float]], *, log: bool = False) -> list[list[float]]:
    """Values as shares of the greatest, signs dropped; on a log scale the least positive value stays visible."""
    rows = [[abs(float(v)) if math.isfinite(v) else 0.0 for v in values] for values in series]
    if log:
        least = math.log10(min((v for row in rows for v in row if v > 0), default=1.0)) - 0.5
        rows = [[max(0.0, math.log10(v) - least) if v > 0 else 0.0 for v in row] for row in rows]
    top = max((v for row in rows for v in row), default=0.0) or 1.0
    return [[v / top for v in row] for row in rows]


def find_bounds(curves: Mapping[str, Sequence[Point]]) -> tuple[float, float, float, float]:
    """The least and greatest x, the least and greatest y of finite points; never an empty range."""
    points = [p for curve in curves.values() for p in curve] or [(0.0, 0.0)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    if low == high:
        low, high = low - abs(low) * 0.1 - 0.1, high + abs(high) * 0.1 + 0.1
    return min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, low, high
