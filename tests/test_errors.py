"""Errors and notes are told in the language of whoever reads them, and kept in English."""

import json
from pathlib import Path

import pytest

from qkv.cli import main


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
        (["train", "a.tsv"], "a.tsv: found 1 column,", "a.tsv：只有一列"),
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
