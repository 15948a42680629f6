"""The rhyme lab: windows go round, the last layer's reading is what the model says, and the rule."""

import pytest
import torch

from qkv.labs import buckle, lab
from qkv.labs.lab import Runs
from qkv.labs.tiny import Tiny, encode_texts, guesses

GOOD = {"rhyme": 1.0, "shuffled": 0.5, "unheard": 0.9, "no_one": 0.9, "no_two": 0.1, "first": 4.0,
        **{f"layer_{i}": x for i, x in enumerate((0.0, 0.1, 0.2, 0.4, 1.0))}}  # fmt: skip


def word(**numbers):
    return buckle.judge(Runs(({**GOOD, **numbers},) * 3)).word


def test_a_window_goes_round_and_each_word_is_followed_by_the_next():
    ids, after = buckle.draw_batch(buckle.RHYME, 0)
    twice = " ".join([*buckle.RHYME, *buckle.RHYME])
    assert ids.shape == (32, buckle.WINDOW)
    for row, said in zip(ids.tolist(), after.tolist(), strict=True):
        assert " ".join(buckle.WORDS[i] for i in [*row, said[-1]]) in twice
    assert buckle.RHYME[buckle.COMMA + 1] == "Buck"
    assert (buckle.RHYME[buckle.ONE], buckle.RHYME[buckle.TWO]) == ("One", "Two")


def test_the_last_layer_reads_what_the_model_says():
    model = Tiny(layers=buckle.LAYERS, width=32, vocabulary=len(buckle.WORDS), context=buckle.WINDOW).model(
        0, torch.float32
    )
    chances = buckle.by_layer(model, buckle.RHYME)
    assert chances.shape == (buckle.LAYERS + 1, buckle.WINDOW)
    assert float(chances[-1, buckle.COMMA]) == pytest.approx(buckle.buck(model), rel=1e-4)
    ids = encode_texts([buckle.join_lines(buckle.RHYME, 0, buckle.WINDOW + 1)], buckle.WORDS)[0]
    said = guesses(model, ids[:, :-1])[0].softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    assert torch.allclose(chances[-1], said, atol=1e-5)
    assert buckle.buck(model, buckle.TWO) != buckle.buck(model)


def test_the_rule():
    assert word() == "shown"
    assert word(shuffled=1.0) == "true only when"
    assert word(first=2.0) == "true only when"
    assert word(layer_4=0.3) == "not shown"
    assert lab.judge_runs(buckle.LAB, Runs((GOOD,) * 3), 10).word == "inconclusive"
