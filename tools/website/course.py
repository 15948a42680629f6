"""The chapters: site/course/NN_NAME.py computes, site/LANG/course/NN_NAME.md is a template that says what came out."""

import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from qkv import labs

from .pages import SITE, Site
from .widgets import Widgets

FOLDER = SITE / "course"


def list_chapters() -> list[str]:
    """The chapters in their order, by the name of their file."""
    return sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))


def compute_chapter(name: str) -> dict[str, Any]:
    """What the program of a chapter leaves behind: every number of its page."""
    found = runpy.run_path(str(FOLDER / f"{name}.py"))
    return {key: value for key, value in found.items() if not key.startswith("_")}


def render_template(path: Path, scope: dict[str, Any]) -> str:
    """A page written by hand, its numbers put in; a name that nothing computed is an error."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)
    return environment.from_string(path.read_text(encoding="utf-8")).render(scope)


def write_chapter(site: Site, name: str, scope: dict[str, Any], *, files: bool = True) -> Widgets:
    """The page of a chapter in one language, and below it its program and its notebook."""
    page = f"course/{name}.md"
    widgets = Widgets(site, page, files=files)
    text = render_template(SITE / site.lang / "course" / f"{name}.md", {**scope, **widgets.names()})
    site.write(page, text + "\n" + write_foot(site, page, name))
    return widgets


def write_foot(site: Site, page: str, name: str) -> str:
    """The program whose numbers the page shows, folded in, and the notebook with it."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    code = re.sub(r"\n*# %%[^\n]*\n", "\n\n", source.partition('"""\n')[2]).strip()
    head = site.say("这一页的数字由这段 Python 算出", "The Python that computed this page's numbers")
    note = site.asset(page, f"notebooks/{name}.ipynb")
    save = site.say("存成笔记本", "as a notebook")
    body = "\n".join(f"    {line}".rstrip() for line in ["```python", *code.splitlines(), "```"])
    return f'??? example "{head}"\n\n{body}\n\n<p class="foot"><a href="{note}" download>{save} (.ipynb)</a></p>\n'


def find_title(site: Site, name: str) -> str:
    """The heading of a chapter."""
    text = (SITE / site.lang / "course" / f"{name}.md").read_text(encoding="utf-8")
    return re.search(r"^# (.+)$", text, re.M)[1]  # type: ignore[index]


@cache
def name_labs(lang: str, name: str) -> list[str]:
    """The labs that a chapter rests on, as its template names them."""
    every = labs.list_names()
    text = (SITE / lang / "course" / f"{name}.md").read_text(encoding="utf-8")
    return [word for word in dict.fromkeys(re.findall(r'"([a-z-]+)"', text)) if word in every]


def mention_labs(site: Site, mentions: dict[str, list[tuple[str, str]]]) -> None:
    """Add to each lab the chapters that rest on it."""
    for name in list_chapters():
        for lab in name_labs(site.lang, name):
            mentions.setdefault(lab, []).append((find_title(site, name), f"course/{name}.md"))
