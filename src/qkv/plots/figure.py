"""Forms as a matplotlib figure, made without a display, with a Chinese font where one is installed."""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import QkvError
from qkv.files import replace_file
from qkv.messages import Message
from qkv.plots.forms import BLUE, COLOURS, ORANGE, Bars, Form, Grid, Lines, Table, list_notes, list_words, trim
from qkv.plots.text import clean, find_widest, format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
CJK = (
    "Noto Sans CJK SC", "Source Han Sans SC", "Noto Sans SC", "WenQuanYi Micro Hei", "PingFang SC", "Microsoft YaHei",
    "SimHei", "Arial Unicode MS", "Noto Serif CJK SC",
)


def open_figure(wide: float, tall: float) -> "Figure":
    """An empty figure in inches that a notebook shows.

    Raises:
        QkvError: matplotlib is not there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise QkvError("a figure needs matplotlib: pip install 'qkv[plot]'; HTML, which a notebook shows and --html "
                       "writes, needs nothing") from None

    class Paper(Figure):
        """A figure that shows itself where no pyplot was imported; letters that no font has are boxes, unsaid."""

        def draw(self, renderer: Any) -> None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
                super().draw(renderer)

        def _repr_png_(self) -> bytes:
            from io import BytesIO

            self.savefig(file := BytesIO(), format="png")
            return file.getvalue()

    return Paper(figsize=(wide, tall), layout="constrained")


def find_chinese() -> list[str]:
    """The Chinese font that is installed here, if one is."""
    from matplotlib import font_manager

    there = {f.name for f in font_manager.fontManager.ttflist}
    if there.isdisjoint(CJK):
        there |= read_new_fonts()
    return [name for name in CJK if name in there][:1]


@cache
def read_new_fonts() -> set[str]:
    """The names of fonts installed since matplotlib listed them, which it does once and never again by itself."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    before = {f.fname for f in manager.ttflist}
    for path in set(font_manager.findSystemFonts()) - before:
        with suppress(RuntimeError, OSError):  # no font that it can read
            manager.addfont(path)
    return {f.name for f in manager.ttflist if f.fname not in before}


def use_fonts() -> Any:
    """A context whose texts are drawn with a Chinese font where one is installed."""
    from matplotlib import rc_context

    return rc_context({"font.family": ["DejaVu Sans", *find_chinese()]})


