"""Configs that cannot be meant are refused by name before anything is built; keys of remote code change nothing."""

import json

import pytest
import torch
from support import oracles

from qkv import hub
from qkv.checkpoints import model_dir
from qkv.checkpoints.model_dir import spec_from_config
from qkv.errors import QkvError
from qkv.families import Config

pytest.importorskip("transformers")


@pytest.mark.parametrize(("family", "change", "says"), [
    ("llama", {"model_type": "lama"}, r"model_type is 'lama'; did you mean 'llama'\?.*known: bart, bert"),
    ("llama", {"model_type": "mamba2"}, r"model_type is 'mamba2'.*known: bart, bert"),
    ("llama", {"num_key_value_heads": 3}, "3 key/value groups do not divide"),
    ("llama", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "'spiral'.*(linear|yarn)"),
    ("llama", {"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
    ("mixtral", {"num_experts_per_tok": 99}, "99 chosen of"),
    ("deepseek", {"n_group": 7}, "groups"),
    ("deepseek", {"num_experts_per_tok": 99}, "99 chosen"),
    ("qwen3_moe", {"num_experts_per_tok": 0}, "'num_experts_per_tok' is 0, expected a whole number from 1"),
    ("bert", {"hidden_act": "swoosh"}, "'swoosh'"),
    ("t5", {"feed_forward_proj": "gated-swoosh"}, "swoosh"),
    ("gpt2", {"n_head": 0}, "."),
    ("llama", {"hidden_size": [64]}, r"'hidden_size' is \[64\], expected a whole number"),
    ("llama", {"num_hidden_layers": "six"}, "'num_hidden_layers' is 'six', expected a whole number"),
    ("marian", {"d_model": 64.5}, "'d_model' is 64.5, expected a whole number"),
    ("t5", {"num_heads": True}, "'num_heads' is True, expected a whole number"),
    ("llama", {"rms_norm_eps": "1e-06"}, "'rms_norm_eps' is '1e-06', expected a number"),
    ("t5", {"num_decoder_layers": 0}, "'num_decoder_layers' is 0, expected a whole number from 1"),
    ("gpt2", {"n_head": 7}, "'n_head' is 7, expected a number that divides the width"),
    ("gpt2", {"n_embd": 10**9}, "'n_embd' is 1000000000, expected a whole number"),
    ("gpt2", {"n_inner": 0}, "'n_inner' is 0, expected a whole number from 1"),
    ("llama", {"rms_norm_eps": None}, "'rms_norm_eps' is None, expected a number"),
    ("deepseek", {"rms_norm_eps": None}, "'rms_norm_eps' is None, expected a number"),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, "'rope_theta' is None"),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": "4"}}, "'rope_theta' is '4'"),
    ("llama", {"vocab_size": None}, "'vocab_size' is None, expected a whole number"),
    ("llama", {"hidden_size": 10**40}, "'hidden_size' is 1000.*expected a whole number from 1 to 400,000,000"),
    ("llama", {"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000, expected a whole number from 1 to"),
    ("llama", {"max_position_embeddings": 0}, "'max_position_embeddings' is 0"),
    ("llama", {"rope_parameters": [1]}, r"'rope_parameters' is \[1\], expected an object"),
    ("llama", {"hidden_act": ["silu"]}, r"'hidden_act' is \['silu'\], expected text"),
    ("qwen2_moe", {"layer_types": ["full_attention"]}, "'layer_types' is .*expected one for each of"),
    ("t5", {"relative_attention_max_distance": 0}, "'relative_attention_max_distance' is 0"),
    ("gpt2", {"resid_pdrop": "0.1"}, "'resid_pdrop' is '0.1', expected a number"),
])  # fmt: skip
def test_a_config_that_cannot_be_meant_is_refused_by_name(family, change, says, tmp_path):
    oracles.draw(family, 0).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(QkvError, match=says):
        spec_from_config(config | change, "config.json")


def test_a_misfit_of_a_key_that_is_lacking_says_what_was_taken(tmp_path):
    oracles.draw("bert", 0).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(QkvError, match=r"taken were .*vocab_size = 30522"):
        hub.load(tmp_path)


def test_keys_of_remote_code_are_never_followed_and_change_nothing(tmp_path):
    oracle = oracles.draw("qwen2", 0)
    oracle.save_pretrained(tmp_path)
    at = oracles.batch(oracle, 0)
    before = hub.load(tmp_path)(at["ids"], padding=at["real"]).logits
    config = json.loads((tmp_path / "config.json").read_text())
    remote = {"auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}, "custom_pipelines": {}}
    (tmp_path / "config.json").write_text(json.dumps(config | remote))
    (tmp_path / "evil.py").write_text("raise SystemExit('remote code ran')")
    assert torch.equal(hub.load(tmp_path)(at["ids"], padding=at["real"]).logits, before)


def test_defaults_of_a_derived_format_stand_between_file_and_parent() -> None:
    c = Config({"a": 1}, "config").with_defaults(b=2).with_defaults(b=3, c=4)
    assert (c.size("a"), c.size("b"), c.size("c", 5), c.size("d", 6)) == (1, 2, 4, 6)
    c.finish(())
    with pytest.raises(QkvError, match="'e' is missing"):
        c.size("e")


@pytest.mark.parametrize("family", ["gemma3", "olmo3"])
def test_layers_with_a_window_turn_by_their_own_base_if_none_is_said(family: str) -> None:
    module = model_dir.modules()[family]
    usual = {"gemma3": 10_000.0, "olmo3": 5e5}[family]
    said = {k: v for k, v in next(iter(module.SIZES.values())).items() if not k.startswith("rope")}
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 3e6}, "sliding_attention": {}}
    blocks = module.spec(Config(said | {"rope_parameters": rope}, "config")).stack.blocks
    assert {(bool(b.attn.mask.window), b.attn.rotary.base) for b in blocks} == {(True, usual), (False, 3e6)}
