"""A state of one text put into another: all of it moves the answer, none of it leaves the answer as it was."""

import math
from typing import Any

import pytest

import qkv
from qkv.explore import activation_patching, answers
from qkv.explore.question import Question, Refused, Run, ask, mask_token
from qkv.lens import activation_patching as lens_patching

READ, DRUNK = "书和茶都在桌上，我看完了它。", "书和茶都在桌上，我喝完了它。"
VERB = "8"  # 看完 and 喝完


@pytest.fixture(scope="module")
def run() -> Run:
    return ask(qkv.load("demo", device="cpu"), Question(READ, DRUNK), "demo")


def patched(run: Run, **said: str) -> dict[str, Any]:
    return answers.answer(run, "patch", said).keys


@pytest.mark.parametrize("layer", ["0", "1", "2", "3"])
def test_the_verb_of_the_first_text_changes_what_the_second_says(run: Run, layer: str) -> None:
    found = patched(run, part="encoder", layer=layer, source=VERB, pos=VERB)
    assert "reading" in found["output"]
    assert "drinking" in found["before"]
    assert [w["text"] for w in found["words"]] == ["reading", "drinking"]
    mine, theirs = found["words"]
    assert mine["after"] > mine["before"] + 2
    assert theirs["after"] < theirs["before"] - 2


def test_a_word_that_both_texts_have_changes_nothing(run: Run) -> None:
    """The embedding of the first word is the same in both, so its graft is no change at all."""
    found = patched(run, part="encoder", layer="0", source="0", pos="0")
    assert found["output"] == found["before"] == run.second.output if run.second else ""
    assert all(w["after"] == pytest.approx(w["before"], abs=1e-6) for w in found["words"])


def test_numbers_are_what_their_lines_give(run: Run) -> None:
    for word in patched(run, part="encoder", layer="2", source=VERB, pos=VERB)["words"]:
        for key in ("before", "after", "donor"):
            assert word[key] == pytest.approx(eval(f"{word['line']}.{key}", run.scope), abs=1e-6)  # noqa: S307
        assert math.exp(word["donor"]) <= 1


def test_a_decoder_is_patched_in_its_own_text() -> None:
    model = qkv.load("demo-lm", device="cpu")
    run = ask(model, Question("One, two, buckle my", "Three, four, knock at the", 4))
    depth, (first, second) = activation_patching.list_movable(run)["decoder"]
    assert run.second is not None
    last = {"source": str(len(run.first.ids) - 1), "pos": str(len(run.second.ids) - 1)}
    found = patched(run, layer=str(depth), **last)
    assert first != second
    # the last state of the prompt says the first word: with the first text's, the second says what the first said
    assert found["words"][0]["after"] == pytest.approx(found["words"][0]["donor"], abs=1e-4)


def test_what_cannot_be_moved_is_refused(run: Run) -> None:
    for key, value in (("layer", "9"), ("source", "99"), ("part", "cross")):
        with pytest.raises(Refused, match=f"{key}={value}"):
            patched(run, **{key: value})
    alone = ask(qkv.load("demo", device="cpu"), Question(READ))
    with pytest.raises(Refused, match="two texts"):
        patched(alone)


def test_an_encoder_is_patched_where_both_texts_have_a_blank() -> None:
    model = qkv.load("demo-bert", device="cpu")
    run = ask(model, Question("我爱喝[MASK]。", "我看完了那本[MASK]。"))
    depth, ids = activation_patching.list_movable(run)["encoder"]
    source, pos = (str(one.index(mask_token(model))) for one in ids)
    assert source != pos
    found = patched(run, part="encoder", layer=str(depth), source=source, pos=pos)
    # the last state of the blank is all that its guess is made from
    assert run.first.output.replace("我爱喝", "")[0] in found["output"].replace("我看完了那本", "")
    assert [w["after"] for w in found["words"]] == pytest.approx([w["donor"] for w in found["words"]], abs=1e-4)
    assert found["words"][0]["before"] < found["words"][0]["after"] - 1
    first = patched(run, part="encoder", layer="0", source="0", pos="0")  # [CLS] is the same before the first layer
    assert [w["after"] for w in first["words"]] == pytest.approx([w["before"] for w in first["words"]], abs=1e-5)
    line = found["words"][0]["line"]
    assert eval(f"{line}.after", run.scope) == pytest.approx(found["words"][0]["after"], abs=1e-6)  # noqa: S307


def test_an_encoder_without_a_blank_in_both_texts_guesses_nothing() -> None:
    encoder = ask(qkv.load("demo-bert", device="cpu"), Question("我爱[MASK]。", "我想喝茶。"))
    assert activation_patching.list_movable(encoder) == {}
    with pytest.raises(Refused, match=r"\[MASK\] in both"):
        patched(encoder, part="encoder", layer="0", source="0", pos="0")


def test_a_graft_at_the_wrong_place_is_noticed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lens_patching.patch_activation
    monkeypatch.setattr(lens_patching, "patch_activation", lambda *a, **k: right(*a, **{**k, "pos": 0, "source": 0}))
    mine = patched(run, part="encoder", layer="2", source=VERB, pos=VERB)["words"][0]
    assert mine["after"] < mine["before"] + 2
