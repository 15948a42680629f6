"""Texts that are read in one batch, and what a task refuses."""


import pytest
import torch
from support import zoo

import qkv
from qkv.errors import QkvError
from qkv.tasks.batches import last_states, prepare_batch
from qkv.tasks.fill import fill_ids


def model(name: str) -> qkv.Model:
    core = zoo.made(zoo.ALL[name]())
    return qkv.Model(core)


def test_a_prefix_decoder_reads_a_text_whole_but_scores_it_word_by_word():
    made, ids = model("blanks"), [5, 6, 7, 8]
    other = [5, 6, 7, 9]
    first = [prepare_batch(made.core, [row]) for row in (ids, other)]
    a, b = (last_states(made.core, *pair)[0, 0] for pair in first)
    assert not torch.allclose(a, b), "the first word sees the last"
    with torch.no_grad():
        logits = made(torch.tensor([ids])).logits[0].log_softmax(-1)
    want = sum(logits[i, ids[i + 1]].item() for i in range(3))
    assert made.score(ids) == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize(("name", "act", "says"), [
    ("gqa", lambda m: m.classify([3, 4]), "no labels"),
    ("gqa", lambda m: fill_ids(m.core, [3], 3), "encoder with an output head; this is a decoder, which"),
    ("cloze", lambda m: fill_ids(m.core, [3], 5), "no mask"),
    ("cloze", lambda m: m.translate("x"), "this is an encoder: use fill or embed, or classify"),
    ("gqa", lambda m: m.translate("x"), "which continues a text: use generate or score$"),
    ("cloze", lambda m: m.fill("x"), "mask token"),
    ("cloze", lambda m: m.fill("x", top=0), "top: found 0"),
    ("gqa", lambda m: m.generate(None), "found None of type NoneType, expected a text"),
    ("gqa", lambda m: m.generate(5), "found 5 of type int"),
    ("gqa", lambda m: m.score([[3, 4], 1.5]), "found 1.5 of type float"),
    ("gqa", lambda m: m(torch.tensor([3, 4])), r"ids: found \[2\] of int64.*ids\[None\]"),
    ("gqa", lambda m: m(torch.tensor([[0.5]])), r"ids: found \[1, 1\] of float32, expected whole numbers"),
    ("encoder", lambda m: m.score([3, 4]), "a decoder with an output head; this is an encoder"),
    ("seq2seq", lambda m: fill_ids(m.core, [3], 3), "this is an encoder-decoder: use translate"),
    ("seq2seq", lambda m: m.eval(ppl="x"), "this model predicts a text from its source; expected lines of source TAB"),
    ("gqa", lambda m: m.translate("x"), "this is a decoder, which continues"),
    ("gqa", lambda m: m.eval(foo=1), r"found none \(and foo=1\), expected one of bleu"),
    ("gqa", lambda m: m.eval(pp="x"), "did you mean 'ppl'"),
    ("gqa", lambda m: m.eval(ppl=["x"]), "ppl is .*, expected the path of a file"),
    ("gqa", lambda m: m.eval(bleu="x"), "expected \\(sources, references\\)"),
    ("encoder", lambda m: m.embed([[3], []]), "text 2 of 2 is empty"),
    ("encoder", lambda m: m.embed([list(range(65))]), "reads at most 64"),
    ("gqa", lambda m: m.chat("hello"), "no chat template"),
])  # fmt: skip
def test_what_cannot_be_read_is_said(name, act, says):
    with pytest.raises(QkvError, match=says):
        act(model(name))
