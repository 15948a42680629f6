"""Forms as HTML with inline SVG: no script, nothing fetched, readable light and dark.

The colours are as bright as the middle between black and white: text in the page's own colour is readable on them.
"""

import math
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from qkv.plots import forms
from qkv.plots.forms import BLUE, COLOURS, ORANGE, Bars, Form, Grid, Lines, Table, find_bounds, list_words, scale, trim
from qkv.plots.text import clean, find_widest, format_number

EDGE, FOOT, TALL = 60, 46, 220  # beside and below the lines of a chart, and their height
DOTTED = 48  # points at most that a curve shows one by one, each with its numbers on hover
STYLE = """body{font:16px/1.6 system-ui,sans-serif;max-width:56em;margin:2em auto;padding:0 1em}
dt{font-weight:600;margin-top:.6em}dd{margin:0}table{border-collapse:collapse;margin:1em 0}
td,th{border:1px solid #8884;padding:.25em .6em;text-align:left}figure td,figure th{border:0}
figure table{font-size:14px!important}
.verdict{border-left:4px solid #2563eb;padding:.4em 1em;background:#2563eb22}
svg{max-width:100%;height:auto}pre{overflow:auto}@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}"""


def render(form: Form) -> str:
    """One form as an HTML figure."""
    form, cut = trim(form)
    title, notes = join_languages(form.title), (join_languages(words) for words in (*forms.list_notes(form), cut))
    head = f'<figcaption style="font-weight:bold">{title}</figcaption>' if title else ""
    below = "".join(f"<div>{line}</div>" for line in notes if line)
    grey = "background:#8882;" * form.published
    return f'<figure style="margin:0 0 1em;overflow-x:auto;{grey}">{head}{MARKS[type(form)](form)}{below}</figure>'


def page(title: str, body: str, lang: str) -> str:
    """A file that opens without a network, from its title and the HTML in it."""
    return (
        f'<!doctype html>\n<html lang="{lang}"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>{body}</body></html>\n'
    )


def join_languages(words: str) -> str:
    """A title or a note in both languages as HTML."""
    return escape(" · ".join(list_words(words)))


def mark(text: str) -> str:
    """A token as HTML."""
    return escape(clean(text))


def make_table(rows: Sequence[Sequence[str]], style: Callable[[int, int], str] = lambda i, j: "") -> str:
    """A table of HTML cells; the first row and column are heads."""

    def make_cell(i: int, j: int, cell: str) -> str:
        tag, wrap = ("td", "") if i and j else ("th", "white-space:nowrap;")
        return f'<{tag} style="padding:2px 6px;text-align:left;{wrap}{style(i, j)}">{cell}</{tag}>'

    lines = ("".join(make_cell(i, j, cell) for j, cell in enumerate(row)) for i, row in enumerate(rows))
    made = (f'<tr style="background:none">{line}</tr>' for line in lines)
    return f'<table style="border-collapse:collapse;color:inherit;font-size:12px;width:auto">{"".join(made)}</table>'


def draw_grid(form: Grid) -> str:
    """A table whose cells are shaded, the labels of both sides in its corner."""
    shades = form.shades

    def shade(i: int, j: int) -> str:
        if i == 0 or j == 0:
            return ""
        x = max(-1.0, min(1.0, shades[i - 1][j - 1]))
        red, green, blue = (int((BLUE if x > 0 else ORANGE)[k : k + 2], 16) for k in (1, 3, 5))
        return f"background:rgba({red},{green},{blue},{abs(x):.2f})"

    cells = form.cells or [[""] * len(form.columns) for _ in form.rows]
    body = [[mark(name), *(mark(c) if form.cells else "&nbsp;" for c in row)]
            for name, row in zip(form.rows, cells, strict=True)]
    corner = " \\ ".join(w for w in (join_languages(form.y_label), join_languages(form.x_label)) if w)
    return make_table([[corner, *map(mark, form.columns)], *body], shade)


def draw_bars(form: Bars) -> str:
    """Names, numbers, and bars in SVG; of several series the bars of a name stand below each other."""
    several = len(form.series) > 1
    shares = scale(form.series.values(), log=form.log)
    rows = [[join_languages(form.y_label), "", join_languages(form.x_label)]]
    for i, name in enumerate(form.names):
        for n, (values, parts) in enumerate(zip(form.series.values(), shares, strict=True)):
            fill = COLOURS[n % len(COLOURS)] if several or values[i] >= 0 else ORANGE
            bar = f'<svg width="240" height="12"><rect width="{240 * parts[i]:.1f}" height="12" fill="{fill}"/></svg>'
            rows.append(["" if n else mark(name), format_number(values[i], 4), bar])
    return make_table(rows) + make_legend(form.series if several else ())


def make_legend(names: Any) -> str:
    """The names of some series beside their colours."""
    swatch = '<svg width="12" height="10"><rect width="10" height="10" fill="{}"/></svg>'
    parts = (f"{swatch.format(COLOURS[n % len(COLOURS)])} {mark(name)}" for n, name in enumerate(names))
    return f'<div style="font-size:12px">{" &nbsp; ".join(parts)}</div>' if names else ""


