"""The page for teachers: every figure with its link, its files, its words and its line to cite; how to embed a page."""

from html import escape

from .course import render_template
from .figures import Drawing, write_line
from .pages import SITE, Site
from .widgets import Widgets


def write_page(site: Site, drawings: list[Drawing]) -> None:
    """What is written by hand, then the list of figures."""
    page = "teachers.md"
    head = render_template(SITE / site.lang / page, Widgets(site, page, files=False).names())
    rows = ["", f"## {site.say('全部插图', 'All figures')}", ""]
    for one in drawings:
        svg, png = (site.asset(page, f"figures/{site.lang}/{one.name}.{kind}") for kind in ("svg", "png"))
        rows += [(
            f'<details class="cite" id="f-{one.name}"><summary>{escape(one.title)}</summary>'
            f'<p><img src="{svg}" alt="{escape(one.alt, quote=True)}" loading="lazy"></p>'
            f'<p><a href="{svg}">SVG</a> · <a href="{png}">PNG</a> · '
            f'<a href="{site.html(page, one.page)}#{one.name}">{site.say("在页面上", "on its page")}</a></p>'
            f"<p>{escape(write_line(site, one))}</p></details>"
        ), ""]
    site.write(page, head + "\n".join(rows))
