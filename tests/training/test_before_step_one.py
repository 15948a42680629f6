"""What would end a run late, or spoil something, is told before its first step; what it can go on with, it goes on."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv import hub
from qkv.cli import main
from qkv.devices import parse_device
from qkv.errors import QkvError
from qkv.training import assemble, evaluation, own_data, recipes, session
from qkv.training.compatibility import leaves_room

SMALL = ["model.width=16", "model.layers=1", "model.ffn=32", "model.heads=2", "tokenizer.size=300", "training.steps=2"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("".join(f"one {i}\tzwei {i}\n" for i in range(60)), encoding="utf-8")
    return tmp_path


def talk(question: str, answer: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})


@pytest.mark.parametrize("family", ["marian", "prefix", "gpt2"])
def test_a_held_out_source_that_does_not_fit_counts_as_an_empty_answer(family: str, here: Path) -> None:
    long = [(f"{'many ' * 90}{i}", "zu lang") for i in range(3)]
    rows = [("one two", "eins"), long[0], ("three", "drei"), *long[1:]]
    lines = {side: [f"{a}\t{b}" if family != "gpt2" else talk(a, b) for a, b in some]
             for side, some in (("train", [(f"one {i}", f"zwei {i}") for i in range(40)]), ("held", rows))}  # fmt: skip
    end = "jsonl" if family == "gpt2" else "tsv"
    for side, some in lines.items():
        (here / f"{side}.{end}").write_text("\n".join(some) + "\n", encoding="utf-8")
    told: list[dict[str, Any]] = []
    words = [*SMALL, f"data.valid_file=held.{end}", f"data.test_file=held.{end}", f"model.family={family}",
             "model.context=48", "check.sentences=5"]  # fmt: skip
    done = recipes.train(f"train.{end}", overrides=words, out=here / "r", device="cpu", report=told.append)
    notes = [e["text"] for e in told if e["kind"] == "note"]
    assert any(n.startswith("6 of 10 held-out sources do not fit into the context of 48") for n in notes), notes
    said = (here / "r" / "train" / "test.hyp").read_text(encoding="utf-8").split("\n")
    assert said[1] == said[3] == said[4] == ""
    assert recipes.estimate(f"train.{end}", overrides=words, device="cpu").steps == 2  # rehearses what fits
    assert (done.test["loss"] > 0, done.outcome.steps) == (True, 2)


@pytest.mark.parametrize(("name", "margin"), [("demo-lm", 2), ("demo", 0)])
def test_what_fits_leaves_room_to_begin(name: str, margin: int) -> None:
    model = qkv.load(name, device="cpu")
    context = model.core.encoder.spec.longest if model.encoder_decoder else model.spec.context
    each = len(model.ids("我 我")) - len(model.ids("我"))
    n = next(n for n in range(1, 10_000) if len(model.ids(" ".join(["我"] * n))) + margin > (context or 0))
    assert each >= 1
    assert leaves_room(model, " ".join(["我"] * (n - 1)))
    assert not leaves_room(model, " ".join(["我"] * n))


@pytest.mark.parametrize(
    ("words", "said"),
    [(["training.metric=foo"], "gives no 'foo'"), (["training.metric=bleu", "model.family=bert"], "gives no 'bleu'"),
     (["training.metric=label_accuracy"], "gives no 'label_accuracy'"),
     (["training.metric=bleu", "check.sentences=0"], "check.sentences: found 0")],
)  # fmt: skip
def test_a_metric_that_no_evaluation_gives_is_named_before_any_write(words: list[str], said: str, here: Path) -> None:
    with pytest.raises(QkvError, match=said):
        recipes.train("a.tsv", overrides=[*SMALL, *words], out=here / "r", device="cpu")
    assert not (here / "r").exists()


def test_pairs_whose_words_are_hidden_are_judged_by_their_loss(here: Path) -> None:
    path = here / "m.toml"
    path.write_text('[data]\ntsv = "a.tsv"\n[model]\nfamily = "bert"\n', encoding="utf-8")
    for run, metric in (
        (own_data.from_files([Path("a.tsv")]), "exact_match"),  # its targets are of few words
        (own_data.from_files([Path("a.tsv")], ["model.family=bert"]), "loss"),
        (own_data.from_files([Path("a.tsv")], ["model.family=bert", "training.metric=bleu"]), "bleu"),
        (own_data.from_files([Path("a.tsv")], ["objective=masked"]), "loss"), (own_data.from_toml(path), "loss"),
        (own_data.from_files([Path("a.tsv")], ["model.family=bert", "objective=pairs"]), "exact_match"),
        (own_data.from_toml(path, ["model.width=32"]), "loss"),
        (own_data.from_toml(path, ["model.family=marian"]), "exact_match"),
    ):  # fmt: skip
        assert run.training.metric == metric
    assert recipes.train("a.tsv", overrides=[*SMALL, "model.family=bert"], device="cpu").outcome.steps == 2


@pytest.mark.parametrize("prompt", ["", " ", "word " * 90])
def test_a_prompt_that_cannot_be_continued_is_told(prompt: str, here: Path) -> None:
    (here / "t.txt").write_text("some words here and there. " * 200, encoding="utf-8")
    words = [*SMALL, "model.context=32", f"check.prompts={json.dumps([prompt])}"]
    with pytest.raises(QkvError, match=r"check\.prompts: found"):
        recipes.train("t.txt", overrides=words, out=here / "r", device="cpu")
    assert not (here / "r").exists()


@pytest.mark.parametrize(
    "word",
    ["training.lr=nan", "training.lr=-1", "training.lr=inf", "training.betas=[1.5,2]", "training.betas=[nan,0.9]",
     "training.clip=nan", "training.rdrop=nan", "training.weight_decay=nan", "training.spike=nan",
     "training.seconds=inf", "training.ema=1", "training.evaluate_every=-2", "training.save_every=-1",
     "training.threads=-1", "training.threads=99999", "data.valid=-3", "data.test=-1", "data.columns=[-1,0]",
     "data.columns=[0,0]", "training.seed=99999999999999999999999", "model.width=0", "model.heads=0", "model.ffn=-1",
     "model.layers=0", "model.context=0", "model.groups=-1", "model.dropout=1", "model.dropout=1.5",
     "model.attention_dropout=1", "model.dropout=nan", "check.beam=0", "check.sentences=-1", "check.longest=-3",
     "check.samples=-1", "check.length_penalty=nan", "check.ngrams=-2"],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_named(word: str) -> None:
    key = word.partition("=")[0]
    with pytest.raises(QkvError, match=rf"^{key}: found .*, expected "):
        recipes.configure("a.tsv", [word])


def test_heads_divide_the_width_where_there_are_any() -> None:
    with pytest.raises(QkvError, match="which 3 heads do not divide; use 18"):
        recipes.train("a.tsv", overrides=[*SMALL, "model.heads=3"], device="cpu")
    assert recipes.train("a.tsv", overrides=[*SMALL, "model.heads=3", "model.family=lstm"], device="cpu").outcome.steps


def test_a_model_that_is_no_run_is_not_written_over(here: Path) -> None:
    model = here / "model"
    hub.load("demo-lm", device="cpu").save(model)
    before = (model / "model.safetensors").read_bytes()
    (here / "t.txt").write_text("some words here and there. " * 200, encoding="utf-8")
    adapter = here / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}", encoding="utf-8")
    for words, out in (([], model), ([f"base={model}"], model), ([], adapter)):
        with pytest.raises(QkvError, match="contains a model that is not a run"):
            recipes.train("t.txt", overrides=[*SMALL, *words], out=out, device="cpu")
        assert not (out / "train").exists()
    assert (model / "model.safetensors").read_bytes() == before


def test_a_quarantine_takes_no_other_file_s_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "b.tsv").write_text((here / "a.tsv").read_text(encoding="utf-8") + "bad\n", encoding="utf-8")
    before = (here / "b.tsv").read_bytes()
    words = ["train", "b.tsv", *SMALL, "data.on_bad_row=quarantine"]
    assert main([*words, "data.quarantine=b.tsv", "--out", "r"]) == 2
    assert "is not a quarantine file" in capsys.readouterr().err
    assert (here / "b.tsv").read_bytes() == before
    for out in ("r1", "r2"):  # an earlier quarantine is ours
        assert main([*words, "data.quarantine=q.jsonl", "--out", out]) == 0
    assert json.loads((here / "q.jsonl").read_text(encoding="utf-8"))["line"] == 61


def test_half_of_a_character_is_a_bad_row(here: Path) -> None:
    rows = [json.dumps({"source": f"one {i}", "target": "x"}) for i in range(20)]
    (here / "s.jsonl").write_text("\n".join([*rows, '{"source": "a\\uD800", "target": "b"}']), encoding="utf-8")
    with pytest.raises(QkvError, match=r"s\.jsonl:21: contains half of a character"):
        recipes.train("s.jsonl", overrides=SMALL, device="cpu")
    (here / "w.jsonl").write_text("\n".join([*rows, '{"source": "a\\ud83d\\ude00 \\\\ud800", "target": "b"}']))
    assert recipes.train("w.jsonl", overrides=SMALL, device="cpu").outcome.steps == 2


def test_an_early_end_and_nothing_left_to_do_are_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "a.tsv", *SMALL[:-1], "training.steps=30", "training.evaluate_every=1", "training.patience=1",
             "training.warmup=3", "training.lr=0", "training.average=0", "--out", "r"]  # fmt: skip
    assert main(words) == 0
    out, _ = capsys.readouterr()
    assert "ended early, as evaluations got no better (training.patience)" in out
    assert main([*words, "--resume", "auto"]) == 0
    assert "nothing is left to do: training.patience ended this run" in capsys.readouterr().err
    assert main(["train", "a.tsv", *SMALL, "--out", "s"]) == 0
    assert "ended early" not in capsys.readouterr().out
    assert main(["train", "a.tsv", *SMALL[:-1], "training.steps=3", "--out", "s", "--resume", "auto"]) == 0
    assert "nothing is left" not in capsys.readouterr().err


def test_a_changed_shard_is_found_before_it_is_learnt(here: Path) -> None:
    (here / "t.txt").write_text("some words here and there. " * 400, encoding="utf-8")
    assert main(["data", "pack", "t.txt", "--model", "demo-lm", "--out", "pack", "-q"]) == 0
    assert recipes.train("pack", overrides=[*SMALL[:4], "training.steps=2"], device="cpu").outcome.steps == 2
    ids = bytearray((here / "pack" / "tokens.bin").read_bytes())
    ids[0] ^= 1
    (here / "pack" / "tokens.bin").write_bytes(ids)
    with pytest.raises(QkvError, match="SHA-256"):
        recipes.train("pack", overrides=[*SMALL[:4], "training.steps=2"], device="cpu")


def test_a_device_that_is_not_there_and_a_place_that_cannot_be_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(QkvError, match=r"has \d of these"):
        parse_device("cuda:1" if torch.cuda.device_count() == 1 else "cuda:99")
    assert main(["train", "a.tsv", *SMALL, "--out", "/proc/none/r"]) == 2
    assert "this was not expected" not in capsys.readouterr().err
    assert main(["train", "a.tsv", *SMALL, "model.width=100000000", "--out", "r"]) == 2
    assert "GB are free; make model.width" in capsys.readouterr().err


def test_settings_may_come_before_the_file_and_other_forms_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SMALL, "a.tsv", "--out", "r"]) == 0
    (here / "c.csv").write_text("a,b\n", encoding="utf-8")
    assert main(["train", "c.csv"]) == 2
    assert "c.csv: 1 rows are too few to hold some out for validation" in capsys.readouterr().err
    assert main(["train", "a.tsv", "data.valid=0"]) == 2
    assert "data.valid: found 0, expected 1 or more" in capsys.readouterr().err
    assert main(["train", "a.tsv", "data.columns=[0]"]) == 2
    assert "expected a list such as [0, 1]" in capsys.readouterr().err


def test_one_label_and_a_vocabulary_that_yields_are_told(here: Path) -> None:
    rows = [f'{{"text": "one {i}", "label": "x"}}\n' for i in range(60)]
    (here / "l.jsonl").write_text("".join(rows), encoding="utf-8")
    told: list[dict[str, Any]] = []
    recipes.train("l.jsonl", overrides=SMALL, out=here / "r", device="cpu", report=told.append)
    assert any("one label, 'x'" in e.get("text", "") for e in told)
    recipes.train("a.tsv", overrides=SMALL, out=here / "p", device="cpu")
    recipes.train("a.tsv", overrides=["base=p", "training.steps=1"], device="cpu", report=told.append)
    assert not any("kind and size" in e.get("text", "") for e in told)
    recipes.train("a.tsv", overrides=["base=p", *SMALL[4:]], device="cpu", report=told.append)
    assert any("vocabulary is that of p: kind and size" in e.get("text", "") for e in told)


def test_conversations_are_checked_as_they_are_learnt(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [talk(f"how are you, {i}", "well") for i in range(10)]
    (here / "t.jsonl").write_text("\n".join([*rows, rows[3]]) + "\n", encoding="utf-8")
    held = [rows[2], talk("something new under the sun", "yes indeed")]
    (here / "v.jsonl").write_text("\n".join(held) + "\n", encoding="utf-8")
    assert main(["data", "check", "t.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "11 good rows, 0 bad, 0 blank, 1 repeated" in out
    assert "t.jsonl:11: duplicate rows; the first repeats line 4" in out
    assert main(["data", "check", "t.jsonl", "--eval", "v.jsonl"]) == 1
    assert "1 of 2 held-out rows occur in training too, the first at t.jsonl:3" in capsys.readouterr().out
    robot = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]})
    (here / "b.jsonl").write_text("\n".join([*rows, robot, '{"text": "c"}']) + "\n", encoding="utf-8")
    assert main(["data", "check", "b.jsonl"]) == 1
    out = capsys.readouterr().out
    assert "b.jsonl:11: no message has the role 'assistant'" in out
    assert "(found: 'user', 'robot')" in out
    assert "b.jsonl:12: no key 'messages'" in out


@pytest.mark.parametrize("part", ["tensor", "state", "name"])
def test_a_spoilt_checkpoint_is_told_and_not_gone_on_with(part: str, here: Path) -> None:
    recipes.train("a.tsv", overrides=SMALL, out=here / "r", device="cpu")
    path = here / "r" / "train" / "last.safetensors"
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    at = {"tensor": (header + len(whole)) // 2, "state": whole.index(b'\\"step\\": 2') + 10,
          "name": whole.index(b'"weight:') + 8}[part]  # fmt: skip
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(QkvError, match="corrupted since it was saved"):
        recipes.train("a.tsv", overrides=[*SMALL[:-1], "training.steps=4"], out=here / "r", device="cpu", resume=True)
    path.write_bytes(whole)
    words = [*SMALL[:-1], "training.steps=4"]
    done = recipes.train("a.tsv", overrides=words, out=here / "r", device="cpu", resume=True)
    assert done.outcome.steps == 4


def test_steps_that_were_asked_for_are_recorded_without_any_others(here: Path) -> None:
    words = [*SMALL[:-1], "training.steps=5", "watch.steps=[2]"]
    recipes.train("a.tsv", overrides=words, out=here / "r", device="cpu")
    found = sorted(path.stem for path in (here / "r" / "train" / "watch").glob("*.safetensors"))
    assert found == ["000000", "000002", "000005"]


def test_a_start_that_was_cut_off_is_a_run_and_begins_anew(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setattr(session.run_dir, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            recipes.train("a.tsv", overrides=SMALL, out=here / "r", device="cpu")
    assert recipes.train("a.tsv", overrides=SMALL, out=here / "r", device="cpu").outcome.steps == 2
    with monkeypatch.context() as m:
        m.setattr(session.loop, "train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            recipes.train("a.tsv", overrides=SMALL, out=here / "s", device="cpu")
    assert recipes.train("a.tsv", overrides=SMALL, out=here / "s", device="cpu").outcome.steps == 2


def test_a_dry_run_in_chinese_lines_its_columns_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "a.tsv", *SMALL, "training.precision=fp32", "--dry-run", "--lang", "zh"]) == 0
    rows = [line[2:] for line in capsys.readouterr().out.splitlines() if line.startswith("# ")]
    assert any("每步" in row for row in rows)
    for row in rows:
        name, _, rest = row.partition(" ")
        assert sum(1 + (c > "\u2e7f") for c in name) + 1 + len(rest) - len(rest.lstrip()) == 23


def test_a_file_that_is_no_text_is_called_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "b.txt").write_bytes(bytes([3, 7, 255, 143, 65, 10]) * 40)
    (here / "w.txt").write_bytes("café au lait\n".encode("cp1252") * 40)
    for name, said in (("b.txt", "nor text in another known encoding"), ("w.txt", "looks like CP1252")):
        assert main(["data", "check", name]) == 1
        assert said in capsys.readouterr().out
    recipes.train("a.tsv", overrides=SMALL, out=here / "runs" / "r", device="cpu")
    assert main(["runs", "runs", "--png", "x.txt"]) == 2
    assert "expected a name that ends in .png, .svg or .pdf" in capsys.readouterr().err


@pytest.mark.parametrize("words", [5, 200])  # fewer than a window, and several
def test_a_text_is_tested_on_a_text_of_its_own(words: int, here: Path) -> None:
    (here / "book.txt").write_text("the tea and the book are on the table. " * 60, encoding="utf-8")
    (here / "last.txt").write_text(" ".join(["the tea is on the book."] * (words // 5)), encoding="utf-8")
    done = recipes.train("book.txt", overrides=[*SMALL, "data.test_file=last.txt", "model.context=32"], out=here / "r",
                         device="cpu")  # fmt: skip
    ids = done.model.ids((here / "last.txt").read_text(encoding="utf-8"))
    windows = [ids] if len(ids) <= 32 else [ids[i : i + 33] for i in range(0, len(ids) - 32, 33)]
    total, count = 0.0, 0
    for row in windows:
        chances = done.model(torch.tensor([row[:-1]])).logits[0].detach().log_softmax(-1)
        total -= sum(float(chances[i, following]) for i, following in enumerate(row[1:]))
        count += len(row) - 1
    assert done.test["loss"] == pytest.approx(total / count, rel=1e-4)
    assert json.loads((here / "r/train/result.json").read_text(encoding="utf-8"))["test"]["loss"] == done.test["loss"]


def test_a_test_text_of_which_nothing_can_be_judged_is_told(here: Path) -> None:
    (here / "book.txt").write_text("the tea and the book are on the table. " * 60, encoding="utf-8")
    (here / "last.txt").write_text("tea", encoding="utf-8")
    how = [*SMALL, "data.test_file=last.txt", "model.family=bert"]
    a = assemble.assemble(recipes.configure("book.txt", how), device="cpu")
    assert "the test text is too short for this objective: it will not be judged" in a.plan.notes
    assert evaluation.evaluate_test(a) == ({}, [])


def test_a_warm_up_longer_than_the_run_is_told(here: Path) -> None:
    told: list[dict[str, Any]] = []
    recipes.train("a.tsv", overrides=[*SMALL, "training.warmup=2"], device="cpu", report=told.append)
    assert any("training.warmup=2 is as long as the run (2 steps)" in e["text"] for e in told if e["kind"] == "note")
    told.clear()
    recipes.train("a.tsv", overrides=[*SMALL, "training.warmup=1"], device="cpu", report=told.append)
    assert not any("training.warmup" in e["text"] for e in told if e["kind"] == "note")


def test_a_test_text_that_is_trained_on_is_told(here: Path) -> None:
    lines = [f"the tea of the year {n} and its {n * 7 % 31} books are on the table\n" for n in range(60)]
    (here / "book.txt").write_text("".join(lines), encoding="utf-8")
    (here / "last.txt").write_text("".join(lines[:9]), encoding="utf-8")
    for words in ([], ["data.valid_file=other.txt"]):
        (here / "other.txt").write_text("a line that nobody else has in his book, says she\n" * 9, encoding="utf-8")
        (note,) = recipes.configure("book.txt", [*words, "data.test_file=last.txt"]).splits().notes
        assert "last.txt" in note
        assert "9 of 9" in note


@pytest.mark.parametrize("out", ["taken", "taken/deep"])
def test_a_file_where_the_run_should_go_is_told(out: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "taken").write_text("mine", encoding="utf-8")
    assert main(["train", "a.tsv", *SMALL, "--out", out, "--lang", "en"]) == 2
    assert "taken: is a file, and the run needs a directory" in capsys.readouterr().err
    assert (here / "taken").read_text(encoding="utf-8") == "mine"


def test_a_reader_that_goes_away_does_not_end_a_run(here: Path) -> None:
    words = ["-m", "qkv", "train", "a.tsv", *SMALL[:-1], "training.steps=6", "training.evaluate_every=2", "--out", "r"]
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, *words], stdout=write, stderr=write):
        os.close(write)
        os.read(read, 1)
        os.close(read)
    assert json.loads((here / "r/train/result.json").read_text(encoding="utf-8"))["outcome"]["steps"] == 6


def steps_of(run: Path) -> int:
    return json.loads((run / "train" / "result.json").read_text(encoding="utf-8"))["outcome"]["steps"]


@pytest.mark.skipif(os.name == "nt", reason="a shell closes them")
@pytest.mark.parametrize("shut", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_from_the_start_end_no_run(shut: str, here: Path) -> None:
    words = [sys.executable, "-m", "qkv", "train", "a.tsv", *SMALL[:-1], "training.steps=2", "--out", "r"]
    subprocess.run(f"{shlex.join(words)} {shut}", shell=True, check=True)
    assert steps_of(here / "r") == 2
    assert subprocess.run(f"{shlex.join(words)} {shut}", shell=True, check=False).returncode == 2


def test_a_terminal_that_goes_away_does_not_end_a_run(here: Path) -> None:
    pty = pytest.importorskip("pty", reason="there are terminals elsewhere")
    words = ["-m", "qkv", "train", "a.tsv", *SMALL[:-1], "training.steps=6", "training.evaluate_every=2", "--out", "r"]
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=theirs, start_new_session=True):
        os.close(theirs)
        os.read(ours, 1)
        os.close(ours)
    assert steps_of(here / "r") == 6
