"""Public sets from a server on this machine: hashes, half files, broken lines, no network."""

import gzip
import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qkv.data import download
from qkv.data.download import File, Set, fetch_set
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.paths import cache_dir

PLAIN = b"".join(b"%d lines of text\n" % i for i in range(20_000))
PACKED = gzip.compress(PLAIN, mtime=0)


class Shelf(BaseHTTPRequestHandler):
    """Files by path, with ranges; `cut` ends an answer after so many bytes."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    asked: list[tuple[str, str | None]] = []  # noqa: RUF012
    cut: int | None = None
    ranges = True

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append((self.path, wanted))
        data = self.files.get(self.path)
        if data is None:
            return self.send_error(404)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:][: self.cut])
        return None

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Shelf]]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Shelf.files = {"/a/plain.txt": PLAIN, "/a/packed.txt.gz": PACKED}
    Shelf.asked, Shelf.cut, Shelf.ranges = [], None, True
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shelf)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("QKV_DATA_URL", f"http://127.0.0.1:{server.server_port}/")
    known = hashlib.sha256(PLAIN).hexdigest()
    files = (File("a/plain.txt", "x/plain.txt", len(PLAIN), known),
             File("a/packed.txt.gz", "x/packed.txt", len(PACKED), known))  # fmt: skip
    small, one = (Set(Message(), Message(), some) for some in (files, files[:1]))
    monkeypatch.setattr(download, "list_sets", lambda: {"small": small, "one": one})
    yield Shelf
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_set_comes_whole_and_is_not_fetched_again(shelf: type[Shelf], tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    paths = fetch_set("small", tmp_path, tell=lambda *seen: told.append(seen))
    assert [p.relative_to(tmp_path).as_posix() for p in paths] == ["x/plain.txt", "x/packed.txt"]
    assert [p.read_bytes() == PLAIN for p in paths] == [True, True]
    assert told[-1] == ("x/packed.txt", len(PACKED), len(PACKED))
    assert len(shelf.asked) == 2
    fetch_set("small", tmp_path)
    assert len(shelf.asked) == 2
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["packed.txt", "plain.txt"]
    paths[0].write_text("edited", encoding="utf-8")
    fetch_set("one", tmp_path)
    assert paths[0].read_bytes() == PLAIN


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_a_download_that_broke_off_goes_on(shelf: type[Shelf], tmp_path: Path, ranges: bool, which: int) -> None:
    shelf.cut, shelf.ranges = 1000, ranges
    file = download.list_sets()["small"].files[which]
    base = f"http://{shelf_address()}"
    with pytest.raises(QkvError, match=r"1,000 bytes are kept; the same command continues"):
        download.fetch_file(file, tmp_path, base)
    assert not (tmp_path / file.path).exists()
    shelf.cut = None
    assert download.fetch_file(file, tmp_path, base).read_bytes() == PLAIN
    assert shelf.asked[-1] == (f"/{file.url}", "bytes=1000-")


def shelf_address() -> str:
    import os

    return os.environ["QKV_DATA_URL"].removeprefix("http://").rstrip("/")


@pytest.mark.parametrize("change", [lambda d: d[:-1] + b"!", lambda d: d + b"more", lambda d: b"\0" * len(d)])
@pytest.mark.parametrize("name", ["/a/plain.txt", "/a/packed.txt.gz"])
def test_other_bytes_are_refused_and_not_kept(shelf: type[Shelf], tmp_path: Path, name: str, change: Any) -> None:
    shelf.files[name] = change(shelf.files[name])
    with pytest.raises(QkvError, match="differs from the known one"):
        fetch_set("small", tmp_path)
    assert not (tmp_path / "x" / name.removeprefix("/a/").removesuffix(".gz")).exists()
    shelf.files |= {"/a/plain.txt": PLAIN, "/a/packed.txt.gz": PACKED}
    assert all(p.read_bytes() == PLAIN for p in fetch_set("small", tmp_path))


def test_a_half_file_of_other_bytes_is_not_built_upon(shelf: type[Shelf], tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".plain.txt.part").write_bytes(b"\0" * 500)
    with pytest.raises(QkvError, match="differs from the known one"):
        fetch_set("one", tmp_path)
    assert fetch_set("one", tmp_path)[0].read_bytes() == PLAIN


def test_a_missing_file_and_a_missing_server_say_what_to_do(
    shelf: type[Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del shelf.files["/a/plain.txt"]
    with pytest.raises(QkvError, match=r"a/plain\.txt: could not be fetched \(404"):
        fetch_set("one", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("QKV_DATA_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(QkvError, match=r"could not be fetched.*QKV_DATA_URL names a mirror.*HTTPS_PROXY"):
            fetch_set("one", tmp_path)
    monkeypatch.setenv("QKV_DATA_URL", "file:///etc")
    with pytest.raises(QkvError, match="expected an address that begins with https"):
        fetch_set("one", tmp_path)
    with pytest.raises(QkvError, match="did you mean 'small'"):
        fetch_set("smal", tmp_path)


def test_a_folder_that_cannot_be_written_is_told(shelf: type[Shelf], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a file", encoding="utf-8")
    with pytest.raises(QkvError, match="could not be written"):
        fetch_set("one", tmp_path)


def test_the_cache_is_where_the_environment_says(
    shelf: type[Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("QKV_CACHE", raising=False)
    assert cache_dir() == tmp_path / "xdg" / "qkv"
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "own"))
    assert fetch_set("one") == [tmp_path / "own" / "data" / "x" / "plain.txt"]


def test_the_known_sets_are_pinned() -> None:
    from collections import Counter

    known = download.list_sets()
    assert set(known) == {"multi30k", "multi30k-bpe", "tinyshakespeare", "tatoeba:zh-en", "sst2", "sst-trees"}
    for name, one in known.items():
        assert one.licence, name
        for file in one.files:
            commit = file.url.split("/")[2]
            assert len(commit) == 40, "an address that may change has no hash"
            assert len(file.sha256) == 64
            assert not Path(file.path).is_absolute()
            assert ".." not in file.path
    assert max(Counter(f.path for one in known.values() for f in one.files).values()) == 1


@pytest.mark.needs_data
def test_the_hashes_are_those_of_the_real_files() -> None:
    from qkv.downloads import hash_file
    from qkv.paths import data_dir

    for one in download.list_sets().values():
        for file in one.files:
            path = data_dir() / file.path
            if path.is_file():
                assert hash_file(path) == file.sha256, path
