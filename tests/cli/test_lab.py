"""`qkv lab`: the list in both languages, one lab, what goes wrong, and what an interruption leaves."""

import json
import re

import pytest

from qkv import labs
from qkv.cli import main
from qkv.labs import lab as frame


def test_the_list_shows_every_lab_on_one_line_in_one_language(capsys):
    assert main(["lab", "--lang", "en"]) == 0
    out = capsys.readouterr().out
    first = out.splitlines()[0]
    assert f"{len(labs.list_names())} " in first
    assert "refuted" in first
    assert "不成立" not in out
    for name in labs.list_names():
        line = next(line for line in out.splitlines() if line.split()[:1] == [name])
        assert str(labs.find_lab(name).claim) in line
        assert re.search(r"\d s  ", line)
    assert main(["lab", "layers", "--lang", "en"]) == 0
    assert 0 < len(capsys.readouterr().out.splitlines()) < 20
    assert main(["lab", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == set(labs.list_names())


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_one_lab_says_what_it_expects_then_what_came_out(lang, capsys, tmp_path):
    page = tmp_path / "page.html"
    args = ["lab", "stated-numbers", "--seeds", "1", "--out", str(tmp_path / "out"), "--html", str(page)]
    assert main([*args, "--lang", lang]) == 0
    out = capsys.readouterr().out
    found = labs.find_lab("stated-numbers")
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

    whole = labs.find_lab("stated-numbers")

    def run(seed, **how):
        if seed:
            raise KeyboardInterrupt
        return whole.run(seed, **how)

    monkeypatch.setattr(labs, "find_lab", lambda name: dataclasses.replace(whole, run=run))
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


def test_several_labs_are_run_and_compared(capsys, tmp_path):
    args = ["lab", "order-blind", "stated-numbers", "--compare", "--out", str(tmp_path), "--lang", "en"]
    assert main(args) == 0
    told = capsys.readouterr()
    assert told.err.count("agrees with") == 2
    assert "2 labs, " in told.out
    assert main(["lab", "order-blind", "stated-numbers", "--saved", "--json", "--out", str(tmp_path)]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["order-blind", "stated-numbers"]


def test_a_run_that_disagrees_with_the_package_exits_with_1(capsys, tmp_path, monkeypatch):
    import dataclasses

    whole = labs.find_lab("stated-numbers")
    run = lambda seed, **how: {**whole.run(seed, **how), "loss": 2.0}  # noqa: E731
    monkeypatch.setattr(labs, "find_lab", lambda name: dataclasses.replace(whole, run=run))
    assert main(["lab", "stated-numbers", "--compare", "--out", str(tmp_path), "--lang", "en"]) == 1
    assert "disagrees" in capsys.readouterr().err


def test_all_exact_labs_are_one_word(capsys, tmp_path, monkeypatch):
    ran = []
    whole = labs.find_lab("stated-numbers")

    def perform(name, lab, **how):
        ran.append(name)
        return frame.Result(name, (0,), 0, (whole.run(0),), whole.judge(frame.Runs((whole.run(0),))), 0.5)

    monkeypatch.setattr(frame, "perform", perform)
    monkeypatch.setattr(labs, "find_lab", lambda name, find=labs.find_lab: dataclasses_kind(find(name), whole))
    assert main(["lab", "--exact", "--out", str(tmp_path), "--lang", "en"]) == 0
    exact = [name for name in labs.list_names() if labs.find_lab(name).kind == "exact"]
    assert ran == exact
    assert f"{len(exact)} labs, {0.5 * len(exact):.1f} s together" in capsys.readouterr().out


def dataclasses_kind(found, whole):
    """A lab of the same kind whose numbers are those of another one."""
    import dataclasses

    return dataclasses.replace(whole, kind=found.kind)


def test_a_page_of_all_labs(capsys, tmp_path):
    page = tmp_path / "all.html"
    assert main(["lab", "--html", str(page), "--lang", "zh"]) == 0
    text = page.read_text(encoding="utf-8")
    assert all(f'id="{name}"' in text for name in labs.list_names() if labs.load_result(name))


def test_the_packages_own_folder_holds_numbers_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(labs, "find_results", lambda: tmp_path)
    assert main(["lab", "stated-numbers", "--json", "--seeds", "1", "--out", str(tmp_path)]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["stated-numbers.json"]
