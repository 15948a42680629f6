"""What is kept of large files: once, whole or not at all, and removed when nobody needs it."""

import os
import threading
from pathlib import Path

import pytest

from qkv import files
from qkv.data import cache, shards
from qkv.data.mapped_rows import MappedRows, collect_rows, encode_rows
from qkv.errors import QkvError

ROWS = [(f"rów {i}", f"行{i % 7}") for i in range(40)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("qkv.data.mapped_rows.LARGE", 10)
    monkeypatch.setattr("qkv.data.mapped_rows.CHUNK", 16)
    return tmp_path / "cache"


def encode_texts(rows: list[tuple[str, ...]]) -> list[list[list[int]]]:
    return [[list(text.encode()) for text in row] for row in rows]


def encode(rows: MappedRows) -> MappedRows:
    return encode_rows(rows, encode_texts, sides=2, vocabulary=256, maker="bytes")


def on_disk() -> MappedRows:
    found = collect_rows(ROWS)
    assert isinstance(found, MappedRows)
    return found


def test_many_rows_lie_on_disk_and_read_as_a_list_does() -> None:
    rows = on_disk()
    assert list(rows) == ROWS
    assert (rows[3], rows[-1], rows[5:9], rows[::7]) == (ROWS[3], ROWS[-1], ROWS[5:9], ROWS[::7])
    some = rows.select(rows.chosen[::2])
    assert list(some) == ROWS[::2]
    assert collect_rows(ROWS[:10]) == ROWS[:10]


def test_the_file_of_rows_goes_with_them() -> None:
    rows = on_disk()
    some, file = rows.select(rows.chosen[:3]), rows.file
    del rows
    assert list(some) == ROWS[:3]
    del some
    assert not file.exists()


def test_encoded_rows_are_those_of_their_texts() -> None:
    found = encode(on_disk())
    assert list(found) == [(list(a.encode()), list(b.encode())) for a, b in ROWS]
    assert found.lengths.tolist() == [[len(a.encode()), len(b.encode())] for a, b in ROWS]


def test_what_is_encoded_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = encode(on_disk())
    monkeypatch.setattr(shards, "write_shard", None)
    assert list(encode(on_disk())) == list(first)
    with pytest.raises(TypeError):  # other rows are another entry
        encode(on_disk().select(first.chosen[:5]))


def test_a_broken_entry_is_made_again() -> None:
    first = encode(on_disk())
    with first.file.open("r+b") as file:
        file.write(b"\xff\xff")
    assert list(encode(on_disk())) == [(list(a.encode()), list(b.encode())) for a, b in ROWS]


def test_a_full_disk_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def fill(_: object) -> None:
        raise OSError(28, "No space left on device")

    rows = on_disk()
    monkeypatch.setattr(files, "fsync_path", fill)
    with pytest.raises(QkvError, match="No space left"):
        encode(rows)
    assert not [path for path in (own_cache / "encoded").iterdir() if path.is_dir()]


def test_two_that_need_the_same_entry_make_it_once() -> None:
    made, found = list[Path](), list[str]()

    def write(place: Path) -> None:
        made.append(place)
        threading.Event().wait(0.2)
        place.mkdir()
        (place / "text").write_text("whole")

    def read(place: Path) -> str:
        try:
            return (place / "text").read_text()
        except OSError as e:
            raise QkvError("none") from e

    both = [threading.Thread(target=lambda: found.append(cache.fetch_entry("one", read, write))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert (len(made), found) == (1, ["whole", "whole"])


def test_only_what_nobody_uses_is_pruned(own_cache: Path) -> None:
    place = encode(on_disk()).file.parent
    (entry,) = cache.list_entries()
    assert entry.in_use
    assert entry.bytes > 100
    assert cache.prune_entries(0) == []
    for marker in place.glob(f"{cache.USER}*"):
        marker.rename(place / f"{cache.USER}999999999")  # a process that is no more
    os.utime(place, (0, 0))
    assert [one.folder for one in cache.prune_entries(30)] == [place]
    assert not place.exists()
