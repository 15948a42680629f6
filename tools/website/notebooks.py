"""A notebook for each chapter, made of its program and of its page's first words in both languages."""

import json
import re
from pathlib import Path
from typing import Any

from .course import FOLDER, list_chapters
from .pages import SITE

INSTALL = """\
import importlib.util

if importlib.util.find_spec("qkv") is None:  # Colab, Kaggle: upload the repository, or its wheel, first
    raise SystemExit("pip install PATH_OF_THE_REPOSITORY, then run this notebook again")"""
CELL = re.compile(r"^# %% (.+?) \| (.+)$", re.M)


def write_notebooks(folder: Path, url: str = "") -> None:
    """All of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in list_chapters():
        text = json.dumps(make_notebook(name, url), ensure_ascii=False, indent=1)
        (folder / f"{name}.ipynb").write_text(text + "\n", encoding="utf-8")


def make_notebook(name: str, url: str = "") -> dict[str, Any]:
    """A chapter as a notebook without outputs: its title, then a cell of code under a line in both languages."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    _, *rest = CELL.split(source)
    titles = [read_opening(lang, name) for lang in ("zh", "en")]
    way = f"\n\n{url.rstrip('/')}/course/{name}.html" if url else ""
    cells = [("markdown", "\n\n".join(titles) + way), ("code", INSTALL)]
    for zh, en, code in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        cells += [("markdown", f"**{zh}**\n\n**{en}**"), ("code", code.strip())]
    return {
        "cells": [make_cell(n, kind, text) for n, (kind, text) in enumerate(cells)],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                     "language_info": {"name": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    }


def read_opening(lang: str, name: str) -> str:
    """The heading of a chapter and what stands below it, as far as no number is put in."""
    text = (SITE / lang / "course" / f"{name}.md").read_text(encoding="utf-8")
    heading, _, below = text.partition("\n")
    first = below.strip().split("\n\n")[0]
    return heading if "{{" in first else f"{heading}\n\n{first}"


def make_cell(number: int, kind: str, text: str) -> dict[str, Any]:
    """One cell."""
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {},
                            "source": text.splitlines(keepends=True)}
    return {**cell, "outputs": [], "execution_count": None} if kind == "code" else cell
