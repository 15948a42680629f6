"""What a translation must begin with, hold or avoid, in texts and in ids, one for all sources or one for each."""

import pytest

import qkv
from qkv.errors import QkvError
from qkv.tasks.text_constraints import find_token, read_bias

SOURCES = ["书和茶都在桌上，我看完了它。", "我爱学习。", "他是老师。"]


@pytest.fixture(scope="module")
def demo() -> qkv.Model:
    return qkv.load("demo")


def test_a_translation_does_what_is_wished(demo):
    plain = [r.text for r in demo.translate(SOURCES)]
    begun = demo.translate(SOURCES, target_prefix="the teacher", nbest=3)
    held = demo.translate(SOURCES, must_include=["window", "very good"], nbest=2)
    kept = demo.translate(SOURCES, must_avoid=["tea", "I "])
    assert all(text.startswith("the teacher") for r in begun for text in (r.text, *(o.text for o in r.others)))
    assert all("window" in r.text and "very good" in r.text for r in held)
    assert not any("tea" in r.text or "I " in r.text for r in kept)
    assert any("tea" in text or "I " in text for text in plain)
    for text, one in zip(SOURCES, held, strict=True):
        assert demo.translate(text, must_include=["window", "very good"], nbest=2).tokens == one.tokens


def test_each_source_may_have_wishes_of_its_own(demo):
    found = demo.translate(SOURCES, target_prefix=["I", None, ""], must_include=[[], ["tea"], []],
                           must_avoid=[["tea"], [], ["teacher", "he "]])
    assert found[0].text.startswith("I ")
    assert "tea" not in found[0].text
    assert "tea" in found[1].text
    assert "teacher" not in found[2].text
    assert demo.translate(SOURCES, must_avoid=[[], ["xyz"], []])[2].tokens == demo.translate(SOURCES[2]).tokens


def test_ids_say_it_too(demo):
    ids = demo.tokenizer.encode("the teacher", special=False)
    by_text, by_ids = (demo.translate(SOURCES[0], target_prefix=p, must_include=[i], must_avoid=[a])
                       for p, i, a in (("the teacher", "window", "table"), (ids, demo.tokenizer.encode(
                           "window", special=False), demo.tokenizer.encode("table", special=False))))
    assert by_text.tokens == by_ids.tokens


def test_penalties_reach_the_beams(demo):
    plain = demo.translate(SOURCES[0])
    banned = demo.translate(SOURCES[0], logit_bias={"tea": -100})
    assert "tea" in plain.text
    assert "tea" not in banned.text
    assert len(demo.translate(SOURCES[1], min_new_tokens=12).tokens) >= 12
    diverse = demo.translate(SOURCES[0], beam=4, groups=4, diversity_penalty=9.0, nbest=4)
    first = {r.text.split()[1] for r in (diverse, *diverse.others)}
    assert len(first) == 4, "no group begins as another"
    assert diverse.text == demo.translate(SOURCES[0], beam=1).text, "the first group pays nothing"


@pytest.mark.parametrize(("given", "code"), [
    ({"target_prefix": "Zyxw"}, "unknown-words"), ({"target_prefix": ["a"] * 3}, "count"),
    ({"target_prefix": " "}, "empty"), ({"must_include": [""]}, "empty"), ({"must_avoid": [""]}, "empty"),
    ({"must_include": ["tea"], "must_avoid": ["ea"]}, "contradiction"), ({"must_include": 3}, "phrases"),
    ({"target_prefix": "the tea", "must_avoid": ["tea"]}, "contradiction"), ({"must_include": [["a"]] * 2}, "count"),
    ({"must_include": [[0]]}, "unknown-words"), ({"must_include": [[99_999]]}, "token-id"),
    ({"must_include": ["the book is on the table"], "max_new_tokens": 3}, "constraint-length"),
    ({"min_new_tokens": 9, "max_new_tokens": 4}, "contradiction"), ({"groups": 3}, "groups"),
    ({"logit_bias": {"the teacher": 1}}, "logit-bias"), ({"must_includ": ["a"]}, ""),
    ({"repetition_penalty": -1.0}, "repetition-penalty"), ({"target_prefix": 7}, "prompt"),
])  # fmt: skip
def test_a_wish_that_cannot_be_fulfilled_is_named(demo, given, code):
    with pytest.raises(QkvError) as caught:
        demo.translate("书和茶都在桌上。", **given)
    assert caught.value.code == code


def test_an_error_has_the_number_of_its_text(demo):
    with pytest.raises(QkvError) as caught:
        demo.translate(SOURCES, must_include=[[], ["the book is on the table"], []], max_new_tokens=5)
    assert caught.value.code == "constraint-length"
    assert caught.value.message.fields["number"] == 2


def test_a_bias_names_a_token(demo):
    lm = qkv.load("demo-lm")
    assert read_bias(lm, {" tea": 1, 5: -2.5}) == tuple(sorted({find_token(lm, " tea"): 1.0, 5: -2.5}.items()))
    assert find_token(lm, "</s>") == lm.special.eos[0]
    assert find_token(demo, "tea") == demo.tokenizer.id("tea") or demo.tokenizer.encode("tea", special=False)[0]


def test_a_baseline_refuses_what_it_cannot_do():
    from qkv.baselines import lstm
    from qkv.generation.beam import Search
    from qkv.generation.sequence import DecodeOptions
    from qkv.tasks.translate import translate_greedily

    with pytest.raises(QkvError) as caught:
        translate_greedily(lstm, [[1]], search=Search(1, no_repeat_ngram=2), options=DecodeOptions(start=(1,)))
    assert caught.value.code == "greedy-baseline"
