"""The bundled models: small, ours, loadable by everyone, and able to do what the demo shows."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import qkv
from qkv.data.corpus import load_corpus
from qkv.labs import two_it
from qkv.paths import bundled_dir

TOOL = Path(__file__).parents[1] / "tools" / "bundle.py"
needs = pytest.mark.skipif(not (bundled_dir() / "demo").is_dir(), reason="the bundled models were not made yet")


@pytest.fixture(scope="module")
def demo():
    return qkv.load("demo")


@pytest.fixture(scope="module")
def bert():
    return qkv.load("demo-bert")


@pytest.fixture(scope="module")
def moe():
    return qkv.load("demo-moe")


@needs
def test_together_at_most_twelve_megabytes():
    assert sum(p.stat().st_size for p in bundled_dir().rglob("*") if p.is_file()) <= 12_000_000


@needs
def test_the_translator_knows_held_out_sentences(demo):
    pairs = load_corpus().test[:100]
    said = [r.text for r in demo.translate([p.zh for p in pairs], beam=1)]
    assert sum(r == p.en for r, p in zip(said, pairs, strict=True)) >= 90
    assert demo.translate("我爱学习。").text == "I love studying."


@needs
def test_the_noun_flips_with_the_verb(demo):
    halves = [h for s in load_corpus().swaps[:50] for h in two_it.two(demo, s)]
    right = two_it.check_nouns(demo, halves)
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


@needs
def test_the_encoder_labels_held_out_sentences(bert):
    rows = [(text, p.label) for p in load_corpus().test[:100] for text in (p.zh, p.en)]
    said = [v.label for v in bert.classify([text for text, _ in rows])]
    assert sum(a == b for a, (_, b) in zip(said, rows, strict=True)) >= 185
    assert bert.classify("你喜欢苹果吗？").label == "question"
    assert bert.classify("我没有钥匙。").label == "negation"
    assert len(bert.labels) == 10


@needs
def test_the_encoder_fills_in_words_that_fit(bert):
    (drinks,) = bert.fill("我喝了一杯[MASK]。")
    assert drinks[0][0] in {"茶", "牛奶", "咖啡", "水", "果汁", "可乐", "柠檬茶", "奶茶", "啤酒"}
    number, measure = bert.fill("她昨天喝了[MASK][MASK]牛奶。")
    assert number[0][0] in set("一两三四五六七八九十")
    assert measure[0][0] in {"杯", "瓶"}
    (verbs,) = bert.fill("I [MASK] a cup of coffee yesterday.")
    assert "drank" in {w for w, _ in verbs}


@needs
def test_sentences_of_like_meaning_are_near(bert):
    tea, milk, capital = bert.embed(["他喝了一杯茶。", "他喝了一杯牛奶。", "北京是中国的首都。"])
    assert tea @ milk > tea @ capital + 0.4
    pairs = load_corpus().test[:100]
    zh, en = bert.embed([p.zh for p in pairs]), bert.embed([p.en for p in pairs])
    assert ((zh @ en.T).argmax(1) == torch.arange(100)).sum() >= 50, "a translation among a hundred; chance finds one"


@needs
def test_the_prefix_decoder_knows_held_out_sentences(moe):
    pairs = load_corpus().test[:100]
    said = [r.text for r in moe.generate([p.zh for p in pairs])]
    assert sum(r == p.en for r, p in zip(said, pairs, strict=True)) >= 90
    assert moe.generate("我爱学习。").text == "I love studying."
    assert moe.generate("我爱学习。", cache=False).text == "I love studying."


@needs
def test_the_prefix_is_seen_freely_and_what_follows_is_not(moe):
    with moe.trace(save=["layers.*.attn.pattern", "layers.*.moe.index"]) as t:
        moe.generate("书和茶都在桌上，我喝完了它。", max_new_tokens=4)
    prompt = len(moe.ids("书和茶都在桌上，我喝完了它。"))
    for layer in range(4):
        pattern = t[f"layers.{layer}.attn.pattern"][0]  # H T T
        ahead = pattern.triu(1)
        assert ahead[:, :prompt, :prompt].amax() > 0.01
        assert ahead[:, prompt:].amax() == 0
    assert len(t["layers.0.moe.index"].unique()) > 4, "experts share the work"


def test_the_command_that_makes_them_works_in_small(tmp_path):
    done = subprocess.run(
        [sys.executable, str(TOOL), "--smoke", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert qkv.load(tmp_path / "demo").encoder_decoder
    assert qkv.load(tmp_path / "demo-lm").spec.encoder is None
    assert qkv.load(tmp_path / "demo-bert").classify("你好。").label in qkv.load(tmp_path / "demo-bert").labels
    assert qkv.load(tmp_path / "demo-moe").spec.decoder.blocks[0].moe.num_experts == 8


@needs
def test_the_verb_names_unknown_words_and_does_not_guess(capsys):
    from qkv.cli import main

    main(["translate", "demo", "我爱量子力学。", "--lang", "en"])
    out = capsys.readouterr()
    assert out.out == "I love learning [量子力].\n"
    assert "量子" in out.err


@needs
def test_a_saved_model_knows_what_it_never_says(moe, tmp_path):
    moe.save(tmp_path)
    assert qkv.load(tmp_path).special == moe.special
    assert moe.special.forbid == (moe.special.start,)
