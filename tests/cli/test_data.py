"""`qkv data`, `qkv eval` and `qkv runs` as they are typed: words, JSON, exit codes, files."""

import json
import math
import os
import re
import sys
from pathlib import Path

import pytest

from qkv.data import download
from qkv.data.download import File, Set
from qkv.data.text_files import read_raw_lines
from qkv.messages import Message
from qkv.paths import bundled_dir
from qkv.training import recipes

sys.path.insert(0, str(Path(__file__).parent))
from test_cli import run


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_check_ends_with_0_or_1_and_tells_the_line(capsys):
    code, out, err = run(capsys, "data", "check", put("good.tsv", "a\tA\nb\tB\n"))
    assert (code, err) == (0, "")
    assert "2 lines: 2 good rows, 0 bad" in out
    assert out.endswith("nothing to mend\n")
    code, out, _ = run(capsys, "data", "check", put("bad.tsv", "a\tA\nb\n"), "--lang", "zh")
    assert code == 1
    assert "要修  bad.tsv:2：只有 1 列" in out
    code, out, _ = run(capsys, "data", "check", "bad.tsv", "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["files"][0]["bad"]) == (1, False, 1)
    assert found["faults"][0] == {"place": "bad.tsv:2", "text": found["faults"][0]["text"], "count": 1, "broken": True}


def test_check_takes_pairs_keys_columns_and_held_out_files(capsys):
    put("t.zh", "我\n你\n")
    put("t.en", "I\nyou\n")
    code, out, _ = run(capsys, "data", "check", "t.zh", "t.en", "--eval", "t.zh", "--eval", "t.en")
    assert code == 1
    assert "overlap (rows): 2/2" in out
    assert run(capsys, "data", "check", put("a.jsonl", '{"q": "a", "a": "b"}\n'), "--keys", "q,a")[0] == 0
    code, out, _ = run(capsys, "data", "check", put("c.tsv", "a\tb\tc\n"), "--columns", "2,0", "--json")
    assert (code, json.loads(out)["files"][0]["rows"]) == (0, 1)
    assert run(capsys, "data", "check", "c.tsv", "--columns", "2")[0] == 2
    assert run(capsys, "data", "check")[0] == 2
    assert run(capsys, "data", "chek", "c.tsv")[0] == 2


def test_every_finding_is_told_in_chinese(capsys):
    messy = "\ufeffsource\ttarget\r\na\tb\na\tb\n\nx\r\ty\nlost\t\ufffd\n" + "long" * 300 + "\tz\none\n\tempty\n"
    Path("messy.tsv").write_bytes(messy.encode())
    Path("mixed.txt").write_bytes("中文一行\n".encode() + "中文两行\n".encode("gb18030") + b"nul \0 byte\n")
    Path("gb.tsv").write_bytes("中文\t两列\n".encode("gb18030"))
    rows = ['{"text": "a"}', '{"text": 1}', "[1]", "{", '{"txt": "a"}', '{"text": ""}', '{"text": "\\ud800"}']
    files = ["messy.tsv", "mixed.txt", "gb.tsv", put("rows.jsonl", "\n".join(rows)), put("empty.txt", ""),
             put("none.jsonl", '{"q": "a"}\n'), put("pipe.bin", ""), "nowhere.txt"]  # fmt: skip
    Path("pipe.bin").write_bytes(bytes(400))
    code, out, _ = run(capsys, "data", "check", *files, "--eval", "messy.tsv", "--lang", "zh")
    found = [line for line in out.splitlines() if line.startswith(("要修", "留意"))]
    assert (code, len(found) >= 20) == (1, True)
    for line in found:
        told = line.split("：", 1)[1]
        assert sum("\u4e00" <= c <= "\u9fff" for c in told) >= 3 or "JSON" in told, line
        assert "expected" not in told, line
    code, out, _ = run(capsys, "data", "get", "--lang", "zh")
    assert (code, out.count("许可："), "许可：公有领域" in out) == (0, len(download.list_sets()), True)
    assert all(re.search("[一-鿿]{2}", one.about.to("zh")) for one in download.list_sets().values())
    assert all(re.search("[一-鿿]{2}", about.to("zh")) for about in recipes.describe_recipes().values())


@pytest.mark.skipif(not (bundled_dir() / "demo-lm").is_dir(), reason="demo-lm is not bundled")
def test_length_may_be_counted_in_a_models_tokens(capsys):
    put("f.txt", "One, two, buckle my shoe.\n" + "word " * 400 + "\n")
    _, out, _ = run(capsys, "data", "check", "f.txt", "--model", "demo-lm", "--json")
    assert json.loads(out)["files"][0]["over_long"] == 1
    _, out, _ = run(capsys, "data", "check", "f.txt", "--model", "demo-lm", "--longest", "5", "--json")
    assert json.loads(out)["files"][0]["over_long"] == 2


def test_get_lists_sets_and_says_where_they_lie(capsys, monkeypatch, here):
    code, out, _ = run(capsys, "data", "get")
    assert code == 0
    assert "multi30k" in out
    assert "licence: CC BY 2.0 FR" in out
    assert set(json.loads(run(capsys, "data", "get", "--json")[1])) == set(download.list_sets())
    sha = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    one = Set(Message("words"), Message("free"), (File("a/h", "x/h", 5, sha),))
    monkeypatch.setattr(download, "list_sets", lambda: {"s": one})
    (here / "d" / "x").mkdir(parents=True)
    (here / "d" / "x" / ".h.part").write_text("hello", encoding="utf-8")  # fetched before; only to be checked
    code, out, err = run(capsys, "data", "get", "s", "--out", "d")
    assert (code, out) == (0, f"{Path('d/x/h')}\n")
    assert "licence: free" in err
    assert json.loads(run(capsys, "data", "get", "s", "--out", "d", "--json")[1])["s"]["files"] == [str(Path("d/x/h"))]
    assert "no such data set" in run(capsys, "data", "get", "t")[2]


@pytest.mark.skipif(not (bundled_dir() / "demo").is_dir(), reason="demo is not bundled")
def test_eval_of_translations_writes_them_and_prints_signatures(capsys):
    put("s", "我爱学习。\n\n我喜欢茶。\n")
    put("r", "I love studying.\n\nI like tea.\n")
    code, out, err = run(capsys, "eval", "demo", "--bleu", "s", "r", "--out", "deep/hyp")
    assert (code, err) == (0, "")
    hyp = Path("deep/hyp").read_text(encoding="utf-8").split("\n")
    assert len(hyp) == 4
    assert hyp[1] == hyp[3] == ""
    assert out.startswith("BLEU ")
    assert "|tok:13a|smooth:exp|version:" in out
    code, out, _ = run(capsys, "eval", "demo", "--bleu", "s", "r", "--beam", "1", "--tokenize", "char", "--json")
    found = json.loads(out)
    assert "tok:char" in found["signature"]
    assert len(found["hypotheses"]) == 3
    assert run(capsys, "eval", "demo", "--bleu", "s", put("short", "a\n"))[0] == 2


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd here")
def test_pipes_are_files_too(capsys):
    names, ends = list[str](), list[int]()
    for text in ("\ufeff我爱学习。\n我喜欢茶。\n", "I love studying.\nI like tea.\n"):
        out, into = os.pipe()
        os.write(into, text.encode())
        os.close(into)
        names, ends = [*names, f"/dev/fd/{out}"], [*ends, out]
    code, found, err = run(capsys, "eval", "demo", "--bleu", *names, "--json")
    for end in ends:
        os.close(end)
    assert (code, err) == (0, "")
    assert json.loads(found)["bleu"] > 50
    out, into = os.pipe()
    os.write(into, b"a\nb\n")
    os.close(into)
    assert [line.raw for line in read_raw_lines(Path(f"/dev/fd/{out}"))] == [b"a", b"b"]
    os.close(out)


@pytest.mark.skipif(not (bundled_dir() / "demo-lm").is_dir(), reason="demo-lm is not bundled")
def test_eval_of_a_text(capsys):
    put("f.txt", "The cat sat on the mat. " * 40)
    code, out, _ = run(capsys, "eval", "demo-lm", "--ppl", "f.txt", "--window", "64", "--stride", "16", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["window"], found["stride"], found["words"]) == (64, 16, 240)
    code, out, _ = run(capsys, "eval", "demo-lm", "--ppl", "f.txt", "--lang", "zh")
    assert "每字节比特数" in out
    for wrong, says in (
        (["--ppl", "f.txt", "--bleu", "f.txt", "f.txt"], "give one of"), ([], "give one of"),
        (["--ppl", "f.txt", "--out", "x"], "goes with --bleu"),
        (["--ppl", "f.txt", "--beam", "2"], "unknown option 'beam'"),
        (["--ppl", "none.txt"], "none.txt: no such file"),
    ):  # fmt: skip
        code, out, err = run(capsys, "eval", "demo-lm", *wrong)
        assert (code, out) == (2, "")
        assert says in err


@pytest.mark.skipif(not (bundled_dir() / "demo-lm").is_dir(), reason="demo-lm is not bundled")
def test_perplexity_is_per_character_where_words_have_no_spaces(capsys):
    text = "老人走过山坡，孩子看着河边。" * 8
    found = json.loads(run(capsys, "eval", "demo-lm", "--ppl", put("zh.txt", text), "--json")[1])
    nats = found["loss"] * found["tokens"]
    expected = math.exp(nats / (len(text) - 1))  # the first character is given
    assert found["character_perplexity"] == pytest.approx(expected, rel=1e-6)
    out = run(capsys, "eval", "demo-lm", "--ppl", "zh.txt")[1]
    assert f"perplexity per character               {found['character_perplexity']:.3e}" in out
    assert "between spaces" not in out
    out = run(capsys, "eval", "demo-lm", "--ppl", put("en.txt", "One, two, buckle my shoe. " * 8))[1]
    assert "perplexity per word (between spaces)" in out
    assert "per character" not in out


def test_eval_writes_over_neither_source_nor_references(capsys):
    put("s.zh", "a\n")
    for name in ("s.zh", put("s.en", "a\n")):
        Path("deep").mkdir(exist_ok=True)
        code, _, err = run(capsys, "eval", "demo", "--bleu", "s.zh", "s.en", "--out", f"deep/../{name}")
        assert (code, "would be written over" in err, Path(name).read_text(encoding="utf-8")) == (2, True, "a\n")
        Path("s.en").write_text("a\n", encoding="utf-8")


@pytest.mark.skipif(not (bundled_dir() / "demo-bert").is_dir(), reason="demo-bert is not bundled")
def test_eval_of_labels(capsys):
    put("f.tsv", "你喜欢茶吗？\tquestion\n你喜欢苹果吗？\tquestion\n")
    code, out, _ = run(capsys, "eval", "demo-bert", "--accuracy", "f.tsv")
    assert code == 0
    assert out.startswith("accuracy 100.00% (2/2); always the commonest label 100.00%\n")
    found = json.loads(run(capsys, "eval", "demo-bert", "--accuracy", "f.tsv", "--json")[1])
    assert found["labels"] == {"question": {"texts": 2, "right": 2, "said": 2, "f1": 1.0}}
    code, _, err = run(capsys, "eval", "demo-bert", "--accuracy", put("g.tsv", "a\tquestion\nb\tqestion\n"))
    assert code == 2
    assert "g.tsv:2: unknown label 'qestion'; did you mean 'question'" in err


def a_run(name: str, values: tuple[float, ...]) -> None:
    folder = Path("runs", name, "train")
    folder.mkdir(parents=True)
    events = [
        {"kind": "step", "step": i, "loss": v, "seconds": i, "tokens_per_second": 5.0} for i, v in enumerate(values)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events), encoding="utf-8")


