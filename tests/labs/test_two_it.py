"""The 它 lab on a tiny untrained model: its parts are exact, whatever the model knows."""

from dataclasses import replace

import pytest
import torch

from qkv.data.corpus import load_corpus
from qkv.errors import QkvError
from qkv.labs import two_it
from qkv.training import recipes
from qkv.training.assemble import assemble


@pytest.fixture(scope="module")
def model():
    run = recipes.configure("demo", ["model.width=32", "model.ffn=64", "model.layers=2"])
    whole = run.splits()
    few = replace(whole, train=whole.train[:1_000])
    return assemble(replace(run, splits=lambda: few), device="cpu").model


@pytest.fixture(scope="module")
def swaps():
    return load_corpus().swaps[:6]


def test_the_verb_is_the_one_word_that_differs_and_the_nouns_are_found(model, swaps):
    for swap in swaps:
        a, b = two_it.two(model, swap)
        assert a.pieces[: a.verb] == b.pieces[: b.verb]
        assert a.pieces[a.verb] != b.pieces[b.verb]
        assert (a.pieces[a.it], a.pieces[a.meant], a.pieces[a.other]) == ("它", swap.noun_a[0], swap.noun_b[0])
        assert (b.meant, b.other) == (a.other, a.meant)
        assert a.role(a.meant) == "noun"
        assert model.tokenizer.pieces([a.case.target[a.case.at]]) == [swap.noun_a[1]]


def test_everything_is_measured_and_shares_are_shares(model, swaps):
    proof = two_it.measure(model, swaps)
    assert proof.pairs == 6
    assert sum(proof.strongest.values()) == pytest.approx(1)
    for share in (proof.flip_rate, proof.before, proof.after, *proof.edge_moves.values()):
        assert 0 <= share <= 1
    assert all(len(d[0]) == len(e.pieces[0]) for e in proof.edges for d in e.drops.values())


def test_a_cut_edge_of_the_written_word_equals_a_slow_masked_run(model, swaps):
    half = two_it.two(model, swaps[0])[0]
    drops = two_it.moving(model, swaps[:1], [half, half])[0][0].drops["written"][0]
    core, case = model.core, half.case
    key, query = half.meant, case.at - 1
    real = torch.ones(1, len(case.source), dtype=torch.bool)
    with torch.no_grad():
        whole = model(source=torch.tensor([case.source]), target=torch.tensor([case.target]), padding=real)
    before = whole.logits[0, query].log_softmax(-1)[case.target[case.at]]
    from qkv.core import attention, kernels

    def masked(q, k, v, seen, at, step):
        if at.spec.mask.kind != "memory":
            return attention.attend(q, k, v, seen, at, step)
        score = q @ k.mT * at.scale
        score[:, :, query, key] = -1e30
        return score.softmax(-1) @ v

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(kernels, "attend", masked)
        cut = model(source=torch.tensor([case.source]), target=torch.tensor([case.target]), padding=real)
    after = cut.logits[0, query].log_softmax(-1)[case.target[case.at]]
    assert float(before - after) == pytest.approx(drops[key], abs=2e-4)
    assert core.spec.decoder is not None


def test_no_pairs_and_foreign_words_are_named(model, swaps):
    with pytest.raises(QkvError, match="no minimal pairs"):
        two_it.measure(model, [])
    import dataclasses

    with pytest.raises(QkvError, match="single tokens"):
        two_it.two(model, dataclasses.replace(swaps[0], noun_a=("龙", "dragon")))


@pytest.mark.parametrize(
    ("sentence", "noun"),
    [
        ("We have a book, and I read the book.", "book"),
        ("The tea.", "tea"),
        ("I love you.", ""),
        ("", ""),
        ("I fed the dog the.", "dog"),
        ("The the", "the"),
    ],
)
def test_the_last_noun(sentence, noun):
    assert two_it.last_noun(sentence) == noun
