"""Files in parts: one row out for one row in, whoever is killed; and what goes on must be what was begun."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import main, workers
from qkv.files import write_text_file
from qkv.paths import bundled_dir

LINES = ["我爱学习。", "书放在桌上。", "", "我爱喝茶。", "你喜欢茶吗？", "他在学校读书。"]
MANY = 40  # times the lines above, in parts of 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")


def rows_of(out: Path) -> list[dict[str, Any]]:
    """All rows of a batch, in the order of its parts."""
    return [json.loads(line) for part in sorted(out.glob("part-*.jsonl"))
            for line in part.read_text(encoding="utf-8").splitlines()]  # fmt: skip


def write_lines(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def write_objects(path: Path, rows: list[Any]) -> str:
    return write_lines(path, [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows])


@pytest.mark.parametrize("verb", [["translate", "demo"], ["generate", "demo-moe", "-n", "4"], ["embed", "demo-bert"],
                                  ["score", "demo-bert"]], ids=lambda verb: verb[0])  # fmt: skip
def test_a_file_in_parts_holds_what_the_verb_says_to_its_lines(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if verb[0] == "score":
        verb = ["score", "demo-lm"]
    file = write_lines(tmp_path / "in.txt", LINES)
    assert main([*verb, file, "--out", str(tmp_path / "out"), "--rows", "4"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(file).read_bytes())))
    assert main([*verb, "-", "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = rows_of(tmp_path / "out")
    assert [row["row"] for row in found] == [1, 2, 3, 4, 5, 6]
    assert [p.name for p in sorted((tmp_path / "out").glob("part*"))] == ["part-00000.jsonl", "part-00001.jsonl"]
    for key in ("source", "text", "prompt", "tokens"):
        assert [row.get(key) for row in found] == [row.get(key) for row in said]
    assert (found[0].get("embedding") is None) == (verb[0] != "embed")


def test_columns_of_objects_are_read_and_a_bad_row_stops_or_is_kept(tmp_path: Path, capsys: Any) -> None:
    rows = [{"a": "我爱学习。", "b": "I love studying."}, "", {"a": "书"}, "{", {"a": "茶", "b": "tea"}]
    file = write_objects(tmp_path / "in.jsonl", rows)
    command = ["score", "demo", file, "--column", "a", "--column", "b", "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "in.jsonl:3: no key 'b'" in capsys.readouterr().err
    assert main([*command, "--on-bad-row", "keep", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": str(tmp_path / "out"), "rows": 4, "answered": 4, "errors": 2}  # fmt: skip
    found = rows_of(tmp_path / "out")
    assert [row["row"] for row in found] == [1, 3, 4, 5]
    assert ["error" in row for row in found] == [False, True, True, False]
    assert found[3]["text"] == "茶\ttea"


def test_a_row_that_the_verb_refuses_is_found_among_good_ones(tmp_path: Path, capsys: Any) -> None:
    file = write_lines(tmp_path / "in.txt", ["茶\ttea", "书\tbook", "书", "茶\ttea"])
    assert main(["score", "demo", file, "--out", str(tmp_path / "one")]) == 2
    assert "in.txt:3: " in capsys.readouterr().err
    assert not list((tmp_path / "one").glob("part*"))
    assert main(["score", "demo", file, "--out", str(tmp_path / "two"), "--on-bad-row", "keep"]) == 0
    assert ["error" in row for row in rows_of(tmp_path / "two")] == [False, False, True, False]


def test_parquet_is_read_as_objects_are(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow reads Parquet")
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    pq.write_table(pa.table({"text": ["One, two,", "Three, four,"]}), tmp_path / "in.parquet")
    assert main(["score", "demo-lm", str(tmp_path / "in.parquet"), "--out", str(tmp_path / "out")]) == 0
    assert [row["text"] for row in rows_of(tmp_path / "out")] == ["One, two,", "Three, four,"]


@pytest.mark.parametrize(("more", "key"), [(["--beam", "2"], "options.beam"), (["--rows", "3"], "part"), ([], "sha256"),
                                           (["--column", "x"], "column")], ids=lambda x: str(x)[:8])  # fmt: skip
def test_another_batch_in_the_same_place_is_refused_by_name(
    more: list[str], key: str, tmp_path: Path, capsys: Any
) -> None:
    file = write_lines(tmp_path / "in.txt", LINES)
    command = ["translate", "demo", file, "--out", str(tmp_path / "out"), "--beam", "1"]
    assert main(command) == 0
    if not more:
        write_lines(tmp_path / "in.txt", LINES[::-1])
    capsys.readouterr()
    assert main([*command, *more]) == 2
    assert key in capsys.readouterr().err
    assert len(rows_of(tmp_path / "out")) == 6


def test_other_weights_of_a_model_are_another_batch(tmp_path: Path, capsys: Any) -> None:
    model, file = tmp_path / "model", write_lines(tmp_path / "in.txt", LINES[:1])
    shutil.copytree(bundled_dir() / "demo-lm", model)
    command = ["score", str(model), file, "--out", str(tmp_path / "out")]
    assert main(command) == 0
    with (model / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        last = weights.read(1)[0]
        weights.seek(-1, 2)
        weights.write(bytes([last ^ 1]))
    assert main(command) == 2
    assert "model.safetensors" in capsys.readouterr().err


def test_what_belongs_to_files_is_refused_without_out(tmp_path: Path, capsys: Any) -> None:
    assert main(["score", "demo-lm", "hi", "--workers", "2"]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["score", "demo-lm", "--out", str(tmp_path)]) == 2
    assert main(["score", "demo-lm", str(tmp_path / "none.txt"), "--out", str(tmp_path)]) == 2
    assert "none.txt" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--json"], ["--nbest", "2", "--scores"]], ids=str)
def test_workers_print_lines_as_one_process_does(more: list[str], tmp_path: Path, capfd: Any) -> None:
    file = Path(write_lines(tmp_path / "in.txt", LINES * MANY))
    command = [sys.executable, "-m", "qkv", "translate", "demo", "-", *more]
    one, two = (subprocess.run([*command, *crew], input=file.read_bytes(), capture_output=True, check=True).stdout
                for crew in ([], ["--workers", "2"]))  # fmt: skip
    assert len(two.splitlines()) == len(LINES) * MANY * (2 if "--nbest" in more else 1) - ("--nbest" in more) * MANY
    assert two.decode() == one.decode()


@pytest.mark.parametrize("verb", [["embed", "demo-bert"], ["score", "demo-lm"], ["generate", "demo-lm", "-n", "4"]],
                         ids=lambda verb: verb[0])  # fmt: skip
def test_workers_of_every_verb_print_what_it_prints(verb: list[str], monkeypatch: Any, capsys: Any) -> None:
    given, said = "One, two,\n\nThree, four,\n", list[str]()
    for crew in ([], ["--workers", "2"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert main([*verb, "-", *crew]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == 3


def test_lines_before_one_that_cannot_be_answered_are_printed(monkeypatch: Any, capsys: Any) -> None:
    for bad, said in (("书", "line 41: '书' has 0 tabs"), ("\udcff", "line 41: byte 0xff is not UTF-8")):
        given = "\n".join(["茶\ttea"] * 40 + [bad, "茶\ttea"]).encode("utf-8", "surrogateescape")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert main(["score", "demo", "-", "--workers", "2"]) == 2
        found = capsys.readouterr()
        assert len(found.out.splitlines()) == 40
        assert said in found.err


@linux
def test_workers_of_lines_end_with_the_one_who_started_them(tmp_path: Path) -> None:
    file = Path(write_lines(tmp_path / "in.txt", LINES * 2000))
    command = [sys.executable, "-m", "qkv", "translate", "demo", "-", "--workers", "2"]
    with file.open("rb") as given:
        process = subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True, preexec_fn=hear_interrupts)  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline()
        crew = list_workers(process)
        assert len(crew) == 2
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    until = time.monotonic() + 20
    while any(is_running(pid) for pid in crew):
        assert time.monotonic() < until
        time.sleep(0.05)


def hear_interrupts() -> None:
    """A shell lets what it starts in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def list_workers(process: subprocess.Popen[bytes]) -> list[int]:
    """The workers that a process started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_running(pid: int) -> bool:
    """Whether a process goes on; one that ended has no command line, even if nobody asked for its exit code."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def begin(tmp_path: Path, *more: str) -> tuple[subprocess.Popen[bytes], list[str], Path]:
    """A batch of many rows in a process of its own, whose first part is there."""
    file, out = write_lines(tmp_path / "in.txt", LINES * MANY), tmp_path / "out"
    command = [sys.executable, "-m", "qkv", "translate", "demo", file, "--out", str(out), "--rows", "20", *more]
    process = subprocess.Popen(command)
    until = time.monotonic() + 120
    while not (out / "part-00000.jsonl").exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    return process, command, out


