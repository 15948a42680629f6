"""Files are whole or as they were, on a full disk too; what the dead left is removed, what the living write is not."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qkv import files
from qkv.errors import QkvError
from qkv.files import make_aside, move_files, replace_dir, replace_file, write_text_file


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_a_file_is_replaced_and_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link"
    write_text_file(path, "one")
    path.chmod(0o600)
    link.symlink_to(path)
    write_text_file(link, "两")
    assert (path.read_text("utf-8"), path.stat().st_mode & 0o777, link.is_symlink()) == ("两", 0o600, True)
    assert names(tmp_path) == ["a.txt", "link"]
    write_text_file(Path(os.devnull), "nothing")  # a device is written as it is
    assert not Path(os.devnull).is_file()


def test_a_limit_on_a_files_size_names_the_missing_bytes(tmp_path: Path) -> None:
    path, limits = tmp_path / "a.txt", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_text("old")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        with pytest.raises(QkvError) as told:
            write_text_file(path, "new" * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told.value.code == "disk-full"
    assert (told.value.message.fields["path"], "20 of 30 bytes" in str(told.value)) == (path, True)
    assert (path.read_text(), names(tmp_path)) == ("old", ["a.txt"])


def test_a_killed_save_leaves_the_old_and_the_next_one_removes_its_remains(tmp_path: Path) -> None:
    write_text_file(tmp_path / "m" / "a", "old")
    code = ("import os, signal, sys; from pathlib import Path; from qkv.files import replace_dir\n"
            "with replace_dir(Path(sys.argv[1])) as d:\n (d / 'a').write_text('new'); "
            "os.kill(os.getpid(), signal.SIGKILL)")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m")], check=False)
    assert (done.returncode, (tmp_path / "m/a").read_text()) == (-signal.SIGKILL, "old")
    strays = [p for p in tmp_path.iterdir() if p.name != "m"]
    assert [files.is_abandoned(stray) for stray in strays] == [True]
    (tmp_path / ".m.original").mkdir()  # somebody's own
    with make_aside(tmp_path / "m") as living, replace_dir(tmp_path / "m") as made:
        assert not files.is_abandoned(living)
        (made / "a").write_text("new")
        (made / "b").write_text("more")
    assert names(tmp_path) == [".m.original", "m", "m/a", "m/b"]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_directory_of_which_one_file_cannot_be_moved_is_as_it_was(
    broken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "c.json"):
        write_text_file(tmp_path / "m" / name, "old")
    real, count = os.replace, iter(range(99))

    def replace(*given: object) -> None:
        if next(count) == broken:
            raise OSError(errno.EIO, "Input/output error")
        real(*given)  # type: ignore[arg-type]

    def save() -> None:
        with replace_dir(tmp_path / "m") as made:
            for name in ("a", "b", "c.json"):
                (made / name).write_text("new")
            monkeypatch.setattr(files.os, "replace", replace)

    with pytest.raises(QkvError, match=r"m: could not be written \(Input/output error\); what"):
        save()
    assert names(tmp_path) == ["m", "m/a", "m/c.json"]
    assert {p.read_text() for p in (tmp_path / "m").iterdir()} == {"old"}


def test_without_links_no_old_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_file(tmp_path / "m" / "a", "old")
    write_text_file(tmp_path / "new" / "a", "new")
    (tmp_path / "new" / "b").mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(files.os, "link", refuse)
    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(OSError, match="permitted"):
        move_files(tmp_path / "new", tmp_path / "m", tmp_path / "back")
    assert (tmp_path / "m/a").read_text() == "old"


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    def write() -> None:
        with replace_file(tmp_path / "r" / "a.txt"):
            shutil.rmtree(tmp_path / "r")

    with pytest.raises(QkvError) as told:
        write()
    assert told.value.code == "folder-gone"


@pytest.mark.skipif(os.name != "posix", reason="limits as POSIX has them")
@pytest.mark.parametrize("left", range(8))
def test_where_few_files_may_be_open_nothing_is_left_behind(left: int, tmp_path: Path) -> None:
    path, limits = tmp_path / "a.txt", resource.getrlimit(resource.RLIMIT_NOFILE)
    path.write_text("old", encoding="utf-8")
    handles = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(handles) + 1 + left, limits[1]))
    try:
        while True:  # gaps below the limit
            handles.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for handle in [handles.pop() for _ in range(min(left, len(handles)))]:
            os.close(handle)
    try:
        write_text_file(path, "new")
        said = "new"
    except (QkvError, OSError):
        said = "old"
    finally:
        for handle in handles:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text(encoding="utf-8") == said
    assert said == "new" or left < 5
