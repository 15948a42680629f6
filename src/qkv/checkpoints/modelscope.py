"""Models of ModelScope: the files of a repository by its own API, fetched once into the cache, each with its hash.

`MODELSCOPE_ENDPOINT` names another address with the same API, `QKV_CACHE` the folder; HF_HUB_OFFLINE forbids to ask.
"""

import json
import os
from collections.abc import Sequence
from fnmatch import fnmatch
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from qkv.downloads import TIMEOUT, File, Tell, check_address, fetch_file
from qkv.errors import QkvError
from qkv.files import replace_file
from qkv.json_files import read_json
from qkv.messages import Message
from qkv.paths import cache_dir

BASE, VARIABLE = "https://www.modelscope.cn", "MODELSCOPE_ENDPOINT"
LIST = ".files.json"  # what a repository holds, as it was told once
MOST = 1 << 24  # bytes of such a list


def fetch_model(name: str, revision: str | None, wanted: Sequence[str], tell: Tell | None = None) -> Path:
    """The folder with the wanted files (globs) of a model; nothing is asked where all of them lie there.

    Raises:
        QkvError: no such model, an address that does not answer as ModelScope does, or a file with another hash.
    """
    folder, kept = cache_dir() / "modelscope" / name / (revision or "master"), LIST
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    base = check_address(os.environ.get(VARIABLE) or BASE, VARIABLE)
    if not (folder / kept).is_file():
        if offline:
            raise QkvError("{name}: HF_HUB_OFFLINE is set, and nothing of it lies in {folder}", name=name,
                           folder=folder)
        rows = list_files(base, name, revision)
        folder.mkdir(parents=True, exist_ok=True)
        with replace_file(folder / kept) as aside:
            aside.write_text(json.dumps({"Files": rows}), encoding="utf-8")
    files = parse_files(read_json(folder / kept), name, revision, folder / kept)
    for file in files:
        there = folder / file.path
        if not any(fnmatch(file.path, glob) for glob in wanted) or (
                there.is_file() and there.stat().st_size == file.size):
            continue  # a file appears in its place only with the right hash
        if offline:
            raise QkvError("{name}: HF_HUB_OFFLINE is set, and {file} is missing in {folder}", name=name,
                           file=file.path, folder=folder)
        fetch_file(file, folder, base, tell)
    return folder


def list_files(base: str, name: str, revision: str | None) -> list[dict[str, Any]]:
    """What ModelScope says of the files of a repository."""
    query = urlencode({"Revision": revision or "master", "Recursive": "True"})
    url = f"{base}/api/v1/models/{quote(name)}/repo/files?{query}"
    try:
        with urlopen(Request(url, headers={"User-Agent": "qkv"}), timeout=TIMEOUT) as answer:  # http(s): checked above
            kind, data = answer.headers.get_content_type(), answer.read(MOST)
    except HTTPError as e:
        hint = Message("; is its name right?") if e.code == 404 else ""
        raise QkvError("{name}: ModelScope answered {status} {reason}{hint} ({url})", name=name, status=e.code,
                       reason=e.reason, hint=hint, url=url) from None
    except (URLError, HTTPException, OSError) as e:
        raise QkvError("{name}: ModelScope could not be reached ({reason}); {variable} names another address, "
                       "HTTPS_PROXY a proxy", name=name, reason=getattr(e, "reason", e), variable=VARIABLE) from None
    try:
        said = json.loads(data)
        return list(said["Data"]["Files"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise QkvError("{url}: answered with {kind}, expected ModelScope's list of files; is {variable} right?",
                       url=url, kind=kind, variable=VARIABLE) from None


def parse_files(said: dict[str, Any], name: str, revision: str | None, where: Path) -> list[File]:
    """The files in a list of ModelScope's; QkvError for one that lies outside its folder or says no hash."""
    found = list[File]()
    for row in said.get("Files") or ():
        path = row.get("Path") if isinstance(row, dict) else None
        if isinstance(row, dict) and row.get("Type") == "tree":
            continue
        size, sha256 = (row.get("Size"), row.get("Sha256")) if isinstance(row, dict) else (None, None)
        fine = isinstance(path, str) and not ({"..", ""} & {*PurePosixPath(path).parts, path} or path.startswith("/"))
        if not fine or "\\" in str(path) or type(size) is not int or not isinstance(sha256, str):
            raise QkvError("{where}: found {row}, expected the path of a file below its folder, its size and SHA-256",
                           where=where, row=repr(row)[:120])
        url = f"models/{quote(name)}/resolve/{quote(revision or 'master', safe='')}/{quote(str(path))}"
        found.append(File(url, str(path), size, sha256, VARIABLE))
    return found
