"""What makes the built site stand alone: reading without a network, and links from an older version of it."""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

from .pages import LANGS, SITE

MOVED, ADDRESSES = SITE / "moved.toml", SITE / "addresses.txt"
KEPT = re.compile(r"(html|css|js|/search_index\.json)$")  # what a page needs to be read and searched
UNASKED = re.compile(r"assets/(inside|look|notebooks|qkv-live)|search_index\.js$|"
                     r"/lunr/(?!min/lunr\.(multi|stemmer|zh))")
STUB = """<!doctype html>
<html lang="{lang}"><meta charset="utf-8"><meta name="robots" content="noindex"><title>qkv</title>
<meta http-equiv="refresh" content="0; url={to}"><p><a href="{to}">{to}</a></p></html>
"""


def read_moved() -> dict[str, str]:
    """Where what had an address on the site is now: page or page#anchor, old to new, without the language."""
    return tomllib.loads(MOVED.read_text(encoding="utf-8"))["moved"]


def finish_site(folder: Path) -> None:
    """Write what stands for moved pages, 404.html, the list of all files and the service worker over them."""
    moved = read_moved()
    for old, new in moved.items():
        for lang in LANGS:
            target = folder / ("" if lang == "zh" else lang) / old
            if "#" not in old and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                up, (page, _, anchor) = "../" * old.count("/"), new.partition("#")
                to = f"{up}{page}?from={old}" + (f"#{anchor}" if anchor else "")
                target.write_text(STUB.format(lang=lang, to=escape(to, quote=True)), encoding="utf-8")
    (folder / "assets" / "moved.json").write_text(json.dumps(moved, ensure_ascii=False), encoding="utf-8")
    (folder / "en" / "404.html").unlink(missing_ok=True)
    (folder / "404.html").write_bytes((SITE / "offline" / "404.html").read_bytes())
    listed = json.dumps(dict(list_files(folder)), ensure_ascii=False, separators=(",", ":"))
    (folder / "files.json").write_text(listed, encoding="utf-8")
    worker = (SITE / "offline" / "sw.js").read_text(encoding="utf-8")
    build = hashlib.sha256((listed + worker).encode()).hexdigest()[:16]
    (folder / "sw.js").write_text(f'const BUILD = "{build}";\n{worker}', encoding="utf-8")


def list_files(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each file with its hash, and the language that keeps it unasked, if one does."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".map"):
        name = path.relative_to(folder).as_posix()
        said = {"hash": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}
        if KEPT.search(name) and not UNASKED.search(name):
            said["lang"] = "en" if name.startswith("en/") else "zh"
        if name not in ("files.json", "sw.js"):
            yield name, said


def keep_addresses(there: set[str]) -> None:
    """Add what has an address today to those that must stay."""
    old = set(ADDRESSES.read_text(encoding="utf-8").split()) if ADDRESSES.is_file() else set[str]()
    ADDRESSES.write_text("\n".join(sorted(old | there)) + "\n", encoding="utf-8")


def find_gone(there: set[str]) -> Iterator[str]:
    """One line for each address that is neither there nor moved to one that is."""
    moved = read_moved()
    for old, new in moved.items():
        if new not in there:
            yield f"{MOVED.name}: {old} is to be at {new}, which is not there"
    for old in ADDRESSES.read_text(encoding="utf-8").split():
        if old not in there and old not in moved:
            yield f"{old}: was an address of the site and is gone; say in {MOVED.name} where it is now"
