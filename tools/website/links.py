"""Whether every link, picture and anchor of the built site is there, and nothing is fetched from elsewhere."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

QUESTION = re.compile(r"q-\d+")
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Reader(HTMLParser):
    """The anchors of a page, the places it leads to, and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.ways, self.fetched = set[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of what a tag says."""
        said = {key: value or "" for key, value in attrs}
        self.anchors |= {said[key] for key in ("id", "name") if said.get(key)}
        if tag == "a" and said.get("href"):
            self.ways.append(said["href"])
        elif tag in FETCHED and said.get(FETCHED[tag]) and said.get("rel") not in ("canonical", "alternate"):
            self.fetched.append(said[FETCHED[tag]])


def check_site(folder: Path) -> list[str]:
    """One line for each thing that is broken."""
    recorded = folder / "assets" / "inside"
    pages = {path: Reader(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))
             if not path.is_relative_to(recorded)}
    return [line for path, page in pages.items() if path.name != "404.html"
            for line in check_page(folder, path, page, pages)]


def list_addresses(folder: Path) -> set[str]:
    """The addresses that are meant to stay: each page, question and figure, without the language."""
    figures = {path.stem for path in (folder / "assets" / "figures" / "zh").glob("*.svg")}
    found = set[str]()
    for path in folder.rglob("*.html"):
        name = path.relative_to(folder).as_posix()
        text = path.read_text(encoding="utf-8")
        if name.startswith(("en/", "assets/")) or name == "404.html" or 'http-equiv="refresh"' in text:
            continue
        found |= {name, *(f"{name}#{one}" for one in Reader(text).anchors if one in figures or QUESTION.fullmatch(one))}
    return found


def check_page(folder: Path, path: Path, page: Reader, pages: dict[Path, Reader]) -> Iterator[str]:
    """What is broken on one page."""
    where = path.relative_to(folder)
    for way in page.fetched:
        if urlsplit(way).scheme or way.startswith("//"):
            if not way.startswith("data:"):
                yield f"{where}: fetches {way}"
        elif not find_target(path, way).exists():
            yield f"{where}: fetches {way}, which is not there"
    for way in page.ways:
        parts = urlsplit(way)
        if parts.scheme or parts.netloc:
            continue
        target = find_target(path, way) if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield f"{where}: leads to {way}, which is not there"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors | {""}:
            yield f"{where}: leads to {way}, whose anchor is not there"


def find_target(path: Path, way: str) -> Path:
    """The file that a relative link means."""
    return (path.parent / unquote(urlsplit(way).path)).resolve()
