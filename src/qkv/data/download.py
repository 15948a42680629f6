"""Public data sets by name: fixed addresses, hashes, licences. `fetch_set` caches one, whole or not at all.

`QKV_DATA_URL` names a mirror to use instead of BASE, `QKV_CACHE` the folder (paths.py); below `data` in it the files
lie as recipes look for them. A download that broke off goes on where it was.
"""

import gzip
import hashlib
import os
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from qkv.errors import Note, QkvError, nearest
from qkv.paths import cache_dir

BASE = "https://raw.githubusercontent.com"
BLOCK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
Tell = Callable[[str, int, int], None]  # the file, bytes so far, bytes in all


@dataclass(frozen=True)
class File:
    """One file: its path below the base, its place in the folder, bytes that are sent, SHA-256 of what lies there."""

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

    about: Note
    licence: Note
    files: tuple[File, ...]


def list_sets() -> dict[str, Set]:
    """The data sets by name, as sets.toml lists them."""
    text = Path(__file__).with_name("sets.toml").read_text(encoding="utf-8")
    return {name: parse_set(one) for name, one in tomllib.loads(text).items()}


def parse_set(one: dict[str, Any]) -> Set:
    """A data set of its table."""
    end = ".gz" if one.get("gz") else ""
    files = (File(f"{one['top']}/{name}{end}", f"{one['into']}/{name}", *has) for name, has in one["files"].items())
    about, licence = Note(one["about"]), Note(one["licence"])
    return Set(about, licence, tuple(files))


def find_set(name: str) -> Set:
    """The data set of a name; QkvError names the nearest."""
    known = list_sets()
    if name not in known:
        raise QkvError(f"{name}: no such data set{nearest(name, known)} (known: {', '.join(known)})",
                       zh=f"{name}：没有这个数据集{nearest(name, known).zh}（有的：{', '.join(known)}）")  # fmt: skip
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
        raise QkvError(f"QKV_DATA_URL: found {base!r}, expected an address that begins with https:// or http://",
                       zh=f"QKV_DATA_URL：是 {base!r}，应是以 https:// 或 http:// 开头的地址")  # fmt: skip
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
        raise QkvError(f"{target}: could not be written ({e}); make room, or name another folder: --out",
                       zh=f"{target}：写不了（{e}）；请腾出空间，或用 --out 另给一处") from None  # fmt: skip
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
        raise explain_unreachable(url, f"the connection ended after {have:,} of {file.size:,} bytes", part)


def explain_unreachable(url: str, reason: str, part: Path) -> QkvError:
    """What to say, and what to do, when an address does not answer."""
    host, kept = urlsplit(url).netloc, part.stat().st_size if part.is_file() else 0
    rest = "" if not kept else Note(f" {kept:,} bytes are kept, and the same command goes on behind them.",
                zh=f"已留下 {kept:,} 字节，同一条命令会接着取。")  # fmt: skip
    return QkvError(
        f"{url}: could not be fetched ({reason}).{rest} Without a network: copy the folder {part.parent} from "
        f"a machine that has it. QKV_DATA_URL names a mirror of {host}, HTTPS_PROXY a proxy",
        zh=f"{url}：取不到（{reason}）。{rest.zh}没有网络时：从有它的机器上复制目录 {part.parent}。"
        f"QKV_DATA_URL 指定 {host} 的镜像，HTTPS_PROXY 指定代理",
    )


def store_file(file: File, url: str, part: Path, target: Path) -> None:
    """Unpack what was fetched where it is packed, check it, and put it in its place in one rename.

    Raises:
        QkvError: these are not the known bytes; they are not kept.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}") if file.packed else part
    try:
        if file.packed:
            with gzip.open(part) as source, aside.open("wb") as out:
                while block := source.read(BLOCK):
                    out.write(block)
                out.flush()
                os.fsync(out.fileno())
        found = hash_file(aside)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        found = f"unknown, it is no whole gzip file ({e})"
    except OSError:
        aside.unlink()
        raise
    if found == file.sha256:
        os.replace(aside, target)
        part.unlink(missing_ok=True)
        return
    aside.unlink()
    part.unlink(missing_ok=True)
    raise QkvError(
        f"{url}: the SHA-256 of {target.name} is {found}, expected {file.sha256}: these are other bytes than the known "
        "ones, and were not kept. Try again; a mirror in QKV_DATA_URL must hold the same files",
        zh=f"{url}：{target.name} 的 SHA-256 是 {found}，应是 {file.sha256}：与已知的内容不同，"
        "没有留下。请再试一次；QKV_DATA_URL 的镜像须有同样的文件",
    )


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
