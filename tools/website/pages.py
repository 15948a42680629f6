"""Where things lie: the repository, the languages, and one page of the site while it is written."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
LANGS = ("zh", "en")


def choose(lang: str, zh: str, en: str) -> str:
    """One of two texts."""
    return zh if lang == "zh" else en


@dataclass
class Site:
    """One language of the site while its Markdown is made: `source` is what MkDocs reads, `assets` both languages' own.

    `places` are the documents of the repository that have a page, by their path in it.
    """

    lang: str
    source: Path
    assets: Path
    places: dict[str, str] = field(default_factory=dict[str, str])

    def say(self, zh: str, en: str) -> str:
        """One of two texts."""
        return choose(self.lang, zh, en)

    def write(self, name: str, text: str, **front: Any) -> None:
        """A page, with what MkDocs is told about it."""
        target = self.source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        head = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in front.items())
        target.write_text(f"---\n{head}---\n\n{text}\n" if front else text + "\n", encoding="utf-8")

    def link(self, page: str, to: str) -> str:
        """The way from a page to another page of this language, or to its anchor."""
        return os.path.relpath(to, Path(page).parent).replace(os.sep, "/")

    def asset(self, page: str, name: str) -> str:
        """The way from a built page to a file that both languages share; the English pages lie one folder deeper."""
        deep = Path(page).parent if self.lang == "zh" else Path("en") / Path(page).parent
        return os.path.relpath(Path("assets") / name, deep).replace(os.sep, "/")

    def html(self, page: str, to: str) -> str:
        """The same as `link`, for HTML, in which MkDocs does not turn .md into .html."""
        return self.link(page, to).replace(".md", ".html")
