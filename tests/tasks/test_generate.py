"""The options of generate, and what its prompts may be."""


import pytest
import torch
from support import zoo

import qkv
from qkv.errors import QkvError
from qkv.tasks.generate import GenerateOptions


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
