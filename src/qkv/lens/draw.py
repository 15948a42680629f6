"""Readouts as pictures: HTML with inline SVG in a notebook, a matplotlib figure for a paper. Readouts list their forms.

Four forms: a grid of shaded cells, bars, lines, a table. The HTML has no script and fetches nothing; its colours are as
bright as the middle between black and white: text in the notebook's own colour is readable on them, light or dark.
"""

import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qkv.errors import QkvError
from qkv.messages import Message

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0077d4", "#b06200"
COLOURS = (BLUE, ORANGE, "#008560", "#a050c8", "#757575", "#c4476b")
MOST = 64  # rows and columns that are drawn: the last ones, which is told
CJK = (
    "Noto Sans CJK SC", "Source Han Sans SC", "Noto Sans SC", "WenQuanYi Micro Hei", "PingFang SC", "Microsoft YaHei",
    "SimHei", "Arial Unicode MS",
)  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """Cells [R, C] shaded from -1 (orange) over 0 to 1 (blue), with a text in each where `cells` has one."""

    title: Words
    rows: Sequence[str]
    columns: Sequence[str]
    shade: Tensor
    cells: Sequence[Sequence[str]] = ()
    note: Words = Message()


@dataclass(frozen=True)
class Bars:
    """One bar a name; what is negative is orange."""

    title: Words
    names: Sequence[str]
    values: Sequence[float]
    note: Words = Message()


@dataclass(frozen=True)
class Lines:
    """Series over the same places."""

    title: Words
    places: Sequence[str]
    series: Mapping[str, Sequence[float]]
    note: Words = Message()


@dataclass(frozen=True)
class Table:
    """Rows of words; the first row is the head."""

    title: Words
    rows: Sequence[Sequence[str]]
    note: Words = Message()


Form = Grid | Bars | Lines | Table


class Drawn:
    """A readout that can be seen: a notebook shows it, `plot` makes a figure of it."""

    def forms(self) -> Sequence[Form]:
        """What is drawn, from the top."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """The pictures as HTML."""
        return "".join(map(html, self.forms()))

    def plot(self) -> "Figure":
        """A matplotlib figure, which saves itself: `t.lens().plot().savefig("lens.svg")`.

        Raises:
            QkvError: matplotlib is not there.
        """
        return plot(self.forms())


# HTML


def html(form: Form) -> str:
    """One form as HTML."""
    form, note = trimmed(form)
    body = INSIDE[type(form)](form)
    below = "".join(f"<div>{escape(both(words))}</div>" for words in (form.note, note) if words)
    return (f'<figure style="margin:0 0 1em;overflow-x:auto"><figcaption style="font-weight:bold">'
            f"{escape(both(form.title))}</figcaption>{body}{below}</figure>")  # fmt: skip


def both(words: Message, between: str = " · ") -> str:
    """A message in both languages, once where they are the same."""
    return between.join(dict.fromkeys((words.to("zh"), str(words))))


def trimmed(form: Form) -> tuple[Any, Words]:
    """A grid's last rows and columns where it has very many, and what to say of it."""
    if not isinstance(form, Grid) or max(len(form.rows), len(form.columns)) <= MOST:
        return form, Message()
    kept = replace(form, rows=form.rows[-MOST:], columns=form.columns[-MOST:], shade=form.shade[-MOST:, -MOST:],
                   cells=[row[-MOST:] for row in form.cells[-MOST:]])  # fmt: skip
    size = f"{len(form.rows)} × {len(form.columns)}"
    return kept, (f"最后 {MOST} 个，全部 {size}", f"the last {MOST} of {size}")


def tabled(rows: Sequence[Sequence[str]], styles: Callable[[int, int], str] = lambda i, j: "") -> str:
    """A table of HTML cells; the first row and column are heads."""
    made: list[str] = []
    for i, row in enumerate(rows):
        tags = ["th" if i == 0 or j == 0 else "td" for j in range(len(row))]
        cells = (f'<{tag} style="padding:2px 6px;text-align:left;{styles(i, j)}">{cell}</{tag}>'
                 for j, (tag, cell) in enumerate(zip(tags, row, strict=True)))  # fmt: skip
        made.append(f'<tr style="background:none">{"".join(cells)}</tr>')
    return f'<table style="border-collapse:collapse;color:inherit;font-size:12px;width:auto">{"".join(made)}</table>'


