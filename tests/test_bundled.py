"""The bundled models: small, ours, loadable by everyone, and able to do what the demo shows."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import qkv
from qkv.data.corpus import corpus
from qkv.labs import two_it
from qkv.paths import bundled_dir

TOOL = Path(__file__).parents[1] / "tools" / "bundle.py"
needs = pytest.mark.skipif(not (bundled_dir() / "demo").is_dir(), reason="the bundled models were not made yet")


@pytest.fixture(scope="module")
def demo():
    return qkv.load("demo")


@needs
def test_together_at_most_six_megabytes():
    assert sum(p.stat().st_size for p in bundled_dir().rglob("*.safetensors")) <= 6_000_000


@needs
def test_the_translator_knows_held_out_sentences(demo):
    pairs = corpus(0).test[:100]
    said = [r.text for r in demo.translate([p.zh for p in pairs], beam=1)]
    assert sum(r == p.en for r, p in zip(said, pairs, strict=True)) >= 90
    assert demo.translate("我爱学习。").text == "I love studying."


@needs
def test_the_noun_flips_with_the_verb(demo):
    halves = [h for s in corpus(0).swaps[:50] for h in two_it.two(demo, s)]
    right = two_it.named(demo, halves)
    assert sum(a and b for a, b in zip(right[::2], right[1::2], strict=True)) >= 40


@needs
def test_words_outside_the_lexicon_are_named(demo):
    assert demo.translate("我爱量子力学。").unknown != ()


@needs
def test_the_language_model_says_buckle():
    assert qkv.load("demo-lm").generate("One, Two,", max_new_tokens=4).text.startswith(" Buckle")


@needs
def test_transformers_loads_both_and_agrees(demo):
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.MarianMTModel.from_pretrained(bundled_dir() / "demo", dtype=torch.float32).eval()
    ids = torch.tensor([demo.ids("我爱学习。")])
    target = torch.tensor([[demo.special.start, 5, 6]])
    with torch.no_grad():
        want = theirs(input_ids=ids, decoder_input_ids=target).logits
    assert (demo(source=ids, target=target).logits - want).abs().max() < 1e-4


def test_the_command_that_makes_them_works_in_small(tmp_path):
    done = subprocess.run(
        [sys.executable, str(TOOL), "--smoke", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert qkv.load(tmp_path / "demo").encoder_decoder
    assert qkv.load(tmp_path / "demo-lm").spec.encoder is None


@needs
def test_the_verb_names_unknown_words_and_does_not_guess(capsys):
    from qkv.cli import main

    main(["translate", "demo", "我爱量子力学。", "--lang", "en"])
    out = capsys.readouterr()
    assert out.out == "\n"
    assert "量子" in out.err
