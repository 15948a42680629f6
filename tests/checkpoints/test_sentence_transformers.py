"""A sentence-transformers directory says how a text becomes a vector; what cannot be done as it says is an error."""

import json

import pytest
import torch
from support import small

import qkv
from qkv.errors import QkvError
from qkv.training.assemble import add_labels
from qkv.training.run import Run
from qkv.training.shape import Shape
from qkv.training.splits import Splits

ROWS = [[5, 6, 7, 8, 9], [3], [11, 12, 13]]


def write(tmp_path, *, normalize: bool = True, module: str = "Pooling", **config):
    """An encoder whose directory pools as `config` says."""
    qkv.Model(small.made(small.encoder())).save(tmp_path)
    modules = [("", "Transformer"), ("1_Pooling", module), *[("2_Normalize", "Normalize")] * normalize]
    said = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)]
    (tmp_path / "modules.json").write_text(json.dumps(said))
    (tmp_path / "1_Pooling").mkdir(exist_ok=True)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return tmp_path


def flags(mode: str) -> dict[str, object]:
    """A pooling's config as it was written first: a flag for each mode."""
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    return {"word_embedding_dimension": 32, **{f"pooling_mode_{m}": m == mode for m in modes}}


@pytest.mark.parametrize(("config", "pool"), [
    (flags("cls_token"), lambda x: x[0]), (flags("lasttoken"), lambda x: x[-1]),
    (flags("mean_tokens"), lambda x: x.mean(0)), (flags("max_tokens"), lambda x: x.amax(0)),
    ({"pooling_mode": "cls"}, lambda x: x[0]),
])  # fmt: skip
@pytest.mark.parametrize("normalize", [True, False])
def test_a_vector_is_pooled_as_the_directory_says(tmp_path, config, pool, normalize):
    made = qkv.load(write(tmp_path / "a", normalize=normalize, **config))
    made.save(tmp_path / "b")
    again = qkv.load(tmp_path / "b")
    for row, vector in zip(ROWS, made.embed(ROWS), strict=True):
        with torch.no_grad():
            expected = pool(made(torch.tensor([row])).hidden[0])
        expected = expected / expected.norm() if normalize else expected
        assert torch.allclose(vector, expected, atol=1e-5)
        assert torch.allclose(again.embed(row), vector, atol=1e-6)


@pytest.mark.parametrize(("changed", "said"), [
    (flags("mean_sqrt_len_tokens"), "mean_sqrt_len_tokens"), ({"pooling_mode": "weightedmean"}, "weightedmean"),
    ({**flags("cls_token"), "pooling_mode_mean_tokens": True}, r"cls_token \+ mean_tokens"),
    ({**flags("cls_token"), "module": "Dense"}, "Dense"),
])  # fmt: skip
def test_a_pooling_that_is_unknown_is_an_error(tmp_path, changed, said):
    with pytest.raises(QkvError, match=said):
        qkv.load(write(tmp_path, **changed))


def test_the_prompt_that_a_directory_names_is_put_before_texts(tmp_path):
    path = write(tmp_path, **flags("mean_tokens"))
    plain = qkv.load("demo-bert")
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(said))
    pooling = qkv.load(path).pooling
    prompted = qkv.Model(plain.core, plain.tokenizer, plain.special, plain.config, None, pooling)
    assert torch.allclose(prompted.embed("a cat"), plain.embed("query: a cat"))


@pytest.mark.parametrize(("mode", "token"), [("cls_token", "first"), ("mean_tokens", "mean"), ("lasttoken", "last")])
def test_labels_are_read_from_the_states_that_the_base_pools(tmp_path, mode, token):
    begun = qkv.load(write(tmp_path, **flags(mode)))
    made = add_labels(begun, Run("r", lambda: Splits("", "")), 3, words=False)
    assert made.spec.labels.token == token
    assert made.pooling == begun.pooling
    asked = add_labels(begun, Run("r", lambda: Splits("", ""), model=Shape(pooling="first")), 3, words=False)
    assert asked.spec.labels.token == "first"
