"""Public data sets by name: fixed addresses, hashes, licences. `get` fetches one into the cache, whole or not at all.

`QKV_DATA_URL` names a mirror to use instead of BASE, `QKV_CACHE` the folder (paths.py); below `data` in it the files
lie as recipes look for them. A download that broke off goes on where it was.
"""

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from qkv.errors import QkvError, nearest
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

    about: str
    licence: str
    files: tuple[File, ...]


def multi30k() -> Set:
    """Multi30k, task 1, raw text (Elliott et al. 2016; 2017 for the later tests)."""
    top, hashes = "multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw", {
        "train.en": (568929, "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6"),
        "train.de": (637044, "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72"),
        "train.fr": (604242, "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d"),
        "train.cs": (593827, "2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da"),
        "val.en": (21650, "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227"),
        "val.de": (24681, "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660"),
        "val.fr": (23001, "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc"),
        "val.cs": (22096, "d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33"),
        "test_2016_flickr.en": (21077, "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"),
        "test_2016_flickr.de": (22890, "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"),
        "test_2016_flickr.fr": (22310, "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6"),
        "test_2016_flickr.cs": (22572, "45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8"),
        "test_2017_flickr.en": (19138, "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98"),
        "test_2017_flickr.de": (21471, "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081"),
        "test_2017_flickr.fr": (20434, "6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6"),
        "test_2017_mscoco.en": (8844, "43051fdfa86fd5395182e718a94ca67b1b227b9f7c79596ff0f6b813216981d2"),
        "test_2017_mscoco.de": (10230, "58277df3c75f92f7145a11b910b553d1cf82c439249d4dc237c899609eafac22"),
        "test_2017_mscoco.fr": (9751, "39cde3f43f32b0a6bf29ce4917a46329ff32e53070c2fac87506695a740ae0a0"),
    }  # fmt: skip
    files = tuple(File(f"{top}/{n}.gz", f"mt/multi30k/{n}", size, sha) for n, (size, sha) in hashes.items())
    return Set(
        "29,000 captions in English, German, French and Czech, with validation and tests",
        "for non-commercial research and education, on the terms of Flickr30K (its README)", files,
    )  # fmt: skip


def sets() -> dict[str, Set]:
    """The data sets by name."""
    shakespeare = File(
        "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
        "lm/tinyshakespeare/input.txt", 1115394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    )  # fmt: skip
    tatoeba = File(
        "13luoyu/Transformer-machine-translation/aa43963320ccfacebd1d3542deae559bbca58d03/cmn.txt",
        "mt/tatoeba_cmn_eng/cmn.txt", 4151383, "aa264a2447b26ab7c9d413f8321f9e2a779fd134b5118306b6e26a3499b3926e",
    )  # fmt: skip
    sst = File(  # later versions are cut into other words than everybody's validation and test sentences
        "stanfordnlp/sentiment-treebank/f9cbf209fddbf993d5f531a4c9ab28d7aeb4a787/fiveclass/train.txt",
        "cls/sst_trees/train.txt", 2154066, "d35286874d05b651728a5e8959907608cfa8c09af83d796e70085001a7c27273",
    )  # fmt: skip
    return {
        "multi30k": multi30k(),
        "tinyshakespeare": Set("1.1 MB of Shakespeare's plays", "public domain", (shakespeare,)),
        "tatoeba:zh-en": Set(
            "29,155 pairs, English TAB Chinese TAB whom to thank", "CC BY 2.0 FR, Tatoeba; authors in the third column",
            (tatoeba,),
        ),
        "sst-trees": Set(
            "8,544 sentences of film reviews with a label at each phrase, to train on (Socher et al. 2013)",
            "none stated; published for research", (sst,),
        ),
    }  # fmt: skip


def find(name: str) -> Set:
    """The data set of a name; QkvError names the nearest."""
    known = sets()
    if name not in known:
        raise QkvError(f"{name}: no such data set{nearest(name, known)} (known: {', '.join(known)})")
    return known[name]


def get(name: str, folder: Path | None = None, *, base: str | None = None, tell: Tell | None = None) -> list[Path]:
    """The files of a data set below `folder` (the cache's `data`), fetched where they are not there yet.

    Raises:
        QkvError: no such set; the address cannot be reached (what to do then); a hash that is not the known one.
    """
    found = find(name)
    folder = Path(folder) if folder else cache_dir() / "data"
    base = base or os.environ.get("QKV_DATA_URL") or BASE
    if urlsplit(base).scheme not in ("http", "https"):
        raise QkvError(f"QKV_DATA_URL: found {base!r}, expected an address that begins with https:// or http://")
    return [fetched(file, folder, base.rstrip("/"), tell) for file in found.files]


def fetched(file: File, folder: Path, base: str, tell: Tell | None = None) -> Path:
    """One file in its place: it appears there only with the right hash.

    Raises:
        QkvError: see `get`; also a full disk. What was fetched so far stays for the next time.
    """
    target = folder / file.path
    part = target.with_name(f".{target.name}.part")
    url = f"{base}/{file.url}"
    try:
        if target.is_file() and digest(target) == file.sha256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        if not part.is_file() or part.stat().st_size != file.size:
            download(file, url, part, tell)
        put(file, url, part, target)
    except OSError as e:
        raise QkvError(f"{target}: could not be written ({e}); make room, or name another folder: --out") from None
    return target


def download(file: File, url: str, part: Path, tell: Tell | None) -> None:
    """Fetch the bytes of a file into `part`, going on behind those that are there already; check them."""
    have = part.stat().st_size if part.is_file() else 0
    if have >= file.size:
        have = 0
    request = Request(url, headers={"User-Agent": "qkv", **({"Range": f"bytes={have}-"} if have else {})})
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:  # http and https only: `get` looked
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
        raise unreachable(url, f"{e.code} {e.reason}", part) from None
    except (URLError, HTTPException, TimeoutError, ConnectionError) as e:
        raise unreachable(url, str(getattr(e, "reason", e)) or type(e).__name__, part) from None
    if have < file.size:
        raise unreachable(url, f"the connection ended after {have:,} of {file.size:,} bytes", part)


def unreachable(url: str, reason: str, part: Path) -> QkvError:
    """What to say, and what to do, when an address does not answer."""
    host, kept = urlsplit(url).netloc, part.stat().st_size if part.is_file() else 0
    rest = f" {kept:,} bytes are kept, and the same command goes on behind them." if kept else ""
    return QkvError(
        f"{url}: could not be fetched ({reason}).{rest} Without a network: copy the folder {part.parent} from "
        f"a machine that has it. QKV_DATA_URL names a mirror of {host}, HTTPS_PROXY a proxy"
    )


def put(file: File, url: str, part: Path, target: Path) -> None:
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
        found = digest(aside)
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
        "ones, and were not kept. Try again; a mirror in QKV_DATA_URL must hold the same files"
    )


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
