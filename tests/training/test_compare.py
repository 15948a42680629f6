"""Runs read from their logs and their curves; logs that a crash cut off are read too."""

import json
import math
import os
from pathlib import Path

import pytest

from qkv import files
from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.training import compare, recipes, run_dir
from qkv.training.settings import Settings


def a_run(
    folder: Path, name: str, *, metric: str = "bleu", end: bool = True, values: tuple[float, ...] = (1, 5, 4)
) -> Path:
    directory = folder / name / "train"
    directory.mkdir(parents=True)
    events: list[dict] = []
    for i, value in enumerate(values, 1):
        step = {"kind": "step", "step": i * 10, "loss": 5.0 / i, "tokens_per_second": 100.0, "seconds": i * 2.0}
        best = value == max(values[:i])
        events += [
            step,
            {"kind": "evaluation", "step": i * 10, "epoch": 0, "loss": 4.0 / i, metric: value, "best": best},
        ]
    if end:
        events.append({"kind": "end", "why": "steps", "step": len(values) * 10, "tokens": 3000, "seconds": 7.5})
    text = "".join(json.dumps(e) + "\n" for e in events)
    (directory / "log.jsonl").write_text(text + '{"kind": "step", "st', encoding="utf-8")
    (directory / "run.json").write_text(json.dumps({"training": {"metric": metric}}), encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("row", [
    [1], 3, None, "x", {"kind": [1]}, {"kind": "step", "step": "x"}, {"kind": "end", "step": 30, "seconds": "long"},
    {"kind": "end", "step": 30, "metrics": [1]}, {"kind": "step", "step": 1.5}, {"kind": "end", "step": 30, "why": 3},
])
def test_what_is_no_event_is_left_out(row: object, tmp_path: Path) -> None:
    log = a_run(tmp_path, "one") / "train" / "log.jsonl"
    before = compare.read_run(tmp_path / "one")
    log.write_bytes(json.dumps(row).encode() + b"\n" + b"[" * 100_000 + b"\n" + log.read_bytes())
    assert compare.read_run(tmp_path / "one") == before


def test_settings_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    (a_run(tmp_path, "one") / "train" / "run.json").write_bytes(b"[" * 100_000)
    assert compare.read_run(tmp_path / "one").settings == {}


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_to_a_run_is_one(tmp_path: Path) -> None:
    a_run(tmp_path / "elsewhere", "one")
    a_run(tmp_path / "runs", "two")
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere" / "one")
    assert [path.name for path in compare.find_runs(tmp_path / "runs")] == ["linked", "two"]


def test_settings_that_a_base_overrules_are_none_of_the_run(tmp_path: Path) -> None:
    folder = a_run(tmp_path, "one")
    said = {"model": {"width": 256, "context": 64}, "tokenizer": {"size": 8000, "dropout": 0.1}, "base": "demo"}
    (folder / "train" / "run.json").write_text(json.dumps(said), encoding="utf-8")
    assert compare.read_run(folder).settings == {"model.context": 64, "tokenizer.bpe_dropout": 0.1, "base": "demo"}


def test_a_run_in_numbers(tmp_path: Path) -> None:
    run = compare.read_run(a_run(tmp_path, "one"))
    assert (run.name, run.steps, run.tokens, run.seconds, run.speed) == ("one", 30, 3000, 7.5, 400.0)
    assert (run.metric, run.best, run.loss, run.ended) == ("bleu", 5, pytest.approx(5 / 3), "steps")
    assert run.curve("bleu") == [(10, 1), (20, 5), (30, 4)]
    assert run.curve("bleu", "seconds") == [(2, 1), (4, 5), (6, 4)]
    assert run.curve("train_loss") == [(10, 5.0), (20, 2.5), (30, pytest.approx(5 / 3))]
    assert run.curve("nothing") == []
    assert run.kept == {"loss": 2.0, "bleu": 5}  # of the second evaluation, whose weights are the best
    assert run.metrics == ["loss", "bleu", "train_loss"]


def test_what_a_run_kept_is_what_it_ended_with(tmp_path: Path) -> None:
    folder = a_run(tmp_path, "one")
    path = folder / "train" / "log.jsonl"
    more = '"seconds": 7.5, "weights": "ema", "metrics": {"loss": 1.5, "bleu": 6.5, "signature": "x"}'
    lines = path.read_text(encoding="utf-8").replace('"seconds": 7.5', more)
    path.write_text(lines, encoding="utf-8")
    run = compare.read_run(folder)
    assert (run.best, run.kept) == (6.5, {"loss": 1.5, "bleu": 6.5})
    path.write_text(lines.rpartition("{")[0] + '{"kind": "step", "step": 40, "loss": 1.0}\n', encoding="utf-8")
    assert compare.read_run(folder).best == 5, "it went on"


def test_a_run_that_did_not_end_and_one_without_its_settings(tmp_path: Path) -> None:
    path = a_run(tmp_path, "one", end=False)
    run = compare.read_run(path)
    assert (run.tokens, run.speed, run.ended, run.seconds) == (None, 100.0, "", 6.0)
    (path / "train" / "run.json").write_text("not json", encoding="utf-8")
    assert compare.read_run(path).metric == "loss"
    (path / "train" / "log.jsonl").write_text("[1]\n\n3\n", encoding="utf-8")
    assert compare.read_run(path).steps == 0


def test_an_end_before_a_resumed_part_is_not_the_end(tmp_path: Path) -> None:
    path = a_run(tmp_path, "one")
    with (path / "train" / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"kind": "step", "step": 40, "loss": 1.0, "seconds": 9.0, "tokens_per_second": 50.0}\n')
    run = compare.read_run(path)
    assert (run.steps, run.ended, run.seconds, run.tokens) == (40, "", 9.0, None)


def test_a_test_is_that_of_a_run_that_ended(tmp_path: Path) -> None:
    path = a_run(tmp_path, "one")
    assert compare.read_run(path).test is None
    (path / "train" / "result.json").write_text('{"test": {"bleu": 40.5, "loss": 2}}', encoding="utf-8")
    assert compare.read_run(path).test == 40.5
    (path / "train" / "run.json").write_text('{"training": {"metric": "loss"}}', encoding="utf-8")
    assert compare.read_run(path).test == 2
    with (path / "train" / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"kind": "step", "step": 40, "loss": 1.0, "seconds": 9.0}\n')
    assert compare.read_run(path).test is None, "it went on since then"
    (path / "train" / "result.json").write_text("[]", encoding="utf-8")
    assert compare.read_run(path).test is None


def test_runs_differ_from_what_most_say(tmp_path: Path) -> None:
    said = {
        "a": {"name": "a", "notes": [], "objective": "", "training": {"lr": 0.1, "lora": {"rank": 0}}},
        "b": {"name": "b", "notes": [], "objective": "", "training": {"lr": 0.2, "lora": {"rank": 8}, "new": 1}},
        "c": {"name": "c", "notes": [], "objective": "text", "training": {"lr": 0.2, "lora": {"rank": 0}, "new": 2}},
        "d": None,
    }
    for name, values in said.items():
        a_run(tmp_path, name)
        (tmp_path / name / "train" / "run.json").write_text(json.dumps(values), encoding="utf-8")
    assert compare.differing(compare.summaries(tmp_path)) == [
        {"training.lr": 0.1}, {"training.lora.rank": 8}, {"objective": "text", "training.new": 2}, {},
    ]  # fmt: skip
    assert compare.differing(compare.summaries(tmp_path / "a")) == [{}]


def test_real_training_is_read(tmp_path: Path) -> None:
    done = recipes.train(recipes.configure("demo_lm", smoke=True), out=tmp_path / "a", device="cpu")
    (run,) = compare.summaries(tmp_path)
    assert (run.name, run.steps, run.tokens, run.ended) == ("a", 6, done.outcome.tokens, "steps")
    assert run.best == pytest.approx(done.outcome.metrics["loss"])
    assert run.settings["model.family"] == "llama"
    (tmp_path / "a" / "train" / "log.jsonl").write_text('{"kind": "step", "step": 6, "seconds": 1}\n', encoding="utf-8")
    assert compare.read_run(tmp_path / "a").tokens == done.outcome.tokens, "the checkpoint knows it"


def test_runs_are_found_by_their_logs(tmp_path: Path) -> None:
    for name in ("b/deep", "a", "c"):
        a_run(tmp_path, name)
    assert [run.name for run in compare.summaries(tmp_path)] == ["a", "b/deep", "c"]
    assert [run.name for run in compare.summaries(tmp_path / "a")] == ["a"]
    with pytest.raises(QkvError, match="no such folder"):
        compare.summaries(tmp_path / "x")
    (tmp_path / "x").mkdir()
    with pytest.raises(QkvError, match="no run in it"):
        compare.summaries(tmp_path / "x")


def test_the_metric_that_is_drawn(tmp_path: Path) -> None:
    a_run(tmp_path, "a")
    a_run(tmp_path, "b", metric="accuracy")
    found = compare.summaries(tmp_path)
    assert compare.shared_metric(found) == "loss"
    assert compare.shared_metric(found, "bleu") == "bleu"
    with pytest.raises(QkvError, match="did you mean 'bleu'"):
        compare.shared_metric(found, "blue")


def test_json_is_written_whole_or_not_at_all_and_knows_no_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "a.json"
    write_text_file(path, run_dir.to_json({"loss": math.nan, "rows": [1.5, -math.inf], "word": "书"}))
    assert json.loads(path.read_text(encoding="utf-8")) == {"loss": None, "rows": [1.5, None], "word": "书"}

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "fsync_path", full)
    with pytest.raises(QkvError, match="No space"):
        write_text_file(path, run_dir.to_json({"loss": 2.0}))
    assert json.loads(path.read_text(encoding="utf-8"))["loss"] is None
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_a_metric_that_is_no_number_is_beaten_by_any(metric: str) -> None:
    s = Settings(metric=metric)
    good, bad, gone = ({metric: value} for value in (3.0, math.nan, None))
    for worse in (bad, gone):
        assert s.is_better(good, worse)
        assert not s.is_better(worse, good)
        assert not s.is_better(worse, worse)


def test_from_python_events_are_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    tell = recipes.make_progress(every=60.0)
    for step in (1, 2):
        tell({"kind": "step", "step": step, "of": 9, "loss": 2.0, "lr": 1e-3})
    tell({"kind": "evaluation", "step": 2, "bleu": 41.5, "best": True})
    tell({"kind": "note", "step": 2, "text": "so it is"})
    out, err = capsys.readouterr()
    assert err.splitlines() == ["step 1/9  loss 2.000  lr 1.00e-03", "step 2  bleu 41.5  *", "so it is"]
    assert out == ""
