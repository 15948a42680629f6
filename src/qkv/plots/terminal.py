"""Forms in letters: bars of blocks, shaded cells, curves of braille dots, aligned columns. A pipe drops the colours."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from qkv.plots.forms import Bars, Form, Grid, Lines, Point, Table, find_bounds, list_notes, list_words, scale
from qkv.plots.text import HEIGHTS, SHADES, find_widest, format_number, pad

COLUMNS = 40  # of the longest bar
COLOURS = ("blue", "red", "green", "magenta", "yellow", "cyan", "white", "bright_blue")
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row and column


def render(form: Form, lang: str = "") -> list[str]:
    """The lines of a picture: title, marks, note, which is in `lang` alone if it is given."""
    title = [click.style(" · ".join(list_words(form.title)), bold=True)] if list_words(form.title) else []
    note = [f"  {w}" if isinstance(form, Table) else f"({w})" for words in list_notes(form)
            for w in list_words(words, lang)]
    return [*title, *MARKS[type(form)](form), *note]


def draw_grid(form: Grid) -> list[str]:
    """A row a line, each cell two shaded letters."""
    size = find_widest(form.rows)
    shades = ["".join(SHADES[min(4, math.ceil(abs(v) * 4))] * 2 for v in row) for row in form.shades]
    return [f"{pad(name, size)} │{cells}│" for name, cells in zip(form.rows, shades, strict=True)]


def draw_bars(form: Bars) -> list[str]:
    """A bar a line with its number; several series below each other."""
    size, lines = find_widest(form.names), list[str]()
    for (name, values), shares in zip(form.series.items(), scale(form.series.values(), log=form.log), strict=True):
        lines += [f"{name}:"] * (len(form.series) > 1)
        lines += [
            f"{pad(label, size)} {'█' * round(share * COLUMNS):<{COLUMNS}} {format_number(v, 4)}"
            for label, share, v in zip(form.names, shares, values, strict=True)
        ]
    return lines


def draw_lines(form: Lines) -> list[str]:
    """Over named places each series is a row of block letters; over numbers all of them are one chart."""
    return draw_rows(form) if form.places else draw_chart(form)


def draw_rows(form: Lines) -> list[str]:
    """A series a line, two letters a place, with its first and last number."""
    size, lines = find_widest(form.series), list[str]()
    for (name, row), shares in zip(form.series.items(), scale(form.series.values(), log=form.log), strict=True):
        there = [v for _, v in form.curves[name]] or [math.nan]
        marks = "".join((HEIGHTS[min(7, int(share * 8))] if math.isfinite(v) else " ") * 2
                        for share, v in zip(shares, row, strict=True))
        lines.append(f"{pad(name, size)} {marks}  {format_number(there[0], 4)} → {format_number(there[-1], 4)}")
    label = " · ".join(list_words(form.x_label))
    return [*lines, " " * (size + 1) + f"{label} {form.places[0]} … {form.places[-1]}".strip()]


def draw_chart(form: Lines, *, height: int = 16) -> list[str]:
    """The curves in braille, as wide as the terminal, with numbers at the edges and the names below."""
    curves = form.curves
    left, right, low, high = find_bounds(curves)
    wide = max(20, min(100, shutil.get_terminal_size((80, 24)).columns - 12))
    edges = {0: format_number(high, 4), height - 1: format_number(low, 4)}
    lines = [f"{'':>10} {' · '.join(list_words(form.y_label))}"]
    for i, row in enumerate(plot_dots(curves, wide=wide, height=height)):
        lines.append(f"{edges.get(i, ''):>9} │{''.join(paint_series(*cell) for cell in row)}".rstrip())
    least, most = format_number(left, 4), " ".join([format_number(right, 4), *list_words(form.x_label)])
    lines += [f"{'':>9} └{'─' * wide}", f"{'':>11}{least}{most:>{wide - len(least)}}"]
    return [*lines, *(f"{'':>11}{paint_series(f'{name_curve(curves, who)}━━', who)} {name}"
                     for who, name in enumerate(curves))]


def name_curve(curves: Mapping[str, Sequence[Point]], who: int) -> str:
    """The letter that stands at the end of one of several curves, so that they are told apart without colours."""
    return chr(ord("A") + who % 26) if len(curves) > 1 else ""


def plot_dots(curves: Mapping[str, Sequence[Point]], *, wide: int, height: int) -> list[list[tuple[str, int]]]:
    """Curves as `height` rows of (letter, number of the curve or -1), with braille dots as points and lines."""
    left, right, low, high = find_bounds(curves)
    cells, ends = [[(0, -1)] * wide for _ in range(height)], dict[tuple[int, int], str]()
    for who, curve in enumerate(curves.values()):
        places = [
            (round((x - left) / (right - left) * (2 * wide - 1)), round((high - y) / (high - low) * (4 * height - 1)))
            for x, y in curve
        ]
        for (x0, y0), (x1, y1) in zip(places, [*places[1:], places[-1]] if places else [], strict=True):
            reach = max(abs(x1 - x0), abs(y1 - y0), 1)
            for i in range(reach + 1):
                x, y = round(x0 + (x1 - x0) * i / reach), round(y0 + (y1 - y0) * i / reach)
                cells[y // 4][x // 2] = (cells[y // 4][x // 2][0] | DOTS[y % 4][x % 2], who)
        if places:
            ends[places[-1][1] // 4, places[-1][0] // 2] = name_curve(curves, who)
    return [[(ends.get((y, x)) or (chr(0x2800 + bits) if bits else " "), who) for x, (bits, who) in enumerate(row)]
            for y, row in enumerate(cells)]


def draw_table(form: Table) -> list[str]:
    """Aligned columns; the weight of a cell gives its colour."""
    rows = [[(cell, 0.0) if isinstance(cell, str) else cell for cell in row] for row in form.rows]
    widths = [find_widest(row[i][0] for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0))]
    lines: list[str] = []
    for row in rows:
        cells = [pad(cell, size) for (cell, _), size in zip(row, widths, strict=False)]
        cells[-1] = cells[-1].rstrip()
        lines.append("  " + "  ".join(paint_cell(c, w) for c, (_, w) in zip(cells, row, strict=True)))
    return lines


def paint_cell(text: str, weight: float) -> str:
    """Blue by weight, dim where it is negative."""
    if weight < 0:
        return click.style(text, dim=True)
    if weight >= 0.5:
        return click.style(text, fg="bright_blue", bold=True)
    return click.style(text, fg="blue") if weight >= 0.1 else text


def paint_series(text: str, who: int) -> str:
    """A text in the colour of a series; -1 is none."""
    return click.style(text, fg=COLOURS[who % len(COLOURS)]) if who >= 0 else text


MARKS: dict[type, Callable[[Any], list[str]]] = {Grid: draw_grid, Bars: draw_bars, Lines: draw_lines, Table: draw_table}
