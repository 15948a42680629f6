"""The options of generate, and what its prompts may be."""


import pytest
import torch
from support import zoo

import qkv
from qkv.errors import QkvError
from qkv.tasks.generate import IgnoredKeys
from qkv.tasks.generate_options import GenerateOptions, list_ignored_keys, read_defaults


def model(name: str) -> qkv.Model:
    core = zoo.made(zoo.ALL[name]())
    return qkv.Model(core)


def test_a_model_may_write_as_its_makers_let_it(tmp_path):
    core = zoo.made(zoo.ALL["gqa"]())
    config = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "_from_model_config": False}
    made = qkv.Model(core, generation_config=config)
    own = made.generate([3, 4], max_new_tokens=12, sampling="model", seed=5).tokens
    said = made.generate([3, 4], max_new_tokens=12, temperature=0.7, top_p=0.9, top_k=50, seed=5).tokens
    assert own == said
    assert own != made.generate([3, 4], max_new_tokens=12).tokens, "greedy unless asked"
    other = made.generate([3, 4], max_new_tokens=12, sampling="model", temperature=0.0).tokens
    assert other == made.generate([3, 4], max_new_tokens=12).tokens, "what is asked for counts more"
    made.save(tmp_path)
    assert qkv.load(tmp_path).generation_config["temperature"] == 0.7
    plain = qkv.Model(core, generation_config={"do_sample": False, "top_k": 5})
    assert plain.generate([3], max_new_tokens=5, sampling="model").tokens == made.generate([3], max_new_tokens=5).tokens


@pytest.mark.parametrize(("given", "found"), [
    ({"max_new_token": 3}, "max_new_token: unknown key; did you mean 'max_new_tokens'"), ({"beam": 0}, "beam: found 0"),
    ({"sampling": "wild"}, "sampling: found 'wild', expected one of greedy, model"),
    ({"top_k": "a"}, "top_k: found 'a'"),
])  # fmt: skip
def test_an_option_that_cannot_be_is_named(given, found):
    with pytest.raises(QkvError, match=found):
        GenerateOptions.parse(given, {})


def test_options_may_be_numbers_of_another_library_and_one_stop_string():
    options = GenerateOptions.parse({"max_new_tokens": torch.tensor(3), "temperature": 1, "stop": "."}, {})
    assert (options.max_new_tokens, options.temperature, options.stop) == (3, 1.0, (".",))


def test_ids_come_as_a_tensor_too():
    made = model("gqa")
    assert made.score(torch.tensor([3, 4, 5])) == made.score([3, 4, 5])
    assert made.score(torch.tensor([[3, 4, 5], [5, 4, 3]])) == made.score([[3, 4, 5], [5, 4, 3]])


def test_settings_of_a_model_are_heeded_and_what_is_given_counts_more():
    summary = {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "min_length": 56, "max_length": 142,
               "early_stopping": True, "forced_bos_token_id": 0, "repetition_penalty": 1.1}
    found = read_defaults(summary, {}, start=1)
    assert found == {"beam": 4, "length_penalty": 2.0, "no_repeat_ngram": 3, "min_new_tokens": 55,
                     "max_new_tokens": 141, "repetition_penalty": 1.1, "early_stopping": True}
    stops = [search and search.stop for config in (summary, {**summary, "early_stopping": "never"}, {"num_beams": 2})
             for search in [GenerateOptions.parse({"sampling": "model"}, config, 1).search]]
    assert stops == ["first", "settled", "settled"]
    assert list_ignored_keys({**summary, "early_stopping": "never"}, {}, start=1) == ["early_stopping"]
    assert list_ignored_keys(summary, {}, start=1) == []
    assert list_ignored_keys(summary, {}) == ["max_length", "min_length"], "of other models lengths count the prompt"
    assert read_defaults({"do_sample": True, "top_p": 0.9}, {"temperature": 0.7})["top_p"] == 0.9
    for broken in ({"sequence_bias": [[7, 2]]}, {"sequence_bias": {"a": 1}}, {"sequence_bias": [[["a"], 1.0]]},
                   {"max_length": "long", "min_length": [3]}):
        assert read_defaults(broken, {}, start=1) == {}
    assert "beam" not in read_defaults(summary, {"temperature": 0.8}, start=1)
    assert read_defaults(summary, {"max_new_tokens": 20}, start=1)["min_new_tokens"] == 20
    chat = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "sequence_bias": [[[7], -2.0]], "num_beams": 1}
    assert read_defaults(chat, {}) == {"temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": None,
                                       "logit_bias": ((7, -2.0),)}
    assert read_defaults(chat, {"beam": 3}) == {"logit_bias": ((7, -2.0),), "beam": 1}
    strange = {**chat, "typical_p": 0.9, "penalty_alpha": 0.6, "num_beams": 2, "epsilon_cutoff": 0.0,
               "sequence_bias": [[[7, 8], -2.0]], "bad_words_ids": [[3, 4]], "suppress_tokens": [5]}
    assert list_ignored_keys(strange, {}) == ["bad_words_ids", "num_beams", "penalty_alpha", "sequence_bias",
                                          "suppress_tokens", "typical_p"]
    assert list_ignored_keys({"temperature": 0.6, "top_p": 0.5, "early_stopping": True, "use_cache": True}, {}) == []


