"""`qkv lab`: the list in both languages, one lab, what goes wrong, and what an interruption leaves."""

import json

import pytest

from qkv import labs
from qkv.cli import main
from qkv.labs import lab as frame


def test_the_list_shows_every_lab_in_both_languages_with_its_verdict(capsys):
    assert main(["lab"]) == 0
    out = capsys.readouterr().out
    first = out.splitlines()[0]
    assert f"{len(labs.names())} " in first
    assert "refuted" in first
    assert "不成立" in first
    for name in labs.names():
        assert name in out
        assert all(claim in out for claim in labs.find(name).claim)
    assert main(["lab", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == set(labs.names())


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_one_lab_says_what_it_expects_then_what_came_out(lang, capsys, tmp_path):
    page = tmp_path / "page.html"
    args = ["lab", "stated-numbers", "--seeds", "1", "--out", str(tmp_path / "out"), "--html", str(page)]
    assert main([*args, "--lang", lang]) == 0
    out = capsys.readouterr().out
    found = labs.find("stated-numbers")
    index = 0 if lang == "zh" else 1
    assert found.expected[index] in out
    assert out.index(found.expected[index]) < out.index(("不成立", "refuted")[index])
    assert (tmp_path / "out" / "stated-numbers.json").is_file()
    assert (tmp_path / "out" / "stated-numbers.png").stat().st_size > 5_000
    assert found.claim[index] in page.read_text(encoding="utf-8")


def test_json_is_alone_on_stdout(capsys, tmp_path):
    assert main(["lab", "stated-numbers", "--json", "--seeds", "2", "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "refuted"
    assert len(said["numbers"]) == 2


def test_a_saved_result_is_shown_without_running(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "perform", None)
    assert main(["lab", "order-blind", "--saved", "--out", str(tmp_path)]) == 0
    assert "true only when" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_lab_and_a_missing_folder_are_named(capsys, tmp_path):
    assert main(["lab", "order-blnd"]) == 2
    assert "order-blind" in capsys.readouterr().err
    assert main(["lab", "order-blind", "--html", str(tmp_path / "no" / "x.html")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done_marked(capsys, tmp_path, monkeypatch):
    import dataclasses

    whole = labs.find("stated-numbers")

    def run(seed, **how):
        if seed:
            raise KeyboardInterrupt
        return whole.run(seed, **how)

    monkeypatch.setattr(labs, "find", lambda name: dataclasses.replace(whole, run=run))
    assert main(["lab", "stated-numbers", "--out", str(tmp_path)]) == 130
    assert "partial" in capsys.readouterr().out
    kept = json.loads((tmp_path / "stated-numbers.json").read_text(encoding="utf-8"))
    assert kept["stopped"]
    assert kept["seeds"] == [0]


def test_the_misunderstandings_are_told_in_both_languages(capsys):
    for lang in ("zh", "en"):
        assert main(["lab", "misconceptions", "--lang", lang]) == 0
        out = capsys.readouterr().out
        assert all(e[f"idea_{lang}"] in out for e in labs.misconceptions())
