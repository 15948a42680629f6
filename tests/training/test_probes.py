"""What a watched run reads of its model is what the model says when asked in other ways; and the terminal shows it."""

import dataclasses
import itertools
import json
import math
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv import cli, hub
from qkv.cli.look import print_sheets
from qkv.data.collate import IGNORED
from qkv.errors import QkvError
from qkv.lens import embeddings
from qkv.plots.forms import Table
from qkv.plots.text import make_cell
from qkv.training import assemble, checkpoint, recipes
from qkv.training.losses import mean_loss
from qkv.training.probes import readings, recorder, records
from qkv.training.probes.records import ProbeLog
from qkv.training.run import Check, ProbeSettings, Run, Vocabulary, override_run
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
WATCH = ProbeSettings(times=4, share=1.0, words=("two", "six"), longest=6)
KINDS = {"marian": "encoder-decoder", "llama": "decoder", "bert": "encoder", "prefix": "prefix"}


def line(i: int) -> list[str]:
    return [WORDS[zlib.crc32(f"{i} {j}".encode()) % 8] for j in range(2 + i % 4)]


def splits(family: str) -> Splits:
    if family in ("llama", "gpt2"):
        text = " ".join(" ".join(line(i)) for i in range(300))
        return Splits(text, text[: len(text) // 3])
    pairs = [(" ".join(line(i)), " ".join(reversed(line(i)))) for i in range(60)]
    if family == "bert":
        pairs = [(text, "long" if len(text.split()) > 3 else "short") for text, _ in pairs]
    return Splits(pairs[:50], pairs[50:], ())


def run_of(family: str, *changes: str) -> Run:
    shape = Shape(family, width=16, layers=2, heads=2, ffn=32, context=32)  # type: ignore[arg-type]
    settings = Settings(steps=6, tokens=128, lr=5e-3, warmup=2, precision="fp32", evaluate_every=6)
    check = Check(sentences=2, prompts=("one two", "six"), longest=4)
    run = Run(family, lambda: splits(family), shape, Vocabulary("word", 50), settings, check, watch=WATCH)
    return override_run(run, changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The directory of a watched run of each family, trained when it is first asked for."""

    @cache
    def made(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recorder.Recorder, "is_due", lambda self, step, seconds, total: True)  # no clock decides
            recipes.train(run_of(family), out=folder, device="cpu")
        return folder

    return made


def then(folder: Path, step: int) -> qkv.Model:
    """The model as it was after a step."""
    model = qkv.load(folder, device="cpu")
    model.special = dataclasses.replace(model.special, forbid=tuple({model.special.start} - {None}))  # as in training
    checkpoint.fill(model.core, ProbeLog(folder).weights(step))
    return model


@pytest.mark.parametrize("family", KINDS)
def test_a_record_is_what_the_model_said_then(family: str, runs: Any) -> None:
    folder = runs(family)
    w = ProbeLog(folder)
    assert w.index["kind"] == KINDS[family]
    assert w.steps == list(range(7))
    for step in (w.kept[0], w.kept[-1]):
        r, model = w.read(step), then(folder, step)
        for i, said in enumerate(r.json["texts"]):
            text, parts = said["text"], {n.split(".")[-1] for n in r.names if n.startswith(f"texts.{i}.attention")}
            if family == "bert":
                assert said["output"] == model.classify(text).label
                assert parts == {"encoder"}
                continue
            both = family == "marian"
            found = model.translate(text, beam=1, max_new_tokens=6) if both else model.generate(text, max_new_tokens=6)
            assert said["output"] == found.text
            assert said["chances"] == pytest.approx([math.exp(p) for p in found.logprobs], rel=1e-4)
            assert parts == ({"encoder", "decoder", "cross"} if both else {"decoder"})
            best = [layer[0] for layer in said["cells"][-1]][said["prompt"] - 1 :]
            likeliest = [p for _, p in best]
            assert all(p >= chance - 1e-3 for p, chance in zip(likeliest, said["chances"], strict=True))
            if step:  # greedy takes the likeliest; first weights may like the start token best, which is never said
                assert likeliest == pytest.approx(said["chances"], abs=1e-3)
            assert sum(said["used"]) == len(found.tokens)
            seen = r[f"texts.{i}.attention.decoder"].float().sum(-1) / 255
            assert seen == pytest.approx(torch.ones_like(seen), abs=0.1)  # bytes, each rounded
            if both:
                aligned = r[f"texts.{i}.alignment"]
                assert aligned.shape == (len(said["target"]), len(said["source"]))
                assert aligned.sum(1) == pytest.approx(torch.ones(len(aligned)), abs=1e-4)


@pytest.mark.parametrize("family", KINDS)
def test_the_table_of_teacher_forcing_is_the_loss(family: str, runs: Any) -> None:
    folder = runs(family)
    w = ProbeLog(folder)
    r, model = w.read(w.kept[-1]), then(folder, w.kept[-1])
    a = assemble.assemble(run_of(family), directory=folder, device="cpu")
    batch = readings.choose_example(a, w.index["texts"])
    rows = r.json["teacher"]["rows"]
    assert len(rows) == batch.target.shape[1]
    assert [row["counted"] for row in rows] == (batch.labels[0] != IGNORED).tolist()
    without = batch if batch.classes is None else readings.replace(batch, classes=None, tokens=batch.tokens - 1)
    assert r.json["teacher"]["loss"] == pytest.approx(mean_loss(model.core, [without]), rel=1e-4)
    for row in (row for row in rows if row["counted"]):
        assert row["p"] == pytest.approx(torch.tensor(-row["loss"]).exp().item(), abs=1e-5)
        assert row["chance"] >= row["p"] - 1e-6
    shifted = [(row["label"], later["input"]) for row, later in itertools.pairwise(rows) if row["counted"]]
    if family != "bert":
        assert all(label == given for label, given in shifted)
    sees = r["teacher.mask"].bool()
    full = torch.ones_like(sees)
    free = full.clone().tril() if family in ("marian", "llama") else full
    if family == "prefix":
        given = int(batch.prefix[0])  # type: ignore[index]
        free = full.tril()
        free[:, :given] = True
    assert torch.equal(sees, free)


def test_words_keep_their_vectors_and_neighbours(runs: Any) -> None:
    folder = runs("marian")
    w = ProbeLog(folder)
    model, r = then(folder, w.kept[-1]), w.read(w.kept[-1])
    for i, said in enumerate(r.json["words"]):
        near = embeddings.find_neighbours(model, WATCH.words[i], 8, side="source")
        assert [n["text"] for n in said["near"]] == [n.piece for n in near]
        row = model.core.embed.weight[model.tokenizer.id(WATCH.words[i])]  # type: ignore[union-attr]
        assert torch.equal(r["words.vectors"][i], row.detach())
    assert r["words.cosines"].diagonal() == pytest.approx(torch.ones(2), abs=1e-5)
    assert w.paths().shape == (len(w.steps), 2, 2)


def test_only_the_first_row_is_kept_without_its_padding() -> None:
    from qkv.data import collate

    batch = collate.collate_pairs([([5, 6, 2], [7, 2]), ([5, 6, 7, 8, 2], [9, 9, 9, 2])], pad=0, start=1)
    one = readings.first_row(batch)
    assert (one.source.tolist(), one.target.tolist(), one.labels.tolist()) == ([[5, 6, 2]], [[1, 7]], [[7, 2]])  # type: ignore[union-attr]
    assert one.tokens == 2


def test_a_word_that_the_vocabulary_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"watch\.words: 'nine' is not in this run's vocabulary"):
        recipes.train(run_of("marian", 'watch.words=["nine"]'), out=tmp_path, device="cpu")


def test_a_toml_file_says_what_is_watched(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("one two three four\n" * 50, encoding="utf-8")
    (tmp_path / "a.toml").write_text('[data]\ntext = "t"\n[watch]\ntimes = 5\nwords = ["two"]\n', encoding="utf-8")
    found = recipes.configure(tmp_path / "a.toml", ["watch.share=0.2"])
    assert found.watch == ProbeSettings(times=5, words=("two",), share=0.2)


def test_watch_is_a_keyword_too(tmp_path: Path) -> None:
    run = run_of("marian", "watch.times=0", "training.steps=2")
    recipes.train(run, out=tmp_path / "a", device="cpu")
    with pytest.raises(QkvError, match="recorded nothing"):
        ProbeLog(tmp_path / "a")
    recipes.train(run, out=tmp_path / "b", device="cpu", watch=2)
    assert ProbeLog(tmp_path / "b").steps[0] == 0
    assert json.loads((tmp_path / "b/train/run.json").read_text(encoding="utf-8"))["watch"]["times"] == 2


@pytest.mark.parametrize(("family", "lang"), [("marian", "en"), ("llama", "zh"), ("bert", "en"), ("prefix", "zh")])
def test_any_step_opens_in_the_terminal(family: str, lang: str, runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs(family)
    step = ProbeLog(folder).kept[-1]
    assert cli.main(["look", str(folder), "--step", str(step), "--lang", lang]) == 0
    told = capsys.readouterr().out
    for word in ("W_Q", "FFN", "■", "two:"):
        assert word in told
    rows = {line.split()[0]: line.split() for line in told.split("\n") if line.split()}
    assert "–" not in rows["W_Q"]
    assert cli.main(["look", str(folder), "--step", "0", "--lang", lang]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.split("\n") if line.split()}
    assert rows["W_Q"].count("–") == 4, "no step is in the first record"
    assert ("第" in told) == (lang == "zh")
    assert cli.main(["look", str(folder), "--step", str(step), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["arrays"]["matrices.update"]) == (step, [len(ProbeLog(folder).index["matrices"])])


def test_what_moved_and_what_did_not_is_one_table(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs("marian")
    assert cli.main(["look", str(folder), "--moved", "0", "1", "--lang", "en"]) == 0
    told = capsys.readouterr().out
    count = len(ProbeLog(folder).index["matrices"])
    assert f"a forward pass at step 0: 0 of {count} tensors changed" in told
    assert "from step 0 to step 1" in told
    assert cli.main(["look", str(folder), "--moved", "0", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forward"] == 0
    assert all(m["moved"] > 0 for m in found["moved"] if m["part"] in ("W_Q", "W_K", "W_V", "W_O", "FFN"))
    assert len(found["words"]) == 10


def test_a_forward_pass_that_writes_to_weights_is_caught(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:

    folder = runs("marian")
    model, true = qkv.load(folder, device="cpu"), records.states

    def writing(core: Any, batch: Any) -> Any:
        core.embed.weight.data[3] += 1e-3
        return true(core, batch)

    monkeypatch.setattr(records, "states", writing)
    assert records.count_forward_changes(model.core)[0] == 1


@pytest.mark.parametrize("family", ["llama", "gpt2"])  # GPT-2's adapters of q, k and v are stored as one
def test_adapters_of_any_step_are_looked_at_beside_their_base(
    family: str, runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, folder = runs(family), tmp_path
    words = ["training.lora.rank=2", 'training.lora.targets=["*.attn.*"]', 'training.lora.also=["*final_norm*"]']
    adapting = dataclasses.replace(run_of(family, *words, "training.lr=0.1"), base=str(base))
    recipes.train(adapting, out=folder, device="cpu")
    first, last = ProbeLog(folder).kept[0], ProbeLog(folder).kept[-1]
    said = {step: hub.load_step(folder, step, device="cpu") for step in (first, last)}
    begun = qkv.load(base, device="cpu")
    rows = torch.tensor([begun.ids("one two three")])
    assert torch.equal(said[first](rows).logits, begun(rows).logits), "adapters begin as nothing"
    assert not torch.allclose(said[last](rows).logits, begun(rows).logits, atol=1e-3)
    for name, tensor in ProbeLog(folder).weights(last).items():
        if name.endswith(".a"):
            path, b = name[:-2], ProbeLog(folder).weights(last)[f"{name[:-2]}.b"]
            moved = said[last].core.get_submodule(path).weight - begun.core.get_submodule(path).weight
            assert torch.allclose(moved, 8.0 * b @ tensor, atol=1e-5)  # alpha 16 by rank 2
    assert cli.main(["look", str(folder), "--step", str(last), "one two", "-n", "4", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)["scenes"][0]["output"]
    assert out == said[last].generate("one two", max_new_tokens=4).text.strip()
    assert cli.main(["look", str(folder), "--moved", str(first), str(last), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forward"] == 0
    assert {m["name"].rpartition(".")[2] for m in found["moved"] if "norm" not in m["name"]} == {"a", "b"}
    norm = next(n for n in ProbeLog(folder).weights(last) if "final_norm" in n)
    assert torch.equal(said[last].core.get_parameter(norm), ProbeLog(folder).weights(last)[norm])
    assert not torch.equal(said[last].core.get_parameter(norm), begun.core.get_parameter(norm))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_adapters_that_have_learnt_nothing_yet_load(family: str, runs: Any, tmp_path: Path) -> None:
    adapting = dataclasses.replace(run_of(family, "training.lora.rank=2"), base=str(runs(family)))
    assemble.assemble(adapting, device="cpu").model.save(tmp_path)
    begun, rows = qkv.load(runs(family), device="cpu"), torch.tensor([[3, 4, 5]])
    assert torch.equal(qkv.load(tmp_path, device="cpu")(rows).logits, begun(rows).logits)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--moved", "0", "77"], "no weights were kept at step 77 (the nearest:"),
    ],
)
def test_a_step_that_is_not_there_is_told(
    args: list[str], told: str, runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["look", str(runs("marian")), *args]) == 2
    assert told in capsys.readouterr().err


def test_the_nearest_recorded_step_is_taken_and_said(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs("marian")
    last = ProbeLog(folder).steps[-1]
    shown = []
    for step in (last, last + 70):
        assert cli.main(["look", str(folder), "--step", str(step)]) == 0
        shown.append(capsys.readouterr())
    assert shown[0].out == shown[1].out
    assert f"step {last}, the nearest" in shown[1].err
    assert shown[0].err == ""


def test_a_text_is_read_by_the_model_of_that_step(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs("marian")
    for step in (0, ProbeLog(folder).kept[-1]):
        assert cli.main(["look", str(folder), "--step", str(step), "one two", "-n", "6", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)["scenes"][0]["output"]
        assert said == then(folder, step).translate("one two", max_new_tokens=6).text


def test_a_text_asked_for_while_it_learns_is_watched_from_then_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(recorder.Recorder, "is_due", lambda self, step, seconds, total: True)

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "watch" and event["step"] == 2:
            w = ProbeLog(tmp_path)
            for text in ("one " * 30, w.index["texts"][0], "three  one nine"):  # too long to read, watched anyway, new
                w.request_text(text)

    recipes.train(run_of("marian"), out=tmp_path, device="cpu", report=hear)
    w = ProbeLog(tmp_path)
    then = {n: [row["text"] for row in w.read(n).json["texts"]] for n in w.steps}
    plain = list(w.index["texts"])
    assert [then[n] for n in (0, 1, 2)] == [plain] * 3
    new = [text for text in then[3] if text not in plain]
    assert new == ["three one nine"]
    assert then[3] == then[6]
    row = next(row for row in w.read(6).json["texts"] if row["text"] == new[0])
    assert row["unknown"] == ["nine"]
    assert f"texts.{then[6].index(new[0])}.alignment" in w.read(6).names


def test_a_wish_that_cannot_be_is_told_and_the_oldest_goes(tmp_path: Path, runs: Any) -> None:
    w = ProbeLog(runs("marian"))
    for wanted in ("", " \n", "x" * 121):
        with pytest.raises(QkvError, match="1 to 120 characters"):
            w.request_text(wanted)
    for wanted in ("one", "two", "one", "three", "four"):
        w.request_text(wanted)
    assert w.requests == ("four", "three", "one")
    (w.folder / "wishes.json").write_text("{", encoding="utf-8")
    assert w.requests == ()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('watch.words=[" "]', "watch.words: found an empty word"),
        ('watch.texts=["one", ""]', "watch.texts: '' has 1 tokens, expected 1 to 30"),
        (f'watch.texts=["{"one " * 31}"]', "has 32 tokens, expected 1 to 30"),
    ],
)
def test_what_cannot_be_watched_is_told_before_step_1(setting: str, told: str) -> None:
    with pytest.raises(QkvError, match=re.escape(told)):
        readings.make_recorder(assemble.assemble(run_of("marian", setting), device="cpu"))


def test_texts_of_validation_that_are_too_long_are_not_watched() -> None:
    long = [("one " * 31, "two"), ("one two", "two one")]
    run = dataclasses.replace(run_of("marian"), splits=lambda: Splits(splits("marian").train, long, ()))
    found = readings.make_recorder(assemble.assemble(run, device="cpu"))
    assert found is not None
    assert found.about["texts"] == ["one two"]


def test_a_vocabulary_of_bytes_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_sheets([Table("x", [[make_cell("a\x1b[31mb\r"), make_cell("行\n　二")]])])
    assert capsys.readouterr().out.split() == ["x", "a\\x1b[31mb\\r", "行⏎", "二"]


def test_readouts_of_a_text_want_a_text(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--show", "lens"], ["--word", "two"], ["--html", "x.html"]):
        assert cli.main(["look", str(runs("marian")), "--step", "0", *more, "--lang", "en"]) == 2
        assert "TEXT is missing" in capsys.readouterr().err
