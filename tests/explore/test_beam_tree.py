"""The tree of the beams is the search that wrote the text: the same sentences, scores and parents."""

import itertools

import pytest
import torch

import qkv
from qkv.explore import beam_tree
from qkv.explore.beam_tree import Tree, grow_tree
from qkv.explore.question import Cut, Question, Refused, ask
from qkv.model import Model

ASKED = [
    ("demo", Question("书和茶都在桌上，我看完了它。")),
    ("demo", Question("我爱学习。", beam=2, force=(5,))),
    ("demo", Question("我爱学习。", cut=Cut("cross", 1, 2))),
    ("demo-lm", Question("One, two,", beam=3, max_new_tokens=6)),
    ("demo-moe", Question("我看完了那本书。", beam=2)),
]


def loaded(name: str) -> Model:
    return qkv.load(name, device="cpu")


def faults(tree: Tree, width: int) -> list[str]:
    """What a beam search cannot have done."""
    bad: list[str] = []
    steps = [list(group) for _, group in itertools.groupby(enumerate(tree.nodes), lambda pair: pair[1].step)]
    for group in steps:
        sums = [n.sum for _, n in group]
        kept = [n for _, n in group if n.fate == "kept"]
        bad += ["not the likeliest first"] * (sums != sorted(sums, reverse=True))
        bad += ["too many kept"] * (len(kept) > width)
        for _, n in group:
            parent = tree.nodes[n.parent] if n.parent >= 0 else None
            if parent and (parent.step != n.step - 1 or parent.fate != "kept" or n.sum > parent.sum):
                bad.append(f"step {n.step}: no child of {parent}")
    return bad


@pytest.mark.parametrize(("name", "question"), ASKED)
def test_the_tree_is_the_search_that_wrote_the_text(name: str, question: Question) -> None:
    model = loaded(name)
    run, tree = ask(model, question), grow_tree(model, question)
    written = run.first.written[len(question.force) :]
    assert [tree.nodes[i].token for i in tree.best] == list(tree.found[0].tokens) == written
    assert tree.nodes[tree.best[-1]].sum == pytest.approx(sum(run.first.logprobs), abs=1e-5)
    assert tree.nodes[tree.best[-1]].fate == ("ended" if tree.found[0].finish_reason == "stop" else "kept")
    scores = [h.score for h in tree.found]
    assert scores == sorted(scores, reverse=True)
    assert faults(tree, question.beam or 4) == []


def test_a_false_parent_is_noticed() -> None:
    tree = grow_tree(loaded("demo"), ASKED[0][1])
    last = tree.nodes[-1]
    last.parent = 0
    assert faults(tree, 4)


def test_words_chosen_one_by_one_have_no_tree() -> None:
    model = loaded("demo-lm")
    with pytest.raises(Refused, match="no beams were searched"):
        grow_tree(model, Question("One, two,"))
    run = ask(loaded("demo"), Question("我爱学习。", sampling=(("temperature", 1.0),)))
    with pytest.raises(Refused, match="no beams were searched"), torch.inference_mode():
        beam_tree.beams(run, None)  # type: ignore[arg-type]
