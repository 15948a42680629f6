"""Notes: English words that are shown in Chinese where somebody reads Chinese, and each has its Chinese ones."""

import ast
import copy
import json
from pathlib import Path

import pytest
import size

from qkv.cli import main
from qkv.cli.train import lines
from qkv.errors import Note


def test_a_note_is_its_english_words_and_keeps_the_chinese_ones() -> None:
    note = Note("two rows", zh="两行")
    assert (note, json.dumps(note), f"{note}!") == ("two rows", '"two rows"', "two rows!")
    assert (copy.deepcopy(note), copy.deepcopy(note).zh) == ("two rows", "两行")
    event = {"kind": "note", "step": 0, "text": note}
    assert (lines(event), lines(event, lambda zh, en: zh)) == (["two rows"], ["两行"])
    assert lines(event | {"text": "bare"}, lambda zh, en: zh) == ["bare"]


def test_each_note_has_its_chinese_words() -> None:
    found = 0
    for path in size.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note":
                zh = next((ast.unparse(k.value) for k in node.keywords if k.arg == "zh"), "")
                assert any("\u4e00" <= c <= "\u9fff" for c in zh), f"{path}:{node.lineno}: {zh or 'nothing'}"
                found += 1
    assert found > 12


def test_a_run_in_chinese_tells_its_notes_in_chinese_and_keeps_them_in_english(
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
