"""Notes: English words that are shown in Chinese where somebody reads Chinese, and each has its Chinese ones."""

import ast
import copy
import json
from pathlib import Path

import pytest
import size

from qkv.cli import main
from qkv.cli.train import lines
from qkv.errors import Note, QkvError


def test_a_note_is_its_english_words_and_keeps_the_chinese_ones() -> None:
    note = Note("two rows", zh="两行")
    assert (note, json.dumps(note), f"{note}!") == ("two rows", '"two rows"', "two rows!")
    assert (copy.deepcopy(note), copy.deepcopy(note).zh) == ("two rows", "两行")
    event = {"kind": "note", "step": 0, "text": note}
    assert (lines(event), lines(event, lambda zh, en: zh)) == (["two rows"], ["两行"])
    assert lines(event | {"text": "bare"}, lambda zh, en: zh) == ["bare"]


def test_an_error_has_its_chinese_words_where_somebody_reads_chinese(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("one\n", encoding="utf-8")
    Path("b.tsv").write_text("one\teins\n" * 9, encoding="utf-8")
    Path("empty.txt").write_text("", encoding="utf-8")
    Path("m").mkdir()
    for words, en, zh in (
        (["train", "c.tsv"], "c.tsv: no such file or directory; did you mean", "c.tsv：没有这个文件；是不是 '"),
        (["train", "a.tsv"], "a.tsv:1: found 1 column(s)", "a.tsv:1：只有 1 列"),
        (["train", "empty.txt"], "empty.txt: the file is empty", "empty.txt：文件是空的"),
        (["train", "b.tsv", "lr=1"], "did you mean 'training.lr'?", "lr：没有这个键；是不是 'training.lr'"),
        (["train", "b.tsv", "training.lr=x"], "found 'x', expected a number", "training.lr：读到 'x'，应是数"),
        (["generate", "m", "x"], "m: no config.json in this directory", "m：目录里没有 config.json（有：nothing）"),
        (["runs"], "runs: no such folder", "runs：没有这个目录"),
    ):
        assert main([*words, "--lang", "en"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert en in said
        assert main([*words, "--lang", "zh"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("错误：")
        assert zh in said
        assert en not in said
    error = copy.copy(QkvError("two", zh="两"))
    assert (str(error), error.zh, QkvError("one").zh) == ("two", "两", "")


def test_each_note_has_its_chinese_words() -> None:
    found = 0
    for path in size.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note":
                if path.name == "errors.py":  # which makes notes of errors and of no hint
                    continue
                if not any(c.isalpha() for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)
                           for c in str(part.value)):  # fmt: skip
                    continue  # words that were made elsewhere
                zh = next((ast.unparse(k.value) for k in node.keywords if k.arg == "zh"), "")
                assert any("\u4e00" <= c <= "\u9fff" for c in zh), f"{path}:{node.lineno}: {zh or 'nothing'}"
                found += 1
    assert found > 12


def test_each_mistake_is_told_in_chinese_too() -> None:
    """All but those of a spec that is made by hand, so that the core stays small."""
    found = 0
    for path in size.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "QkvError"):
                continue
            if path != size.PACKAGE / "spec.py":
                assert any(k.arg == "zh" for k in node.keywords), f"{path}:{node.lineno}"
                found += 1
    assert found > 500


def test_a_run_in_chinese_prints_chinese_notes_and_keeps_english_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    long = [f"{'long ' * 90}{i}\tlang" for i in range(8)]
    rows = [*(f"one {i}\tzwei {i}" for i in range(40)), "no tab", *long]
    Path("a.tsv").write_text("\n".join(rows), encoding="utf-8")
    small = ["model.width=16", "model.layers=1", "model.ffn=32", "model.heads=2", "model.context=40", "data.valid=4"]
    words = ["train", "a.tsv", *small, "tokenizer.size=300", "training.steps=2", "data.on_bad_row=skip", "--lang", "zh"]
    assert main([*words, "--out", "r"]) == 0
    said = capsys.readouterr().err
    assert "略去了 1 个坏行" in said
    assert "长于 40 个词元" in said
    assert "当作答案为空" in said
    assert "精度 " in said
    assert main([*words, "--out", "r", "--resume", "auto", "training.steps=3", "training.lr=0.5"]) == 0
    again = capsys.readouterr().err
    assert "从第 2 步之后继续" in again
    assert "不会逐位重复" in again
    kept = json.loads(Path("r/train/run.json").read_text(encoding="utf-8"))["notes"]
    assert kept[0].startswith("1 bad row(s) left out")
    assert "longer than 40 tokens" in kept[1]
