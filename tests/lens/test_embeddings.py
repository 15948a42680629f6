"""Neighbours and analogies equal slow computations over the table."""


from types import SimpleNamespace

import pytest
import torch
from support import zoo
from support.letters import WORDS, Letters, cosine

import qkv
from qkv.errors import QkvError
from qkv.lens import embeddings


def test_neighbours_are_the_largest_cosines_of_the_table() -> None:
    core = zoo.made(zoo.gqa())
    made = SimpleNamespace(core=core, tokenizer=Letters())
    rows = core.embed.weight.tolist()[: len(WORDS)]
    own = WORDS.index("书")
    slow = sorted(((cosine(rows[own], r), i) for i, r in enumerate(rows) if i != own), reverse=True)[:5]
    found = embeddings.find_neighbours(made, "书", 5)
    assert [n.id for n in found] == [i for _, i in slow]
    assert [n.piece for n in found] == [WORDS[i] for _, i in slow]
    assert [n.cosine for n in found] == pytest.approx([c for c, _ in slow], abs=1e-5)
    both = embeddings.find_neighbours(made, "苹果", 70)
    assert not {WORDS.index("苹"), WORDS.index("果")} & {n.id for n in both}
    assert len(both) == len(WORDS) - 2, "rows that no token has are never named"
    with pytest.raises(QkvError, match="need a tokenizer"):
        embeddings.find_neighbours(SimpleNamespace(core=core, tokenizer=None), "书")


def test_an_analogy_that_holds_is_found_and_one_with_a_wrong_sign_is_not() -> None:
    core = zoo.made(zoo.gqa())
    made = SimpleNamespace(core=core, tokenizer=Letters())
    a, b, c, d = (WORDS.index(w) for w in "aAbB")
    with torch.no_grad():
        big = torch.zeros(48)
        big[0] = 1.0
        core.embed.weight.mul_(0.01)
        for small, large, axis in ((a, b, 1), (c, d, 2)):
            core.embed.weight[small, axis] = 1.0
            core.embed.weight[large] = core.embed.weight[small] + big
    assert embeddings.solve_analogy(made, "a", "A", "b", n=1)[0].piece == "B"
    assert embeddings.solve_analogy(made, "A", "a", "b", n=1)[0].piece != "B"
    core.embed.weight.data = core.embed.weight.data.flip(0)
    found = embeddings.solve_analogy(made, "a", "A", "b", n=1)
    assert found[0].piece != "B", "a table in another order has no such answer"


def test_an_unknown_word_is_refused_where_its_stand_in_would_be_compared() -> None:
    demo = qkv.load("demo", device="cpu")
    assert embeddings.solve_analogy(demo, "I", "me", "he")[0].piece.strip() == "him"
    for wrong in (("king", "me", "he"), ("I", "king", "he"), ("I", "me", "king")):
        with pytest.raises(QkvError, match="'king' is not in this model's vocabulary"):
            embeddings.solve_analogy(demo, *wrong)
    with pytest.raises(QkvError, match="'king' is not"):
        embeddings.find_neighbours(demo, "king")
    with demo.trace(save=["shift", "parts"]) as t:
        demo.translate("我爱喝茶。", beam=1)
    with pytest.raises(QkvError, match="'king' is not"):
        t.shift(0, ["书", "king"], side="encoder.")
    with pytest.raises(QkvError, match="'king' is not"):
        t.parts(-1, "king")
