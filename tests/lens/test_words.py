"""Neighbours, analogies and shifts equal slow computations over the table and over runs of their own."""

import math
from collections.abc import Sequence

import pytest
import torch
from support import zoo

import qkv
from qkv.errors import QkvError
from qkv.lens import where, words
from qkv.lens.trace import Trace

WORDS = [*"abcdefghijklmnopqrstuvwxyz", *"中国北京日本东京苹果华为香蕉它书茶", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]


class Letters:
    """One token per character."""

    def __len__(self) -> int:
        return len(WORDS)

    def encode(self, text: str, *, special: bool = True, side: str = "source") -> list[int]:
        return [*(WORDS.index(c) for c in text), *([3] if special else [])]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [WORDS[i] for i in ids]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(WORDS[i] for i in ids)


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_neighbours_are_the_largest_cosines_of_the_table() -> None:
    core, made = zoo.made(zoo.gqa()), Letters()
    rows = core.embed.weight.tolist()[: len(WORDS)]
    own = WORDS.index("书")
    slow = sorted(((cosine(rows[own], r), i) for i, r in enumerate(rows) if i != own), reverse=True)[:5]
    found = words.neighbours(core, made, "书", 5)
    assert [n.id for n in found] == [i for _, i in slow]
    assert [n.piece for n in found] == [WORDS[i] for _, i in slow]
    assert [n.cosine for n in found] == pytest.approx([c for c, _ in slow], abs=1e-5)
    both = words.neighbours(core, made, "苹果", 70)
    assert not {WORDS.index("苹"), WORDS.index("果")} & {n.id for n in both}
    assert len(both) == len(WORDS) - 2, "rows that no token has are never named"
    with pytest.raises(QkvError, match="need a tokenizer"):
        words.neighbours(core, None, "书")


def test_an_analogy_that_holds_is_found_and_one_with_a_wrong_sign_is_not() -> None:
    core, made = zoo.made(zoo.gqa()), Letters()
    a, b, c, d = (WORDS.index(w) for w in "aAbB")
    with torch.no_grad():
        big = torch.zeros(48)
        big[0] = 1.0
        core.embed.weight.mul_(0.01)
        for small, large, axis in ((a, b, 1), (c, d, 2)):
            core.embed.weight[small, axis] = 1.0
            core.embed.weight[large] = core.embed.weight[small] + big
    assert words.analogy(core, made, "a", "A", "b", n=1)[0].piece == "B"
    assert words.analogy(core, made, "A", "a", "b", n=1)[0].piece != "B"
    core.embed.weight.data = core.embed.weight.data.flip(0)
    assert words.analogy(core, made, "a", "A", "b", n=1)[0].piece != "B", "a table in another order has no such answer"


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
        where.token(t, "苹果")
    assert where.token(t, "它") == WORDS.index("它")
    with Trace(core, save=["choices"], tokenizer=made) as bare:
        zoo.run(core, torch.tensor([[1, 2, 3]]), source)
    with pytest.raises(QkvError, match=r'save=\["shift"\]'):
        bare.shift(1, ["书"])


def test_an_unknown_word_is_refused_where_its_stand_in_would_be_compared() -> None:
    demo = qkv.load("demo", device="cpu")
    assert words.analogy(demo.core, demo.tokenizer, "I", "me", "he")[0].piece.strip() == "him"
    for wrong in (("king", "me", "he"), ("I", "king", "he"), ("I", "me", "king")):
        with pytest.raises(QkvError, match="'king' is not in this model's vocabulary"):
            words.analogy(demo.core, demo.tokenizer, *wrong)
    with pytest.raises(QkvError, match="'king' is not"):
        words.neighbours(demo.core, demo.tokenizer, "king")
    with demo.trace(save=["shift", "parts"]) as t:
        demo.translate("我爱喝茶。", beam=1)
    with pytest.raises(QkvError, match="'king' is not"):
        t.shift(0, ["书", "king"], side="encoder.")
    with pytest.raises(QkvError, match="'king' is not"):
        t.parts(-1, "king")
