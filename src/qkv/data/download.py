"""Public data sets by name: fixed addresses, hashes, licences. `fetch_set` caches one, whole or not at all.

`QKV_DATA_URL` names a mirror to use instead of BASE, `QKV_CACHE` the folder (paths.py); below `data` in it the files
lie as recipes look for them. An interrupted download continues where it stopped.
"""

import gzip
import hashlib
import os
import shutil
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.paths import cache_dir

BASE = "https://raw.githubusercontent.com"
BLOCK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
Tell = Callable[[str, int, int], None]  # the file, bytes so far, bytes in all


@dataclass(frozen=True)
class File:
    """One file: its path below the base, its place in the folder, bytes that are sent, SHA-256 of the stored file."""

    url: str
    path: str
    size: int
    sha256: str

    @property
    def packed(self) -> bool:
        """Whether it is sent in gzip and kept unpacked."""
        return self.url.endswith(".gz") and not self.path.endswith(".gz")


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
    if urlsplit(base).scheme not in ("http", "https"):
        raise QkvError("QKV_DATA_URL: found {base!r}, expected an address that begins with https:// or http://",
                       base=base)
    return [fetch_file(file, folder, base.rstrip("/"), tell) for file in found.files]


def fetch_file(file: File, folder: Path, base: str, tell: Tell | None = None) -> Path:
    """One file in its place: it appears there only with the right hash.

    Raises:
        QkvError: see `fetch_set`; also a full disk. What was fetched so far stays for the next time.
    """
    target = folder / file.path
    part = target.with_name(f".{target.name}.part")
    url = f"{base}/{file.url}"
    try:
        if target.is_file() and hash_file(target) == file.sha256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        if not part.is_file() or part.stat().st_size != file.size:
            download(file, url, part, tell)
        store_file(file, url, part, target)
    except OSError as e:
        raise QkvError("{target}: could not be written ({e}); make room, or name another folder: --out", target=target,
                       e=e) from None
    return target


def download(file: File, url: str, part: Path, tell: Tell | None) -> None:
    """Fetch the bytes of a file into `part`, going on behind those that are there already; check them."""
    have = part.stat().st_size if part.is_file() else 0
    if have >= file.size:
        have = 0
    request = Request(url, headers={"User-Agent": "qkv", **({"Range": f"bytes={have}-"} if have else {})})
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:  # http and https only: `fetch_set` looked
            goes_on = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
            have = have if goes_on else 0
            with part.open("ab" if goes_on else "wb") as out:
                while block := answer.read(BLOCK):
                    have += out.write(block)
                    if have > file.size:
                        break
                    if tell:
                        tell(file.path, have, file.size)
                out.flush()
                os.fsync(out.fileno())
    except HTTPError as e:
        if e.code == 416:  # what is there is longer than what the address holds
            part.unlink(missing_ok=True)
        raise explain_unreachable(url, f"{e.code} {e.reason}", part) from None
    except (URLError, HTTPException, TimeoutError, ConnectionError) as e:
        raise explain_unreachable(url, str(getattr(e, "reason", e)) or type(e).__name__, part) from None
    if have < file.size:
        cut = Message("the connection ended after {have:,} of {size:,} bytes", have=have, size=file.size)
        raise explain_unreachable(url, cut, part)


def explain_unreachable(url: str, reason: str, part: Path) -> QkvError:
    """What to say, and what to do, when an address does not answer."""
    host, kept = urlsplit(url).netloc, part.stat().st_size if part.is_file() else 0
    rest = "" if not kept else Message(" {kept:,} bytes are kept; the same command continues from there.", kept=kept)
    return QkvError("{url}: could not be fetched ({reason}).{rest} Without a network: copy the folder {parent} from a "
                    "machine that has it. QKV_DATA_URL names a mirror of {host}, HTTPS_PROXY a proxy", url=url,
                    reason=reason, rest=rest, parent=part.parent, host=host)


def store_file(file: File, url: str, part: Path, target: Path) -> None:
    """Unpack what was fetched where it is packed, check it, and put it in its place in one rename.

    Raises:
        QkvError: these are not the known bytes; they are not kept.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}") if file.packed else part
    try:
        if file.packed:
            with gzip.open(part) as source, aside.open("wb") as out:
                shutil.copyfileobj(source, out)
                out.flush()
                os.fsync(out.fileno())
        found = hash_file(aside)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        found = Message("unknown, not a complete gzip file ({e})", e=e)
    except OSError:
        aside.unlink()
        raise
    if found == file.sha256:
        os.replace(aside, target)
        part.unlink(missing_ok=True)
        return
    aside.unlink()
    part.unlink(missing_ok=True)
    raise QkvError("{url}: the SHA-256 of {name} is {found}, expected {sha256}: the file differs from the known one "
                   "and was not kept. Try again; a mirror in QKV_DATA_URL must hold the same files", url=url,
                   name=target.name, found=found, sha256=file.sha256)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