def test_keys_of_a_model_that_are_not_heeded_are_named():
    core = zoo.made(zoo.ALL["gqa"]())
    with pytest.raises(QkvError, match=r"generation_config\.json: top_k: found '4'"):
        qkv.Model(core, generation_config={"do_sample": True, "top_k": "4"}).generate([3], sampling="model")
    odd = qkv.Model(core, generation_config={"sequence_bias": [[[99_999], 1.0]]})
    with pytest.raises(QkvError) as caught:
        odd.generate([3], sampling="model")
    assert caught.value.code == "token-id"
    made = qkv.Model(core, generation_config={"repetition_penalty": 1.8, "penalty_alpha": 0.6})
    with pytest.warns(IgnoredKeys, match="ignored: penalty_alpha"):
        own = made.generate([3, 4, 3], max_new_tokens=12, sampling="model").tokens
    assert own == made.generate([3, 4, 3], max_new_tokens=12, repetition_penalty=1.8).tokens
    assert own != made.generate([3, 4, 3], max_new_tokens=12).tokens


@pytest.mark.parametrize(("given", "code"), [
    ({"min_new_tokens": 9, "max_new_tokens": 4}, "contradiction"), ({"n": 2}, "contradiction"),
    ({"n": 4, "beam": 3}, "contradiction"), ({"groups": 2, "diversity_penalty": 1.0}, "contradiction"),
    ({"length_penalty": 1.0}, "contradiction"), ({"early_stopping": True}, "contradiction"),
    ({"beam": 4, "groups": 3}, "groups"), ({"n": 0}, ""),
    ({"n": 10**9, "temperature": 1.0}, ""),
    ({"beam": 2, "temperature": 1.0}, "contradiction"), ({"regex": "a", "grammar": "b"}, "contradiction"),
    ({"repetition_penalty": 0.0}, "repetition-penalty"), ({"logit_bias": {99_999: 1.0}}, "token-id"),
    ({"logit_bias": {3: "much"}}, "logit-bias"), ({"logit_bias": [3]}, "logit-bias"),
    ({"logit_bias": {True: 1}}, "prompt"),
    ({"beam": 2, "groups": 2}, "groups"), ({"logit_bias": {3: float("nan")}}, "argument"),
])  # fmt: skip
def test_options_that_contradict_each_other_are_named(given, code):
    with pytest.raises(QkvError) as caught:
        model("gqa").generate([3, 4], **given)
    assert caught.value.code == code


def test_a_stream_is_one_text():
    made = model("gqa")
    for given in ({"beam": 2}, {"n": 2, "temperature": 1.0}):
        with pytest.raises(QkvError) as caught:
            made.stream([3, 4], **given)
        assert caught.value.code == "contradiction"


def test_several_samples_begin_with_the_one_that_there_would_be_alone():
    made, how = model("gqa"), {"temperature": 1.0, "seed": 5, "max_new_tokens": 6}
    one, three = made.generate([3, 4], **how), made.generate([3, 4], n=3, **how)
    assert three.tokens == one.tokens
    assert one.others == ()
    assert len({tuple(r.tokens) for r in (three, *three.others)}) == 3
    both = made.generate([[3, 4], [5, 6, 7]], n=2, **how)
    assert [r.tokens for r in (both[0], *both[0].others)] == [r.tokens for r in (three, *three.others)][:2]
    assert both[1].tokens == made.generate([5, 6, 7], **how).tokens
    best = made.generate([3, 4], n=3, beam=3, max_new_tokens=6)
    assert [r.score for r in (best, *best.others)] == sorted((r.score for r in (best, *best.others)), reverse=True)
    assert len(best.others) == 2