def test_runs_are_a_table_and_a_plot(capsys):
    a_run("one", (5.0, 4.0, 3.5))
    a_run("two", (5.5, 3.0, 2.5))
    code, out, err = run(capsys, "runs")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "name  steps  tokens  seconds  tok/s  best  test  loss    ended  other settings"
    assert out.splitlines()[2] == "two   2      –       2        5      –     –     2.5000  –      –"
    assert "train_loss" in out
    assert any("\u2800" < c <= "\u28ff" for c in out)
    code, out, err = run(capsys, "runs", "--html", "deep/r.html", "--x", "seconds", "--lang", "zh", "-q")
    assert code == 0
    assert "⠁" not in out
    assert "<polyline" in Path("deep/r.html").read_text(encoding="utf-8")
    found = json.loads(run(capsys, "runs", "runs", "--json")[1])
    assert [r["name"] for r in found["runs"]] == ["one", "two"]
    assert found["runs"][1]["curve"] == [[0, 5.5], [1, 3.0], [2, 2.5]]
    for name, lr in (("one", 0.1), ("two", 0.2)):
        said = {"training": {"lr": lr, **{f"k{i}": lr for i in range(5)}}}
        Path("runs", name, "train", "run.json").write_text(json.dumps(said), encoding="utf-8")
    rows = run(capsys, "runs", "--lang", "en")[1].splitlines()
    assert rows[1].endswith("  –")
    assert rows[2].endswith("  training.lr=0.2 training.k0=0.2 training.k1=0.2 training.k2=0.2 2 more")
    assert json.loads(run(capsys, "runs", "--json")[1])["runs"][1]["differs"]["training.k4"] == 0.2
    assert run(capsys, "runs", "nowhere")[0] == 2
    assert "no run has it" in run(capsys, "runs", "--metric", "bleu")[2]
    judged = [{"kind": "evaluation", "step": i, "loss": x, "exact_match": y, "best": i == 0}
              for i, (x, y) in enumerate([(0.7, 0.8), (0.6, 0.75)])]  # fmt: skip
    with Path("runs/two/train/log.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(e) + "\n" for e in judged))
    Path("runs/two/train/run.json").write_text('{"training": {"metric": "exact_match"}}', encoding="utf-8")
    assert "  exact_match 0.8, loss 0.7  " in run(capsys, "runs", "--metric", "loss")[1].splitlines()[2]
    assert "  exact_match 0.8  " in run(capsys, "runs", "--metric", "exact_match")[1].splitlines()[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        code, _, err = run(capsys, "runs", "--png", "p.png")
    assert (code, "qkv[plot]" in err, Path("p.png").exists()) == (2, True, False)
    assert run(capsys, "runs", "--png", "p.gif")[0] == 2


def test_runs_are_grouped_by_what_they_learn(capsys):
    for name, task in (("b-labels", "labels"), ("a-pairs", "pairs"), ("c-pairs", "pairs"), ("d-chat", "")):
        a_run(name, (3.0, 2.0))
        said = {"objective": task, "training": {"metric": "loss"}, "chosen": {"training.lr": len(name)}}
        said |= {} if task else {"model": {"family": "gpt2"}, "data": {"messages": ["chat.jsonl"]}}
        Path("runs", name, "train", "run.json").write_text(json.dumps(said), encoding="utf-8")
    code, out, _ = run(capsys, "runs")
    names = [line.split()[0] for line in out.splitlines() if line.startswith(("learns", "a-", "b-", "c-", "d-"))]
    heads = [line for line in out.splitlines() if line.startswith("learns: ")]
    assert (code, heads) == (0, ["learns: pairs", "learns: labels", "learns: chat"])
    assert names == ["learns:", "a-pairs", "c-pairs", "learns:", "b-labels", "learns:", "d-chat"]
    assert "chosen" not in out
    first, second = out.split("learns: labels")
    assert "b-labels" not in first
    assert "pairs" not in second
    told = json.loads(run(capsys, "runs", "--json")[1])["runs"]
    assert [r["task"] for r in told] == ["pairs", "labels", "pairs", "chat"]


def test_runs_without_a_finite_number_are_not_drawn(capsys):
    a_run("one", (math.nan,))
    for how in ((), ("--html", "r.html"), ("--png", "r.png")):
        code, _, err = run(capsys, "runs", *how)
        assert (code, "nothing to draw" in err) == (2, True)
    assert not Path("r.html").exists()
    assert run(capsys, "runs", "--json")[0] == 0


@pytest.mark.skipif(not (bundled_dir() / "demo").is_dir(), reason="demo is not bundled")
def test_distil_lets_a_translator_write_pairs(capsys):
    pairs = put("p.tsv", "我爱学习。\tI love learning.\n他喝茶。\tHe drinks tea.\n")
    code, out, _ = run(capsys, "data", "distil", pairs, "--model", "demo", "--out", "taught", "--nbest", "2")
    rows = [line.split("\t")[0] for line in Path("taught/p.tsv").read_text(encoding="utf-8").splitlines()]
    assert (code, rows) == (0, ["我爱学习。", "我爱学习。", "他喝茶。", "他喝茶。"])
    assert out == f"{Path('taught/p.tsv')}: 2 pairs read, 4 written, 0 without a translation\n"
    put("c.tsv", "tea\t-\t他喝茶。\n")
    code, out, _ = run(capsys, "data", "distil", "c.tsv", "--columns", "2,0", "--model", "demo", "--out", "t", "--json")
    made = [{"files": [str(Path("t/c.tsv"))], "read": 1, "written": 1, "without": 0}]
    assert (code, json.loads(out)) == (0, made)
    assert Path("t/c.tsv").read_text(encoding="utf-8").endswith("\t\t他喝茶。\n")
    put("b.tsv", "-\t他喝茶。\n")
    run(capsys, "data", "distil", "b.tsv", "--model", "demo", "--out", "t", "--back")
    assert Path("t/b.tsv").read_text(encoding="utf-8") == "He drinks tea.\t他喝茶。\n"
    put("q.jsonl", '{"q": "一", "a": "他喝茶。"}\n')
    run(capsys, "data", "distil", "q.jsonl", "--keys", "a,q", "--model", "demo", "--out", "t")
    assert json.loads(Path("t/q.jsonl").read_text(encoding="utf-8"))["a"] == "他喝茶。"


@pytest.mark.skipif(not (bundled_dir() / "demo").is_dir(), reason="demo is not bundled")
def test_distil_says_what_it_needs(capsys):
    pairs = put("p.tsv", "我爱学习。\tI love learning.\n")
    for code, said, *more in (
        (2, "distil needs --out FOLDER", "--model", "demo"),
        (2, "distil needs --model MODEL", "--out", "t"),
        (2, "leave --kind away", "--out", "t", "--model", "demo", "--kind", "tsv"),
        (2, "--nbest 9 needs --beam 9", "--out", "t", "--model", "demo", "--nbest", "9"),
        (2, "translate needs an encoder and a decoder", "--out", "t", "--model", "demo-lm"),
        (2, "expected two numbers", "--out", "t", "--model", "demo", "--columns", "a"),
    ):
        found, _, err = run(capsys, "data", "distil", pairs, *more)
        assert (found, said in err) == (code, True), err
    put("l.jsonl", '{"text": "good", "label": "yes"}\n')
    code, _, err = run(capsys, "data", "distil", "l.jsonl", "--out", "t", "--model", "demo")
    assert (code, "these rows have labels" in err) == (2, True)
    code, _, err = run(capsys, "data", "distil", put("f.txt", "good\n"), "--out", "t", "--model", "demo")
    assert (code, "expected pairs" in err) == (2, True)
    assert not Path("t").exists()
    code, _, err = run(capsys, "data", "distil", pairs, "--out", ".", "--model", "nowhere")  # files before models
    assert (code, "p.tsv: exists already" in err) == (2, True)


@pytest.mark.skipif(not (bundled_dir() / "demo").is_dir(), reason="demo is not bundled")
def test_distil_tells_a_model_of_the_other_direction(capsys):
    pairs = put("p.tsv", "我爱学习。\tI love learning.\n他喝茶。\tHe drinks tea.\n")
    _, _, err = run(capsys, "data", "distil", pairs, "--model", "demo", "--out", "right")
    assert "direction" not in err
    code, _, err = run(capsys, "data", "distil", pairs, "--model", "demo", "--out", "wrong", "--back")
    assert (code, "note: p.tsv: what the model writes is more like what it reads" in err) == (0, True)
    _, _, err = run(capsys, "data", "distil", pairs, "--model", "demo", "--out", "weg", "--back", "--lang", "zh")
    assert "注意：p.tsv：" in err
    assert "方向反了" in err
