"""Make the site: `python -m tools.website [FOLDER] [--live FOLDER] [--url ADDRESS]`; `make site` does."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from . import links, offline
from .pages import ROOT


def main() -> int:
    """0 where the site is whole, 1 and what is broken otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--live", type=Path, help="folder with qkv-live.js and models/, the core in the browser")
    parser.add_argument("--url", default="", help="where the site will be, for the notebooks' way back to it")
    parser.add_argument("--addresses", action="store_true", help="promise every address of today's pages for good")
    parser.add_argument("--fetch", action="store_true", help="fetch what web/ is built with, if it is missing")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # three processes build; torch's threads would wait for one another
    from . import build

    if asked.fetch:
        build.fetch_packages()
    began, folder = time.monotonic(), asked.folder.resolve()
    with tempfile.TemporaryDirectory() as aside:
        build.build_site(Path(aside), folder, asked.live, asked.url)
    there = links.list_addresses(folder)
    if asked.addresses:
        offline.keep_addresses(there)
    bad = [*links.check_site(folder), *offline.find_gone(there)]
    for line in bad:
        print("broken:", line, file=sys.stderr)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB, {len(list(folder.rglob('*.html')))} pages, {time.monotonic() - began:.0f} s")
    print(f"look at it: python3 -m http.server -d {os.path.relpath(folder)}")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