def draw(forms: Sequence[Form | Sequence[Form]], title: str = "") -> "Figure":
    """One figure of some forms, from the top; those of an inner list stand side by side."""
    rows = [[row] if isinstance(row, Form) else list(row) for row in forms]
    sizes = [[measure_form(form) for form in row] for row in rows]
    heights = [max(tall for _, tall in row) for row in sizes]
    fig = open_figure(max(sum(wide for wide, _ in row) for row in sizes), sum(heights) + 0.3 * bool(title))
    count = math.lcm(*map(len, rows))
    starts = [0, *accumulate(map(len, rows))]
    mosaic: list[Any] = [
        [start + j for j in range(len(row)) for _ in range(count // len(row))]
        for start, row in zip(starts, rows, strict=False)
    ]
    with use_fonts():
        axes = fig.subplot_mosaic(mosaic, height_ratios=heights)
        for name, form in enumerate(form for row in rows for form in row):
            axes[name].set_title(escape_words(form.title), fontsize=10, loc="left")
            AXES[type(form)](axes[name], form)
            label_axes(axes[name], form)
        if title:
            fig.suptitle(escape_words(title), fontsize=11)
    return fig


def save_figure(fig: "Figure", path: Path) -> None:
    """A figure as a file, in a folder that is made where it is not there; the same figure gives the same bytes."""
    metadata = {"Software": None} if path.suffix.lower() == ".png" else None
    with replace_file(path) as file:
        fig.savefig(file, dpi=DPI, metadata=metadata)


def check_name(path: Path) -> None:
    """A QkvError where a file's name is not that of a picture."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise QkvError("{path}: expected a name that ends in .png, .svg or .pdf", path=path)


def mark_cut(form: Form) -> Form:
    """What is drawn of a form, the title saying so where that is not all of it."""
    kept, cut = trim(form)
    if not cut:
        return form
    return replace(kept, title=Message("{title} ({cut})", title=form.title, cut=cut))


def escape_words(words: str) -> str:
    """Words with a line for each language that can be written here."""
    lines = list_words(words)
    return "\n".join(escape(w) for w in lines if w.isascii() or w == lines[-1] or find_chinese())


def escape(text: str) -> str:
    """A cell whose dollars are dollars, not mathematics."""
    return clean(text).replace("$", r"\$")


def measure_form(form: Form) -> tuple[float, float]:
    """The inches that a form wants, with its title and labels."""
    wide, tall = measure_marks(form)
    title = escape_words(form.title).split("\n")
    below = sum(len(list_words(note)) for note in list_notes(form)) + bool(form.x_label)
    return max(wide, 0.6 + 0.085 * find_widest(title)), tall + 0.2 + 0.18 * below


def measure_marks(form: Form) -> tuple[float, float]:
    """The same without the title."""
    if isinstance(form, Grid):
        cell = 0.15 + 0.1 * max([2, *(find_widest(map(clean, row)) for row in form.cells)])
        each = cell if form.cells else 0.3 if any(form.columns) else 0.07
        sides = 1.5 if any(form.columns) else 0.4
        return sides + 0.09 * find_widest(map(clean, form.rows)) + each * len(form.columns), 1 + 0.3 * len(form.rows)
    if isinstance(form, Bars):
        return 7.0, 0.8 + 0.24 * len(form.names) * max(1.0, 0.7 * len(form.series))
    if isinstance(form, Table):
        columns = (find_widest(column) for column in zip(*form.rows, strict=False))
        return max(4.0, 0.085 * sum(size + 2 for size in columns)), 0.6 + 0.22 * len(form.rows)
    return 6.4, 3.4


def label_axes(ax: Any, form: Form) -> None:
    """What the two sides are, and the note below."""
    ax.set_xlabel("\n".join(escape_words(w) for w in (form.x_label, *list_notes(form)) if w), fontsize=9)
    ax.set_ylabel(escape_words(form.y_label), fontsize=9)
    if form.published:
        ax.set_facecolor("#f3f3f3")


def draw_grid(ax: Any, form: Grid) -> None:
    """Shades with the names at the sides."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("qkv", [ORANGE, "white", BLUE])
    ax.imshow(form.shades, cmap=colours, vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    turn = 90 if not form.cells and find_widest(form.columns) > 3 else 0
    ax.set_xticks(range(len(form.columns)), [escape(c) for c in form.columns], fontsize=8, rotation=turn)
    ax.set_yticks(range(len(form.rows)), [escape(r) for r in form.rows], fontsize=8)
    ax.tick_params(length=0)
    for i, row in enumerate(form.cells):
        for j, cell in enumerate(row):
            ax.text(j, i, escape(cell), ha="center", va="center", fontsize=7)


def draw_bars(ax: Any, form: Bars) -> None:
    """Bars with their numbers from the top down, those of several series beside each other."""
    series, every = form.series, range(len(form.names))
    share = 0.8 / max(1, len(series))
    for n, (name, values) in enumerate(series.items()):
        single = [BLUE if v >= 0 else ORANGE for v in values]
        colour = single if len(series) == 1 else COLOURS[n % len(COLOURS)]
        bars = ax.barh([i + n * share for i in every], values, share, label=escape(name), color=colour)
        ax.bar_label(bars, [format_number(v, 4) for v in values], fontsize=7, padding=2)
    ax.set_yticks([i + 0.4 - share / 2 for i in every], [escape(n) for n in form.names], fontsize=8)
    ax.invert_yaxis()
    ax.margins(x=0.15)
    if form.log:
        ax.set_xscale("symlog", linthresh=min((v for row in series.values() for v in row if v > 0), default=1.0))
    if len(series) > 1:
        ax.legend(fontsize=8)


def draw_lines(ax: Any, form: Lines) -> None:
    """One line a series, over names or numbers."""
    curves = form.curves
    for n, (name, curve) in enumerate(curves.items()):
        marker = "." if len(curve) <= 48 else ""
        xs, ys = [x for x, _ in curve], [y for _, y in curve]
        ax.plot(xs, ys, color=COLOURS[n % len(COLOURS)], label=escape(name), marker=marker)
    if form.places:
        every = range(0, len(form.places), -(-len(form.places) // 12))
        ax.set_xticks(every, [escape(form.places[i]) for i in every], fontsize=8)
    if form.log:
        ax.set_yscale("symlog" if any(y <= 0 for curve in curves.values() for _, y in curve) else "log")
    ax.grid(alpha=0.3)
    if any(curves):
        ax.legend(fontsize=8)


def draw_table(ax: Any, form: Table) -> None:
    """The table alone."""
    ax.axis("off")
    rows = [[escape(c if isinstance(c, str) else c[0]) for c in row] for row in form.rows]
    made = ax.table(rows, loc="upper left", cellLoc="left", edges="")
    made.auto_set_font_size(False)
    made.set_fontsize(8)
    made.auto_set_column_width(range(len(form.rows[0])))


AXES: dict[type, Callable[[Any, Any], None]] = {Grid: draw_grid, Bars: draw_bars, Lines: draw_lines, Table: draw_table}