def check_all(out: Path) -> None:
    """Each row has its own answer, once, and equal sources have equal translations."""
    found = rows_of(out)
    assert [row["row"] for row in found] == list(range(1, len(LINES) * MANY + 1))
    assert [row["source"] for row in found] == LINES * MANY
    assert len({(row["source"], row["text"]) for row in found}) == len(LINES)


@linux
def test_a_batch_that_is_killed_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    process, command, out = begin(tmp_path)
    process.kill()
    process.wait()
    kept = {part: part.stat().st_mtime_ns for part in out.glob("part-*.jsonl")}
    assert 0 < len(kept) < MANY * len(LINES) // 20
    subprocess.run(command, check=True, timeout=120)
    check_all(out)
    assert all(part.stat().st_mtime_ns == was for part, was in kept.items())


@linux
def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    process, _, out = begin(tmp_path, "--workers", "2")
    crew = list_workers(process)
    assert len(crew) == 2
    os.kill(crew[0], signal.SIGKILL)
    assert process.wait(120) == 0
    check_all(out)


@linux
def test_a_part_whose_workers_keep_dying_is_named(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(workers, "answer_pipe", die)
    file = write_lines(tmp_path / "in.txt", LINES)
    assert main(["score", "demo-lm", file, "--out", str(tmp_path / "out"), "--rows", "3", "--workers", "2"]) == 2
    assert "3 times" in capsys.readouterr().err


def die(job: workers.Job, pipe: Any) -> None:
    """What a worker without memory does."""
    pipe.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def test_two_cannot_fill_one_directory(tmp_path: Path, capsys: Any) -> None:
    from qkv.cli.batches import hold_directory

    file = write_lines(tmp_path / "in.txt", LINES)
    with hold_directory(tmp_path / "out"):
        assert main(["score", "demo-lm", file, "--out", str(tmp_path / "out")]) == 2
    assert "another process" in capsys.readouterr().err
    write_text_file(tmp_path / "out" / "part-00000.jsonl", "")
    assert main(["score", "demo-lm", file, "--out", str(tmp_path / "out")]) == 2
    assert "batch.json" in capsys.readouterr().err


# Ray


@pytest.mark.skipif(find_spec("ray") is None, reason="the package ray is not installed")
def test_an_actor_of_ray_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    process, command, out = begin(tmp_path, "--workers", "2", "--ray")
    actors = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline")
              if path.read_bytes().startswith(b"ray::Worker")]  # fmt: skip
    assert actors
    os.kill(actors[0], signal.SIGKILL)
    assert process.wait(300) == 0
    check_all(out)
    alone = [word if word != str(out) else str(tmp_path / "alone") for word in command if word != "--ray"]
    subprocess.run(alone, check=True, timeout=120)
    for part in out.glob("part-*.jsonl"):
        assert part.read_bytes() == (tmp_path / "alone" / part.name).read_bytes()
