"""docs/questions.md: every row names something that answers, and every command runs as it is printed."""

import re
import shlex
from pathlib import Path

import pytest

from qkv import cli, labs

QUESTIONS = Path(__file__).parents[2] / "docs" / "questions.md"
QUICK = 2.0  # seconds: what takes longer is a nightly test


def rows() -> list[tuple[str, str, str]]:
    """Question, panel and command of each row."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    return [(q, panel, command) for q, panel, command in cells if q != "question"]


def slow(command: str) -> bool:
    """Whether a command is a lab that took long when its result was saved."""
    words = shlex.split(command)
    found = labs.load_result(words[2]) if words[1] == "lab" and len(words) == 3 else None
    return bool(found and found["seconds"] > QUICK)


COMMANDS = sorted({command.strip("`") for *_, command in rows()})


def test_every_row_names_a_command_of_ours_and_no_question_stands_twice() -> None:
    asked = [question for question, *_ in rows()]
    assert len(asked) >= 45
    assert len(set(asked)) == len(asked)
    assert all(re.fullmatch(r"`qkv [a-z]+ [^`]+`", command) for *_, command in rows())


def test_a_lab_that_takes_more_than_a_minute_shows_what_was_saved() -> None:
    for command in COMMANDS:
        words = shlex.split(command)
        if words[1] == "lab":
            found = labs.load_result(words[2])
            assert found, command
            assert ("--saved" in words) == (found["seconds"] > 60), (command, found["seconds"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=pytest.mark.nightly) if slow(c) else c for c in COMMANDS], ids=str
)
def test_a_command_answers(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    code = cli.main(shlex.split(command)[1:])
    out, err = capfd.readouterr()
    assert code == 0, command
    assert re.fullmatch(r"(\d+ seeds at a time\n)?", err), (command, err)  # a lab may say so, nothing else
    assert len(out.strip()) > 40, out
    assert "nan" not in out.lower().split()