def grid_html(form: Grid) -> str:
    """A table whose cells are shaded."""
    shade = form.shade.tolist()

    def style(i: int, j: int) -> str:
        if i == 0 or j == 0:
            return ""
        x = max(-1.0, min(1.0, shade[i - 1][j - 1]))
        red, green, blue = (int((BLUE if x > 0 else ORANGE)[k : k + 2], 16) for k in (1, 3, 5))
        return f"background:rgba({red},{green},{blue},{abs(x):.2f})"

    cells = form.cells or [["&nbsp;"] * len(form.columns) for _ in form.rows]
    body = [[escape(clean(name)), *(c if c == "&nbsp;" else escape(clean(c)) for c in row)]
            for name, row in zip(form.rows, cells, strict=True)]  # fmt: skip
    return tabled([["", *(escape(clean(c)) for c in form.columns)], *body], style)


def bars_html(form: Bars) -> str:
    """Names, numbers, and bars in SVG."""
    most = max((abs(v) for v in form.values), default=1.0) or 1.0
    rows = [["", "", ""]]
    for name, v in zip(form.names, form.values, strict=True):
        fill = BLUE if v >= 0 else ORANGE
        bar = f'<svg width="240" height="12"><rect width="{240 * abs(v) / most:.1f}" height="12" fill="{fill}"/></svg>'
        rows.append([escape(clean(name)), number(v), bar])
    return tabled(rows)


def lines_html(form: Lines) -> str:
    """One polyline a series, and under the picture their names; the numbers are in the tooltips."""
    every = [v for values in form.series.values() for v in values]
    low, high = min([0.0, *every]), max([*every, 0.0]) or 1.0
    wide, tall, left = min(900, max(60, 8 * longest(form.places)) * len(form.places)), 180, 50
    made = [f'<text x="{left - 6}" y="{place(v, low, high, tall) + 4:.1f}" text-anchor="end">{number(v)}</text>'
            for v in (low, high)]  # fmt: skip
    step = wide / max(1, len(form.places) - 1)
    each = -(-len(form.places) // 12)
    made += [f'<text x="{left + i * step:.1f}" y="{tall + 30}" text-anchor="middle">{escape(clean(name))}</text>'
             for i, name in enumerate(form.places) if i % each == 0]  # fmt: skip
    names: list[str] = []
    for n, (name, values) in enumerate(form.series.items()):
        points = " ".join(f"{left + i * step:.1f},{place(v, low, high, tall):.1f}" for i, v in enumerate(values))
        told, colour = f"{name}: {', '.join(map(number, values))}", COLOURS[n % len(COLOURS)]
        names.append(f'<tspan fill="{colour}" dx="12">● </tspan>{escape(name)}')
        made.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"><title>{escape(told)}'
                    "</title></polyline>")  # fmt: skip
    made.append(f'<text x="{left - 12}" y="{tall + 50}">{"".join(names)}</text>')
    head = f'<svg width="{left + wide + 60}" height="{tall + 60}" role="img" fill="currentColor" font-size="12">'
    return f"{head}<title>{escape(both(form.title))}</title>{''.join(made)}</svg>"


def place(v: float, low: float, high: float, tall: int) -> float:
    """Where a value stands between the top and the bottom of a picture."""
    return 10 + tall * (high - v) / ((high - low) or 1.0)


INSIDE: dict[type, Callable[[Any], str]] = {
    Grid: grid_html, Bars: bars_html, Lines: lines_html,
    Table: lambda form: tabled([[escape(clean(c)) for c in row] for row in form.rows]),
}  # fmt: skip


def clean(text: str) -> str:
    """A token as it stands in a cell."""
    return text.strip(" ").replace("\n", "⏎") or "␣" * bool(text)


def number(v: float) -> str:
    """A number in few characters."""
    return f"{v:,.0f}" if float(v).is_integer() and abs(v) < 1e9 else f"{v:.3g}"


# matplotlib


