"""The list of misunderstandings: complete in both languages, its documents up to date, its commands real."""

import shlex
from pathlib import Path

import pytest

from qkv import labs
from qkv.cli import main

DOCS = Path(__file__).parents[2] / "docs"
ENTRIES = labs.misconceptions()


@pytest.mark.parametrize(("lang", "file"), [("en", "misconceptions.md"), ("zh", "misconceptions.zh-CN.md")])
def test_the_documents_say_what_the_list_says(lang, file):
    assert (DOCS / file).read_text(encoding="utf-8") == labs.document(lang)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e["idea_en"][:40])
def test_an_entry_is_whole(entry):
    assert set(entry) == {"idea_zh", "idea_en", "right_zh", "right_en", "source", "show"}
    assert all(entry.values())
    assert 2 <= entry["right_en"].replace("et al. ", "").count(". ") + 1 <= 3


def test_about_twenty_and_none_twice():
    assert 18 <= len(ENTRIES) <= 30
    assert len({e["idea_en"] for e in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("show", sorted({e["show"] for e in ENTRIES}))
def test_what_shows_it_is_a_command_that_runs(show, capsys):
    program, *args = shlex.split(show)
    assert program == "qkv"
    if args[0] == "lab":  # run by test_labs; here the saved result
        assert labs.find_lab(args[1])
        args = [*args, "--saved"]
    assert main(args) == 0
    assert capsys.readouterr().out
