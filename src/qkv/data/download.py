"""Public data sets by name: fixed addresses, hashes, licences. `fetch_set` caches one, whole or not at all.

`QKV_DATA_URL` names a mirror to use instead of BASE, `QKV_CACHE` the folder (paths.py); below `data` in it the files
lie as recipes look for them. An interrupted download continues where it stopped.
"""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from qkv.downloads import File, Tell, check_address, fetch_file
from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.paths import cache_dir

BASE = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Set:
    """A data set: what it is, its licence as its makers state it, its files."""

    about: Message
    licence: Message
    files: tuple[File, ...]


def list_sets() -> dict[str, Set]:
    """The data sets by name, as sets.toml lists them."""
    found: dict[str, Set] = {}
    for name, one in tomllib.loads(Path(__file__).with_name("sets.toml").read_text(encoding="utf-8")).items():
        end = ".gz" if one.get("gz") else ""
        files = (File(f"{one['top']}/{file}{end}", f"{one['into']}/{file}", *has) for file, has in one["files"].items())
        found[name] = Set(Message(one["about"]), Message(one["licence"]), tuple(files))
    return found


def find_set(name: str) -> Set:
    """The data set of a name; QkvError names the nearest."""
    known = list_sets()
    if name not in known:
        raise QkvError("{name}: no such data set{hint} (known: {known})", name=name, hint=nearest(name, known),
                       known=", ".join(known))
    return known[name]


def fetch_set(
    name: str, folder: Path | None = None, *, base: str | None = None, tell: Tell | None = None
) -> list[Path]:
    """The files of a data set below `folder` (the cache's `data`), fetched where they are not there yet.

    Raises:
        QkvError: no such set; the address cannot be reached (what to do then); a hash that is not the known one.
    """
    found = find_set(name)
    folder = Path(folder) if folder else cache_dir() / "data"
    base = base or os.environ.get("QKV_DATA_URL") or BASE
    base = check_address(base, "QKV_DATA_URL")
    return [fetch_file(file, folder, base, tell) for file in found.files]
