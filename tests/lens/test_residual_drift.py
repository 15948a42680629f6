"""How a word drifts equals slow computations over runs of their own."""


import pytest
import torch
from support import zoo
from support.letters import WORDS, Letters, cosine

from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.trace import Trace


@pytest.mark.parametrize("name", ["gqa", "encoder"])
@torch.no_grad()
def test_a_shift_compares_layer_by_layer_with_the_anchors_read_alone(name: str) -> None:
    core, made = zoo.made(zoo.ALL[name]()), Letters()
    stack = core.decoder if core.spec.decoder else core.encoder
    ids = torch.tensor([made.encode("a苹果b", special=False)])

    def states(ids: torch.Tensor) -> list[list[float]]:
        with Trace(core, save=["shift"]) as t:
            core(ids)
        return [t[n][0, -1].tolist() for n in ("embed", *(f"layers.{i}.resid_out" for i in range(len(stack.layers))))]

    with Trace(core, save=["shift"], tokenizer=made) as t:
        core(ids)
    found = t.shift("苹果", ["华为", "香蕉"])
    assert found.names[0] == "embed"
    goals = [states(torch.tensor([made.encode(w, special=False)])) for w in ("华为", "香蕉")]
    for layer, tap in enumerate(found.names):
        here = t[tap][0, 2].tolist()
        one, two = goals[0][layer], goals[1][layer]
        assert found.cosine[layer].tolist() == pytest.approx([cosine(here, one), cosine(here, two)], abs=1e-5)
        way = [y - x for x, y in zip(one, two, strict=True)]
        along = sum((h - x) * w for h, x, w in zip(here, one, way, strict=True)) / sum(w * w for w in way)
        assert float(found.between[layer]) == pytest.approx(along, abs=1e-4)
    alone = torch.tensor([made.encode("华为", special=False)])
    with Trace(core, save=["shift"], tokenizer=made) as t:
        core(alone)
    itself = t.shift(-1, ["华为", "书"])
    assert (itself.between.abs() < 1e-4).all(), "a word read as the anchor is lies on it"
    assert itself.word == "为"
    assert t.shift("华", ["书"]).between is None


@torch.no_grad()
def test_a_sources_word_is_looked_at_in_the_encoder_and_mistakes_are_named() -> None:
    core, made = zoo.made(zoo.seq2seq()), Letters()
    source = torch.tensor([made.encode("书和茶".replace("和", "a"), special=False)])
    with Trace(core, save=["shift"], tokenizer=made) as t:
        zoo.run(core, torch.tensor([[1, 2, 3]]), source)
    found = t.shift("茶", ["书", "它"], side="encoder.")
    assert found.names[-1] == "encoder.layers.2.resid_out"
    with pytest.raises(QkvError, match=r"encoder\."):
        t.shift(1, ["书"])
    with pytest.raises(QkvError, match="not in this text; its tokens are 书 a 茶"):
        t.shift("它", ["书"], side="encoder.")
    with pytest.raises(QkvError, match="at least one anchor"):
        t.shift("茶", [], side="encoder.")
    with pytest.raises(QkvError, match="2 tokens here"):
        resolve.find_token(t, "苹果")
    assert resolve.find_token(t, "它") == WORDS.index("它")
    with Trace(core, save=["choices"], tokenizer=made) as bare:
        zoo.run(core, torch.tensor([[1, 2, 3]]), source)
    with pytest.raises(QkvError, match=r'save=\["shift"\]'):
        bare.shift(1, ["书"])
