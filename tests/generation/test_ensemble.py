"""Translators that search together, as `translate`, `eval`, `distil` and the command line ask them to."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import qkv
from qkv.baselines.lstm import lstm_spec
from qkv.cli import main
from qkv.errors import QkvError
from qkv.model import Model
from qkv.paths import bundled_dir
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training.distil import Teacher

TEXTS = ["我爱学习。", "妈妈买了书。", "书和茶都在桌上，我看完了它。"]
needs_demo = pytest.mark.skipif(not (bundled_dir() / "demo").is_dir(), reason="demo is not bundled")


@pytest.fixture(scope="module")
def models() -> list[Model]:
    """demo, and demo with noise on its weights, so that both translate and neither says the same."""
    found = [qkv.load("demo", device="cpu"), qkv.load("demo", device="cpu")]
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in found[1].core.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * 0.6 * p.std())
    return found


@needs_demo
def test_an_ensemble_says_what_neither_says_alone(models: list[Model]) -> None:
    one, other = models
    alone = [m.translate(TEXTS, beam=3) for m in models]
    first, second = one.translate(TEXTS, beam=3, ensemble=[other]), other.translate(TEXTS, beam=3, ensemble=[one])
    assert [r.tokens for r in first] == [r.tokens for r in second]
    for mine, *theirs in zip(first, *alone, strict=True):
        assert all(mine.score != pytest.approx(r.score, abs=1e-4) for r in theirs)
    same = one.translate(TEXTS, beam=3, ensemble=[one, one])
    assert [r.tokens for r in same] == [r.tokens for r in alone[0]]
    assert [r.score for r in same] == pytest.approx([r.score for r in alone[0]], abs=1e-4)
    aligned = one.translate(TEXTS[0], ensemble=[other], align=True)
    assert aligned.alignment is not None
    assert len(aligned.alignment) == len(aligned.tokens)


@needs_demo
def test_eval_and_distil_ask_the_ensemble(models: list[Model]) -> None:
    one, others = models[0], models[1:] * 3  # enough of them to outvote it
    said = [r.text for r in one.translate(TEXTS, beam=4, ensemble=others)]
    assert said != [r.text for r in one.translate(TEXTS, beam=4)]
    assert list(one.eval(bleu=(TEXTS, TEXTS), ensemble=others).hypotheses) == said
    written = Teacher(one, beam=4, ensemble=others, length_penalty=0.6).pairs([(text, "") for text in TEXTS])
    assert written == [[(text, found)] for text, found in zip(TEXTS, said, strict=True)]


@needs_demo
def test_models_that_do_not_belong_together_are_refused(models: list[Model]) -> None:
    one = models[0]
    assert one.tokenizer is not None

    def refused(other: Any, match: str) -> None:
        with pytest.raises(QkvError, match=match):
            one.translate(TEXTS, ensemble=[models[1], other])

    if (bundled_dir() / "demo-lm").is_dir():
        refused(qkv.load("demo-lm", device="cpu"), "Model\\(llama, .* does not translate by beam search")
    lstm = Model(qkv.build(lstm_spec(len(one.tokenizer), width=16, attention="additive")).core,
                 one.tokenizer, one.special)  # fmt: skip
    refused(lstm, "does not translate by beam search")
    with pytest.raises(QkvError, match="does not translate by beam search"):
        lstm.translate(TEXTS, ensemble=[one])
    refused(Model(one.core, one.tokenizer, replace(one.special, eos=(5,))), "begin or end a text with different ids")
    count = one.spec.vocabulary
    larger = qkv.build(replace(one.spec, vocabulary=count + 8)).core
    refused(Model(larger, one.tokenizer, one.special), f"{count:,} tokens and {count + 8:,}")
    more: Any = SimpleNamespace(vocabulary={**one.tokenizer.vocabulary, "<more>": count})
    refused(Model(one.core, more, one.special), f"'<more>' is unknown in the first, {count} in the other")
    other = Model(one.core, train_vocabulary(TEXTS, kind="word"), one.special)
    refused(other, "vocabularies \\('.*' is [0-9]+ in the first, ")


@needs_demo
def test_the_command_line_names_the_others(
    models: list[Model], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(*args: str) -> tuple[int, str, str]:
        code = main([*args, "--device", "cpu"])
        out, err = capsys.readouterr()
        return code, out, err

    alone = run("translate", "demo", TEXTS[0])
    assert run("translate", "demo", TEXTS[0], "--ensemble", "demo", "--ensemble", "demo") == alone
    other = str(models[1].save(tmp_path / "other"))
    together = models[0].translate(TEXTS[0], ensemble=models[1:])
    said = run("translate", "demo", TEXTS[0], "--ensemble", other, "--scores")[1]
    assert said == f"{together.score:.4f}\t{together.text}\n"
    assert said != run("translate", "demo", TEXTS[0], "--scores")[1]
    assert "nowhere" in run("translate", "demo", TEXTS[0], "--ensemble", "nowhere")[2]
    pairs = tmp_path / "p.tsv"
    pairs.write_text("我爱学习。\tI love studying.\n", encoding="utf-8")
    assert run("eval", "demo", "--bleu", str(pairs), str(pairs), "--ensemble", "nowhere")[0] == 2
    code, _, err = run("eval", "demo", "--ppl", str(pairs), "--ensemble", "demo")
    assert (code, "goes with --bleu" in err) == (2, True)
    out = str(tmp_path / "out")
    assert "nowhere" in run("data", "distil", str(pairs), "--model", "demo", "--ensemble", "nowhere", "--out", out)[2]
    assert run("data", "distil", str(pairs), "--model", "demo", "--ensemble", "demo", "--out", out)[0] == 0
    assert (tmp_path / "out" / "p.tsv").read_text(encoding="utf-8").startswith("我爱学习。\tI ")
