"""What is special about DeepSeek: published sizes, the latent cache, layers left unread, configs that are refused."""

import json

import pytest
import torch

from qkv import hub
from qkv.checkpoints import storage
from qkv.core.cache import Static
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.families import Config, deepseek


def drawn(seed, path):
    pytest.importorskip("transformers")
    from support import oracles_mla

    oracles_mla.draw("deepseek", seed).save_pretrained(path)
    return hub.load(path)


@pytest.mark.parametrize(
    ("size", "parameters", "biases"),
    [("v3", 671_026_404_352, 14_848), ("v2", 235_741_434_880, 0), ("v2-lite", 15_706_484_224, 0)],
)
def test_the_published_sizes(size, parameters, biases):
    with torch.device("meta"):
        core = Transformer(deepseek.spec(Config(deepseek.SIZES[size], size)))
    assert sum(p.numel() for p in core.parameters()) == parameters
    assert sum(b.numel() for b in core.buffers()) == biases


@pytest.mark.parametrize("seed", [0, 1])
def test_the_cache_holds_latents_only(seed, tmp_path):
    model = drawn(seed, tmp_path)
    attn, layers = model.spec.stack.blocks[0].attn, len(model.spec.stack.blocks)
    cache, ids = Static(layers), torch.randint(3, 60, (2, 9))
    with torch.no_grad():
        model.core(ids, cache=cache, mode="prefill")
    assert cache.bytes == 2 * 9 * layers * (attn.kv_rank + attn.rotary.dim) * 4


def test_the_layer_that_guesses_further_is_left_unread(tmp_path):
    model = drawn(0, tmp_path)
    more = {n: read() for n, read in storage.open_tensors(tmp_path).items()}
    (tmp_path / "more").mkdir()
    storage.write_tensors(tmp_path / "more", more | {"model.layers.61.eh_proj.weight": torch.zeros(2, 2)})
    (tmp_path / "more" / "config.json").write_text((tmp_path / "config.json").read_text())
    again = hub.load(tmp_path / "more")
    assert all(torch.equal(a, b) for a, b in zip(again.core.parameters(), model.core.parameters(), strict=True))
    storage.write_tensors(tmp_path / "more", more | {"model.layers.60.eh_proj.weight": torch.zeros(2, 2)})
    with pytest.raises(QkvError, match=r"layers\.60\.eh_proj"):
        hub.load(tmp_path / "more")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"moe_layer_freq": 2}, "moe_layer_freq.* is 2"),
        ({"topk_method": "random"}, "topk_method.*'random'.*greedy"),
        ({"scoring_func": "softmax"}, "noaux_tc.*softmax"),
        ({"model_type": "deepseek_v2", "norm_topk_prob": True, "topk_method": "greedy", "scoring_func": "softmax"},
         "greedy.*norm_topk_prob True"),
        ({"n_group": 5}, "5 groups"),
        ({"num_experts_per_tok": 200}, "200 chosen"),
    ],
)  # fmt: skip
def test_a_config_that_means_another_model_is_refused(change, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v3", **change}))
    from qkv.checkpoints import model_dir

    with pytest.raises(QkvError, match=said):
        model_dir.spec_from_config(storage.read_json(tmp_path / "config.json"), tmp_path)


def test_absent_keys_have_transformers_defaults():
    transformers = pytest.importorskip("transformers")
    for kind, own in (("DeepseekV3Config", {}), ("DeepseekV2Config", {"num_experts_per_tok": 6})):
        theirs = getattr(transformers, kind)(**own).to_dict()
        sparse = deepseek.spec(Config({"model_type": theirs["model_type"], **own}, kind))
        assert sparse == deepseek.spec(Config(theirs, kind))