def blank(wide: float, tall: float) -> "Figure":
    """An empty figure in inches, made without a display, that a notebook shows.

    Raises:
        QkvError: matplotlib is not there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise QkvError("a figure needs matplotlib: pip install 'qkv[plot]'; in a notebook a readout shows itself"
                       " without it",
                       zh="画图需要 matplotlib：pip install 'qkv[plot]'；"
                       "在笔记本里读数自己就能显示") from None  # fmt: skip

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


def lettered() -> Any:
    """A context whose texts are drawn with a Chinese font where one is installed."""
    from matplotlib import rc_context

    return rc_context({"font.family": ["DejaVu Sans", *chinese()]})


def chinese() -> list[str]:
    """The Chinese font that is installed here, if one is."""
    from matplotlib import font_manager

    there = {f.name for f in font_manager.fontManager.ttflist}
    return [name for name in CJK if name in there][:1]


def plot(forms: Sequence[Form]) -> "Figure":
    """One figure of some forms, from the top; the words of titles stand in both languages."""
    kept = [marked(form) for form in forms]
    sizes = [size(form) for form in kept]
    fig = blank(max(w for w, _ in sizes), sum(h for _, h in sizes))
    with lettered():
        rows = fig.subplots(len(kept), 1, squeeze=False, gridspec_kw={"height_ratios": [h for _, h in sizes]})
        for ax, form in zip(rows[:, 0], kept, strict=True):
            ax.set_title(titled(form), fontsize=10, loc="left")
            AXES[type(form)](ax, form)
    return fig


def marked(form: Form) -> Form:
    """What is drawn of a form, the title saying so where that is not all of it."""
    kept, note = trimmed(form)
    return replace(kept, title=(f"{form.title.zh}（{note.zh}）", f"{form.title} ({note})")) if note else kept


def titled(form: Form) -> str:
    """A title with a line for each language that can be written here."""
    lines = dict.fromkeys((form.title.to("zh"), str(form.title)))
    return "\n".join(plain(w) for w in lines if w.isascii() or w == form.title or chinese())


def size(form: Form) -> tuple[float, float]:
    """The inches that a form wants, its title in two lines."""
    wide, tall = content(form)
    return max(wide, 0.6 + 0.085 * longest(titled(form).split("\n"))), tall + 0.2


def content(form: Form) -> tuple[float, float]:
    """The same without the title."""
    if isinstance(form, Grid):
        cell = 0.1 * max((width(c) for row in form.cells for c in row), default=2) + 0.15 if form.cells else 0.3
        return 1.5 + 0.09 * longest(form.rows) + cell * len(form.columns), 1.0 + 0.3 * len(form.rows)
    if isinstance(form, Bars):
        return 7.0, 0.8 + 0.24 * len(form.names)
    if isinstance(form, Table):
        return max(4.0, 0.085 * sum(longest(c) + 2 for c in zip(*form.rows, strict=False))), 0.6 + 0.22 * len(form.rows)
    return 7.0, 3.2


def longest(names: Sequence[str]) -> int:
    """The columns of the widest name."""
    return max(map(width, names), default=0)


def width(text: str) -> int:
    """The columns of a text, where a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in clean(text))


def grid_axes(ax: Any, form: Grid) -> None:
    """Shades with the names at the sides."""
    from matplotlib.colors import LinearSegmentedColormap

    shade = form.shade.float()
    colours = LinearSegmentedColormap.from_list("qkv", [ORANGE, "white", BLUE])
    ax.imshow(shade.numpy(), cmap=colours, vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    turn = 90 if not form.cells and longest(form.columns) > 3 else 0
    ax.set_xticks(range(len(form.columns)), [plain(c) for c in form.columns], fontsize=8, rotation=turn)
    ax.set_yticks(range(len(form.rows)), [plain(c) for c in form.rows], fontsize=8)
    ax.tick_params(length=0)
    for i, row in enumerate(form.cells):
        for j, cell in enumerate(row):
            ax.text(j, i, plain(cell), ha="center", va="center", fontsize=7)


def bars_axes(ax: Any, form: Bars) -> None:
    """Bars from the top down."""
    ax.barh(range(len(form.names)), form.values, color=[BLUE if v >= 0 else ORANGE for v in form.values])
    ax.set_yticks(range(len(form.names)), [plain(n) for n in form.names], fontsize=8)
    ax.invert_yaxis()


def lines_axes(ax: Any, form: Lines) -> None:
    """One line a series."""
    for n, (name, values) in enumerate(form.series.items()):
        ax.plot(range(len(values)), values, color=COLOURS[n % len(COLOURS)], label=plain(name), marker=".")
    each = -(-len(form.places) // 12)
    ax.set_xticks(range(0, len(form.places), each), [plain(p) for p in form.places[::each]], fontsize=8)
    ax.legend(fontsize=8)


def table_axes(ax: Any, form: Table) -> None:
    """The table alone."""
    ax.axis("off")
    made = ax.table([[plain(c) for c in row] for row in form.rows], loc="upper left", cellLoc="left", edges="")
    made.auto_set_font_size(False)
    made.set_fontsize(8)
    made.auto_set_column_width(range(len(form.rows[0])))


AXES: dict[type, Callable[[Any, Any], None]] = {Grid: grid_axes, Bars: bars_axes, Lines: lines_axes, Table: table_axes}


def plain(text: str) -> str:
    """A cell whose dollars are dollars, not mathematics."""
    return clean(text).replace("$", r"\$")
