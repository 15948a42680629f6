"""Files from fixed addresses with known hashes: resumed where a download stopped, whole or not at all. Stdlib only."""

import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from qkv.errors import QkvError
from qkv.messages import Message

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
    variable: str = "QKV_DATA_URL"  # of the environment, that names another address with the same files

    @property
    def packed(self) -> bool:
        """Whether it is sent in gzip and kept unpacked."""
        return self.url.endswith(".gz") and not self.path.endswith(".gz")


def check_address(base: str, variable: str) -> str:
    """An address without the slash at its end; QkvError, which names the variable it is from, if it is none."""
    if urlsplit(base).scheme not in ("http", "https"):
        raise QkvError("{variable}: found {base!r}, expected an address that begins with https:// or http://",
                       variable=variable, base=base)
    return base.rstrip("/")


def fetch_file(file: File, folder: Path, base: str, tell: Tell | None = None) -> Path:
    """One file in its place: it appears there only with the right hash.

    Raises:
        QkvError: the address cannot be reached, the disk is full, or the bytes are others. But for the last, what was
            fetched so far stays for the next time.
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
        with urlopen(request, timeout=TIMEOUT) as answer:  # http and https only: `check_address` looked
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
        raise explain_unreachable(file, url, f"{e.code} {e.reason}", part) from None
    except (URLError, HTTPException, TimeoutError, ConnectionError) as e:
        raise explain_unreachable(file, url, str(getattr(e, "reason", e)) or type(e).__name__, part) from None
    if have < file.size:
        cut = Message("the connection ended after {have:,} of {size:,} bytes", have=have, size=file.size)
        raise explain_unreachable(file, url, cut, part)


def explain_unreachable(file: File, url: str, reason: str, part: Path) -> QkvError:
    """What to say, and what to do, when an address does not answer."""
    host, kept = urlsplit(url).netloc, part.stat().st_size if part.is_file() else 0
    rest = "" if not kept else Message(" {kept:,} bytes are kept; the same command continues from there.", kept=kept)
    return QkvError("{url}: could not be fetched ({reason}).{rest} Without a network: copy the folder {parent} from a "
                    "machine that has it. {variable} names a mirror of {host}, HTTPS_PROXY a proxy", url=url,
                    reason=reason, rest=rest, parent=part.parent, host=host, variable=file.variable)


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
                   "and was not kept. Try again; a mirror in {variable} must hold the same files", url=url,
                   name=target.name, found=found, sha256=file.sha256, variable=file.variable)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
