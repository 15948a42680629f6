"""Curves of runs side by side: with letters for a terminal, as SVG for a page without a network, as PNG."""

import html
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from qkv.errors import QkvError

Points = Sequence[tuple[float, float]]
Curves = Mapping[str, Points]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#332288")  # Okabe and Ito 2008
TERMINAL = ("blue", "red", "green", "magenta", "yellow", "cyan", "white", "bright_blue")
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row and column


def bounds(curves: Curves) -> tuple[float, float, float, float]:
    """The least and greatest x and y of all points; never an empty range."""
    points = [p for curve in curves.values() for p in curve if math.isfinite(p[0]) and math.isfinite(p[1])]
    if not points:
        raise QkvError("nothing to draw: no run has a finite number of this metric",
                       zh="没有可画的：没有一次训练有这个指标的有限值")  # fmt: skip
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    if low == high:
        low, high = low - abs(low) * 0.1 - 0.1, high + abs(high) * 0.1 + 0.1
    return min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, low, high


def drawn(curves: Curves, *, width: int = 72, height: int = 16) -> list[list[tuple[str, int]]]:
    """Curves as `height` rows of (letter, number of the curve or -1), with braille dots as points and lines."""
    left, right, low, high = bounds(curves)
    cells = [[(0, -1)] * width for _ in range(height)]

    def dot(x: int, y: int, who: int) -> None:
        bits, _ = cells[y // 4][x // 2]
        cells[y // 4][x // 2] = (bits | DOTS[y % 4][x % 2], who)

    for who, curve in enumerate(curves.values()):
        places = [
            (round((x - left) / (right - left) * (2 * width - 1)), round((high - y) / (high - low) * (4 * height - 1)))
            for x, y in curve
            if math.isfinite(x) and math.isfinite(y)
        ]
        for (x0, y0), (x1, y1) in zip(places, [*places[1:], places[-1]] if places else [], strict=True):
            reach = max(abs(x1 - x0), abs(y1 - y0), 1)
            for i in range(reach + 1):
                dot(round(x0 + (x1 - x0) * i / reach), round(y0 + (y1 - y0) * i / reach), who)
    return [[(chr(0x2800 + bits) if bits else " ", who) for bits, who in row] for row in cells]


def svg(curves: Curves, *, x: str, y: str, width: int = 860, height: int = 420) -> str:
    """Curves as an SVG element of a page: axes with numbers, a line a run, and its name on hover."""
    left, right, low, high = bounds(curves)
    edge, foot = 70, 46

    def place(point: tuple[float, float]) -> str:
        across = edge + (point[0] - left) / (right - left) * (width - edge - 16)
        return f"{across:.1f},{16 + (high - point[1]) / (high - low) * (height - foot - 16):.1f}"

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(y)}">']
    for i in range(5):
        at_x, at_y = left + (right - left) * i / 4, low + (high - low) * i / 4
        px, py = place((at_x, low)).split(",")[0], place((left, at_y)).split(",")[1]
        parts += [
            f'<line class="grid" x1="{edge}" x2="{width - 16}" y1="{py}" y2="{py}"/>',
            f'<text x="{edge - 8}" y="{py}" text-anchor="end" dominant-baseline="middle">{at_y:.4g}</text>',
            f'<text x="{px}" y="{height - foot + 20}" text-anchor="middle">{at_x:.4g}</text>',
        ]
    parts += [f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">{html.escape(x)}</text>',
              f'<text x="{edge}" y="10">{html.escape(y)}</text>']  # fmt: skip
    for i, (name, curve) in enumerate(curves.items()):
        points = " ".join(place(p) for p in curve if math.isfinite(p[0]) and math.isfinite(p[1]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2">'
                     f"<title>{html.escape(name)}</title></polyline>")  # fmt: skip
    return "\n".join([*parts, "</svg>"])


def page(curves: Curves, table: Sequence[Sequence[str]], *, x: str, y: str, title: str, lang: str = "en") -> str:
    """One file that shows runs: the plot and the table (its first row is the head), nothing loaded from elsewhere."""
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(curves)}
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table[0])
    rows = "".join(
        f'<tr><td style="border-left:6px solid {colours.get(row[0], "transparent")}">{html.escape(row[0])}</td>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in table[1:]
    )
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}svg{width:100%}"
        "text{font-size:12px;fill:currentColor}.grid{stroke:currentColor;opacity:.15}table{border-collapse:collapse;"
        "width:100%}th,td{text-align:right;padding:.2rem .6rem}th:first-child,td:first-child{text-align:left}"
        "tr+tr{border-top:1px solid #8884}@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}"
    )
    return (
        f'<!doctype html>\n<html lang="{lang}"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>\n<body>'
        f"<h1>{html.escape(title)}</h1>\n{svg(curves, x=x, y=y)}\n<table><thead><tr>{head}</tr></thead><tbody>\n{rows}"
        "</tbody></table></body></html>\n"
    )


def png(curves: Curves, path: Path, *, x: str, y: str) -> None:
    """Curves as a picture.

    Raises:
        QkvError: matplotlib is not there, or writes no such picture.
    """
    bounds(curves)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise QkvError(f"{path}: expected a name that ends in .png, .svg or .pdf",
                       zh=f"{path}：名字应以 .png、.svg 或 .pdf 结尾")  # fmt: skip
    try:
        plots = import_module("matplotlib.figure")
    except ImportError:
        raise QkvError("--png needs matplotlib: pip install 'qkv[plot]'; --html needs nothing",
                       zh="--png 需要 matplotlib：pip install 'qkv[plot]'；--html 什么都不需要") from None  # fmt: skip
    figure = plots.Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (name, curve) in enumerate(curves.items()):
        axes.plot([p[0] for p in curve], [p[1] for p in curve], label=name, color=COLOURS[i % len(COLOURS)])
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