def draw_lines(form: Lines) -> str:
    """A polyline a series over a frame with numbers; the numbers of few points are in their tooltips."""
    wide = max(420, min(720, 9 * find_widest(form.places) * len(form.places))) if form.places else 720
    curves = form.curves
    left, right, low, high = find_bounds(curves)
    if form.log:
        low = min((y for curve in curves.values() for _, y in curve if y > 0), default=1.0)
        low, high = math.log10(low) - 0.1, math.log10(max(high, low * 1.1)) + 0.1

    def across(x: float) -> float:
        return EDGE + (x - left) / (right - left) * wide

    def down(y: float) -> float:
        at = (math.log10(y) if y > 0 else low) if form.log else y
        return 16 + (high - at) / (high - low) * TALL

    made = [frame_rows(form, low, high, wide, down), frame_columns(form, left, right, across)]
    for n, (name, curve) in enumerate(curves.items()):
        points, colour = [(f"{across(x):.1f}", f"{down(y):.1f}") for x, y in curve], COLOURS[n % len(COLOURS)]
        made.append(f'<polyline points="{" ".join(map(",".join, points))}" fill="none" stroke="{colour}" '
                    f'stroke-width="2"><title>{mark(name)}</title></polyline>')
        for (x, y), (at, to) in zip(curve, points, strict=True) if len(points) <= DOTTED else ():
            where = mark(form.places[int(x)]) if form.places else format_number(x, 4)
            tip = f"{mark(name)}, {where}: {format_number(y, 4)}"
            made.append(f'<circle cx="{at}" cy="{to}" r="3" fill="{colour}"><title>{tip}</title></circle>')
    edge, foot = max(30, 4 * find_widest(form.places)), FOOT if form.x_label else FOOT - 20
    size = f'viewBox="0 0 {EDGE + wide + edge} {TALL + 16 + foot}" width="{EDGE + wide + edge}"'
    head = f'<svg {size} role="img" fill="currentColor" font-size="12">'
    legend = make_legend([name for name in curves if name])
    return f"{head}<title>{join_languages(form.title)}</title>{''.join(made)}</svg>{legend}"


def frame_rows(form: Lines, low: float, high: float, wide: int, down: Callable[[float], float]) -> str:
    """The horizontal lines of a chart with their numbers, and what these are."""
    made = [f'<text x="{EDGE}" y="10">{join_languages(form.y_label)}</text>'] * bool(form.y_label)
    values = find_powers(low, high) if form.log else find_ticks(low, high)
    for v in values:
        y = down(v)
        made.append(
            f'<line x1="{EDGE}" x2="{EDGE + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".2"/>'
            f'<text x="{EDGE - 8}" y="{y + 4:.1f}" text-anchor="end">{format_number(v, 4)}</text>'
        )
    return "".join(made)


def frame_columns(form: Lines, left: float, right: float, across: Callable[[float], float]) -> str:
    """The names or numbers below a chart, and what these are."""
    each = -(-len(form.places) // 12)
    ticks = ([(float(i), mark(form.places[i])) for i in range(0, len(form.places), each)] if form.places
             else [(v, format_number(v, 4)) for v in find_ticks(left, right)])
    made = [f'<text x="{across(v):.1f}" y="{TALL + 34}" text-anchor="middle">{name}</text>' for v, name in ticks]
    middle = across((left + right) / 2)
    made += [f'<text x="{middle:.1f}" y="{TALL + 54}" text-anchor="middle">{join_languages(form.x_label)}</text>']
    return "".join(made)


def find_ticks(low: float, high: float) -> list[float]:
    """Up to eight round numbers between two numbers."""
    rough = max((high - low) / 7, 1e-300)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(m for m in (1, 2, 5, 10) if unit * m >= rough * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def find_powers(low: float, high: float) -> list[float]:
    """Round numbers between two powers of ten, given by their exponents: of a short range 2 and 5 times a power too."""
    each = max(1, math.ceil((high - low) / 7))
    parts = (1, 2, 5) if high - low < 3 else (1,)
    values = [m * 10.0**p for p in range(math.floor(low), math.ceil(high) + 1, each) for m in parts]
    return [v for v in values if low <= math.log10(v) <= high]


def draw_table(form: Table) -> str:
    """The table, its columns of numbers to the right."""
    rows = [[mark(c if isinstance(c, str) else c[0]) for c in row] for row in form.rows]
    right = {j for j, column in enumerate(zip(*rows[1:], strict=False))
             if all(re.fullmatch(r"[-–+\d,.… e]*%?", c) for c in column)}
    return make_table(rows, lambda i, j: "text-align:right" if j in right else "")


MARKS: dict[type, Callable[[Any], str]] = {Grid: draw_grid, Bars: draw_bars, Lines: draw_lines, Table: draw_table}
