"""Two runs never write into one directory; a lock ends with its process, even a killed one."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import QkvError
from qkv.training import recipes, run_dir
from qkv.training.run import Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

HOLDER = """
import sys, time
from pathlib import Path
from qkv.training import run_dir
with run_dir.lock_directory(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def run_of() -> Run:
    shape = Shape("gpt2", width=16, layers=1, heads=2, ffn=32, context=16)
    return Run("one", lambda: Splits("one two three " * 40, "one two " * 20), shape, Vocabulary("char", 40),
               Settings(steps=2, tokens=64, precision="fp32", threads=1))  # fmt: skip


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "train")]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        for resume in (False, True):
            with pytest.raises(QkvError, match=rf"process {first.pid} is training here.*--out"):
                recipes.train(run_of(), out=tmp_path, device="cpu", resume=resume)
        assert files(tmp_path) == ["train", "train/lock"], "nothing was written beside the first"
    finally:
        first.kill()
        first.wait()
        assert first.stdout is not None
        first.stdout.close()
    assert recipes.train(run_of(), out=tmp_path, device="cpu").outcome.steps == 2


def test_a_run_that_ended_lets_go_and_another_in_its_process_is_refused(tmp_path: Path) -> None:
    with (
        run_dir.lock_directory(tmp_path),
        pytest.raises(QkvError, match=f"process {os.getpid()} "),
        run_dir.lock_directory(tmp_path),
    ):
        pass
    with run_dir.lock_directory(tmp_path):
        assert (tmp_path / "lock").read_text(encoding="utf-8") == str(os.getpid())


def test_where_there_are_no_locks_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run_dir.lock_directory(tmp_path), run_dir.lock_directory(tmp_path):
        pass


def test_a_pipe_among_the_files_of_a_run_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    with pytest.raises(QkvError, match=r"log\.jsonl: is a pipe"), run_dir.lock_directory(tmp_path):
        pass
