"""Figures: as HTML on the page, and as SVG and PNG files at a link that stays, with a text and a line to cite."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from qkv.plots import figure, html
from qkv.plots.forms import Form

from .pages import Site

SHADE = re.compile(r"(rgba\(\d+,\d+,\d+,)([\d.]+)\)")  # a little paler: both black and white stand out on it
BLANK = re.compile(r' style="(background:rgba\(\d+,\d+,\d+,0\.0\d\))?"(?=></td>)| style=""')  # says nothing
STYLES = (  # of every cell, which course.css says once for all
    "padding:2px 6px;text-align:left;", "white-space:nowrap;", ' style="background:none"',
    "border-collapse:collapse;color:inherit;font-size:12px;width:auto",
)  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A figure that has files: `name` is its link, `alt` what it shows in words, `page` where it stands."""

    name: str
    title: str
    alt: str
    page: str


def render(forms: Sequence[Form], label: str) -> str:
    """Forms as HTML for a page of the site: each box scrolls by itself, by the keyboard too."""
    made = SHADE.sub(lambda m: f"{m[1]}{0.9 * float(m[2]):.2f})", "".join(map(html.render, forms)))
    box = f'<figure tabindex="0" role="group" aria-label="{escape(label, quote=True)}" class="plot" style='
    for style in STYLES:
        made = made.replace(style, "")
    made = BLANK.sub("", made).replace("<table>", '<table class="plot">')
    return made.replace("<figure style=", box).replace("\n", " ")


def save_files(forms: Sequence[Form], folder: Path, name: str) -> None:
    """NAME.svg, whose text stays text, and NAME.png; the same forms give the same bytes.

    Each is drawn once by its own canvas: `savefig` draws a figure with a layout twice.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    folder.mkdir(parents=True, exist_ok=True)
    fonts = ["DejaVu Sans", *figure.find_chinese()]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "qkv", "font.family": fonts}):
        drawn = figure.draw(list(forms))
        FigureCanvasSVG(drawn).print_svg(folder / f"{name}.svg", metadata={"Date": None})
        drawn.set_layout_engine("none")  # as laid out for the first file
        drawn.set_dpi(figure.DPI)
        FigureCanvasAgg(drawn).print_png(folder / f"{name}.png", metadata={"Software": None})


def cite(site: Site, page: str, drawing: Drawing) -> str:
    """The files of a figure and the line to cite it, folded in."""
    name = f"figures/{site.lang}/{drawing.name}"
    svg, png = (site.asset(page, f"{name}.{kind}") for kind in ("svg", "png"))
    head = site.say("引用这幅图", "Use this figure")
    line = write_line(site, drawing)
    said = site.say("替代文本", "Alt text")
    return (
        f'<details class="cite"><summary>{head}</summary><p><a href="{svg}">SVG</a> · <a href="{png}">PNG</a> · '
        f'<a href="#{drawing.name}">#{drawing.name}</a></p><p>{said}{site.say("：", ": ")}{escape(drawing.alt)}</p>'
        f"<p><code>{escape(line)}</code></p></details>"
    )


def write_line(site: Site, drawing: Drawing) -> str:
    """The line to cite a figure by."""
    where = drawing.page.removesuffix(".md")
    return site.say(
        f"“{drawing.title}”，qkv，{where}，图 {drawing.name}（Apache-2.0）。",
        f"“{drawing.title}”, qkv, {where}, figure {drawing.name} (Apache-2.0).",
    )
