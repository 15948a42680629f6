"""`qkv look --show` on the bundled models: every readout in a pipe and as JSON; mistakes are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import look, main
from qkv.explore import tables

DEMO, LM = "书和茶都在桌上，我看完了它。", "One, two,"


def told(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["look", *args]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "�" not in out
    return out


def data(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    return json.loads(told(capsys, *args, "--json"))["readouts"]


def test_the_options_name_every_readout() -> None:
    assert set(look.SHOWS) == {*tables.SHOWS, "diff", "experts"}


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["demo-lm", LM, "--show", "parts", "--lang", "en"], ["who pushed three", "1.attn", "= logit", "neuron"]),
        (["demo-lm", LM, "--show", "walk", "--layer", "2", "--head", "3", "--lang", "zh"],
         ["1 分词与编号", "7 线性与 softmax", 't["layers.1.attn.q"][0, 2, 4]', "B H T S [1, 4, 5, 5]"]),
        (["demo-lm", LM, "--show", "choices", "-t", "0.7", "--top-k", "5"], ["temperature 0.7", "top_k 5", "three"]),
        (["demo-lm", LM, "--show", "mask", "--show", "wavefront", "--lang", "en"], ["· future", "the triangle", "11"]),
        (["demo-lm", LM, "--show", "cache", "--lang", "en"], ["allocated", "MQA", "times the work"]),
        (["demo-lm", LM, LM + " three", "--show", "diff", "--lang", "en"], ["how far apart", "layers.3"]),
        (["demo", DEMO, "--show", "parts", "--show", "gradient", "--lang", "zh"], ["谁推高了", "归一化", "梯度"]),
        (["demo", DEMO, "--show", "shift", "--word", "它", "--anchor", "书", "--anchor", "茶", "--lang", "en"],
         ["书 0 … 1 茶", "in the end nearest to"]),
        (["demo", "我爱学习。", "--show", "wavefront", "--lang", "en"], ["the encoder: every word of a layer at once"]),
        (["demo-bert", "我爱茶。", "--lang", "en"], ["labels", "present", "mean of the heads", "guesses after each"]),
        (["demo-lm", LM, "--show", "attention", "--head", "2", "--lang", "en"], ["layers.3.attn, head 2"]),
        (["demo", DEMO, "--show", "walk", "--part", "encoder", "--word", "它", "--key", "书", "--layer", "2"],
         ["encoder.layers.1.attn", "它 → 书 (seen)"]),
        (["demo", DEMO, "--show", "walk", "--show", "mask", "--part", "cross", "--key", "茶"], ["→ 茶 (seen)"]),
        (["demo", "他", "--show", "neighbours", "--lang", "zh"], ["在词向量表里最近的词", "她"]),
        (["demo", "大", "小", "高", "--show", "analogy"], ["大 : 小 = 高 : ?"]),
        (["demo-moe", "我爱学习", "--show", "routes", "--lang", "en"], ["which experts read", "layers.3.moe"]),
        (["demo-bert", "我[MASK]学习", "--show", "lens", "--show", "parts"], ["喜欢", "head.dense.norm.bias"]),
    ],
)  # fmt: skip
def test_every_readout_is_told(args: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, *args)
    for part in parts:
        assert part in out, (part, out)


def test_a_walk_in_chinese_keeps_only_the_names_of_taps(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "demo", DEMO, "--show", "walk", "--lang", "zh")
    assert "(看得见)" in out
    labels = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
    names = {"ids", "embed", "q", "k", "v", "z", "logits"}
    assert {label for label in labels if label.isascii() and "." not in label and "_" not in label} == names


def test_a_walk_begins_at_the_strongest_key(capsys: pytest.CaptureFixture[str]) -> None:
    (seen,) = data(capsys, "demo-lm", LM, "--show", "walk")
    (pattern,) = data(capsys, "demo-lm", LM, "--show", "attention", "--head", "1")
    row = pattern["data"]["weight"][seen["data"]["query"]]
    assert row[seen["data"]["key"]] == max(row)
    assert data(capsys, "demo-lm", LM, "--show", "walk", "--key", "0")[0]["data"]["key"] == 0
    (translated,) = data(capsys, "demo", DEMO, "--show", "walk")  # its first position sees itself alone
    assert translated["data"]["query"] > translated["data"]["key"] > 0
    assert data(capsys, "demo", DEMO, "--show", "walk", "--word", "0")[0]["data"]["query"] == 0


def test_experts_without_a_text_are_counted_over_pairs_of_the_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = data(capsys, "demo-moe", "--show", "experts")
    assert found["data"]["texts"] == len(found["text"]) == 300


def test_experts_are_counted_over_the_lines_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["我爱喝茶。\tI love drinking tea.", "我看完了那本书。"]
    (file := tmp_path / "pairs.tsv").write_text("\n".join(texts), encoding="utf-8")
    found = data(capsys, "demo-moe", str(file), "--show", "experts")[0]["data"]
    assert found["texts"] == 2
    routes = data(capsys, "demo-moe", "我看完了那本书。", "--show", "experts")[0]["data"]
    alone = data(capsys, "demo-moe", "我看完了那本书。", "--show", "routes", "-n", "1")[0]["data"]["layers"]
    whole = sum(alone[0]["load"])  # the text and its start; the end is read here too
    for e, share in enumerate(routes["layers"][0]["share"]):
        assert abs(share * (whole + 2) - alone[0]["load"][e]) < 2.01
    assert sum(found["layers"][0]["share"]) == pytest.approx(1.0)
    assert "tokens read" in told(capsys, "demo-moe", str(file), "--show", "experts", "--lang", "en")


def test_json_holds_the_numbers_of_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    shows = (x for s in ("parts", "walk", "choices") for x in ("--show", s))
    parts, walk, choices = data(capsys, "demo-lm", LM, *shows)
    assert sum(p["push"] for p in parts["data"]["parts"]) == pytest.approx(parts["data"]["logit"], rel=1e-4)
    assert parts["data"]["gap"] < 1e-3
    strips = {s["name"]: s["values"] for s in walk["data"]["steps"]["attention"]}
    assert sum(strips["product"]) == pytest.approx(strips["sum"], rel=1e-5)
    assert sum(strips["pattern"]) == pytest.approx(1.0, abs=1e-5)
    assert choices["data"][0]["top"][0][0].strip() == "three"
    routes = data(capsys, "demo-moe", "我爱学习", "--show", "routes")[0]["data"]
    assert all(sum(layer["load"]) == 2 * len(routes["tokens"]) for layer in routes["layers"])
    two = data(capsys, "demo", "我爱学习。", "茶", "--show", "gradient")
    assert [r["text"] for r in two] == ["我爱学习。", "茶"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["demo-lm", LM, "--show", "routes"], "no experts"),
        (["demo-lm", LM, "--show", "diff"], "two texts"),
        (["demo-lm", LM, "--show", "walk", "--layer", "9"], "layers 1 to 4"),
        (["demo-lm", LM, "--show", "walk", "--head", "9"], "heads 1 to 4"),
        (["demo-lm", LM, "--show", "walk", "--word", "cat"], "not in this text"),
        (["demo-lm", LM, "--show", "walk", "--word", "77"], "position 77"),
        (["demo-lm", LM, "--show", "parts", "--token", "seven eight"], "tokens here"),
        (["demo", "大", "小", "--show", "analogy"], "three words"),
        (["demo-lm", LM, "--show", "walk", "--part", "cross"], "--part cross"),
        (["demo-bert", "我爱", "--show", "cache"], "keeps nothing"),
    ],
)
def test_wrong_questions_are_named(args: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", *args, "--lang", "en"]) == 2
    assert told in capsys.readouterr().err
