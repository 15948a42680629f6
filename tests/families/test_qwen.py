"""LLaMA's relatives where they differ: rotary scalings and windows beyond their length, heads, and bad configs."""

import pytest
import torch

from qkv import hub
from qkv.checkpoints import model_dir
from qkv.errors import QkvError
from qkv.families import Config

transformers = pytest.importorskip("transformers")

COMMON = {
    "vocab_size": 61, "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 3,
    "intermediate_size": 64, "max_position_embeddings": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
FACTORS = {"short_factor": [1 + i / 16 for i in range(16)], "long_factor": [1 + i / 2 for i in range(16)]}
SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 24},
    "yarn-gain": {"factor": 4.0, "original_max_position_embeddings": 24, "attention_factor": 1.3, "beta_fast": 16.0},
    "yarn-exact": {"factor": 4.0, "original_max_position_embeddings": 24, "truncate": False, "beta_slow": 2.0},
    "yarn-mscale": {"factor": 40.0, "original_max_position_embeddings": 24, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn-ratio": {"factor": None, "original_max_position_embeddings": 24},
    "longrope": {"original_max_position_embeddings": 24, **FACTORS},
    "longrope-gain": {"original_max_position_embeddings": 24, "attention_factor": 1.3, **FACTORS},
}


def drawn(kind, **more):
    """A model of transformers with strong weights, so that positions matter."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**{**COMMON, **more})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return model.eval()


def gap(model, tmp_path, length):
    """The largest difference of our logits from transformers' on texts of this length, over their spread."""
    model.save_pretrained(tmp_path)
    ids = torch.randint(3, 61, (2, length), generator=torch.Generator().manual_seed(1))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        want = model(ids).logits
        got = hub.load(tmp_path)(ids).logits
    return ((got - want).abs().max() / want.std()).item()


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_rotary_positions_equal_transformers_beyond_training(name, tmp_path):
    rope = {"rope_type": name.partition("-")[0], "rope_theta": 500.0, **SCALINGS[name]}
    # angles are rounded speeds times positions up to 120
    assert gap(drawn("Llama", rope_parameters=rope), tmp_path, 120) <= 5e-5


@pytest.mark.parametrize("length", [24, 25, 120])
def test_longrope_equals_transformers_on_both_sides_of_training(length, tmp_path):
    rope = {"rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 24,
            "partial_rotary_factor": 0.75, **{key: each[:12] for key, each in FACTORS.items()}}
    more = {"rope_parameters": rope, "original_max_position_embeddings": 24}
    assert gap(drawn("Phi3", **more), tmp_path, length) <= 5e-5


def test_a_longrope_text_is_written_up_to_where_the_factors_change(tmp_path):
    model = drawn("Llama", rope_parameters={"rope_type": "longrope", "rope_theta": 500.0, **SCALINGS["longrope"]})
    model.save_pretrained(tmp_path)
    ids = torch.arange(3, 23)[None]
    want = model.generate(ids, max_new_tokens=5, do_sample=False, eos_token_id=None)[0, 20:].tolist()
    got = hub.load(tmp_path)
    assert got.generate(ids[0].tolist(), max_new_tokens=50, min_new_tokens=5).tokens == want
    with pytest.raises(QkvError, match=r"25.*24"):
        got.generate([3] * 25)


@pytest.mark.parametrize("name", [n for n in SCALINGS if "gain" not in n])
def test_a_wrong_scaling_shows(name, tmp_path, monkeypatch):
    rope = {"rope_type": name.partition("-")[0], "rope_theta": 500.0, **SCALINGS[name]}
    slowed = "qkv.core.positions.scale_frequencies"
    monkeypatch.setattr(slowed, lambda exponent, positions, s, by: 1.0 / s.base**exponent / by.factor**0.5)
    assert gap(drawn("Llama", rope_parameters=rope), tmp_path, 120) > 1e-2


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_survives_the_way_through_a_config(name):
    family = model_dir.modules()["llama"]
    rope = {"rope_type": name.partition("-")[0], **SCALINGS[name]}
    s = family.spec(Config({**COMMON, "rope_theta": 1e4, "rope_scaling": rope}, "config"))
    assert s.stack.blocks[0].attn.rotary.scaling.kind == rope["rope_type"].replace("llama3", "wavelength")
    assert family.spec(Config(family.config(s), "config")) == s


@pytest.mark.parametrize(("kind", "more"), [
    ("Mistral", {"sliding_window": 7}),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    ("Qwen3", {"use_sliding_window": True, "sliding_window": 5, "head_dim": 32,
               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
])  # fmt: skip
def test_windows_equal_transformers_beyond_their_length(kind, more, tmp_path):
    model = drawn(kind, **more)
    assert gap(model, tmp_path, 40) <= 2e-5
    core = hub.load(tmp_path).core
    windows = [b.attn.mask.window for b in core.spec.stack.blocks]
    assert windows == {"Mistral": [7, 7, 7], "Qwen2": [None, 7, 7], "Qwen3": [5, None, 5]}[kind]


def test_a_window_that_is_one_too_wide_shows(tmp_path):
    model = drawn("Mistral", sliding_window=7)
    model.config.sliding_window = 8  # what is saved; the model keeps its 7
    model.save_pretrained(tmp_path)
    ids = torch.randint(3, 61, (1, 30), generator=torch.Generator().manual_seed(1))
    model.config.sliding_window = 7
    with torch.no_grad():
        assert (hub.load(tmp_path)(ids).logits - model(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3", "Glm", "Glm4"])
def test_labels_come_from_the_last_real_token(kind, tmp_path):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**COMMON, head_dim=32, num_labels=5)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    model.save_pretrained(tmp_path)
    ours = hub.load(tmp_path)
    ids = torch.randint(3, 61, (3, 9), generator=torch.Generator().manual_seed(2))
    real = torch.arange(9)[None] < torch.tensor([9, 4, 7])[:, None]
    ids = ids.where(real, torch.tensor(0))
    from qkv.core.step import Inputs

    with torch.no_grad():
        want = model(ids, attention_mask=real.long()).logits
        got = ours.core.classify(ids, Inputs(padding_mask=real))
    assert (got - want).abs().max() <= 1e-5
    ours.config = None
    ours.save(tmp_path / "again")
    again = type(model).from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        assert torch.equal(again(ids, attention_mask=real.long()).logits, want)


def test_a_bare_model_loads(tmp_path):
    model = transformers.LlamaModel(transformers.LlamaConfig(**COMMON)).eval()
    model.save_pretrained(tmp_path)
    ids = torch.randint(3, 61, (2, 9))
    core = hub.load(tmp_path).core

    with torch.no_grad():
        assert (core.hidden(ids) - model(ids).last_hidden_state).abs().max() <= 1e-5
    assert core.spec.head is None


@pytest.mark.parametrize(("family", "change", "says"), [
    ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "short_factor"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "'factor' is missing"),
    ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0, **FACTORS}}, "short_factor"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [8, 8]}}, "mrope_section"),
    ("llama", {"partial_rotary_factor": 0.5}, "turns whole heads"),
    ("llama", {"architectures": ["LlamaForTokenClassification"]}, "ForSequenceClassification"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "use_sliding_window"),
    ("qwen3", {"layer_types": ["full_attention"] * 2}, "3 layers"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "full_attention"),
    ("mistral", {"num_key_value_heads": 2}, "2 key/value groups do not divide 3 heads"),
])  # fmt: skip
def test_what_cannot_be_meant_is_named(family, change, says):
    with pytest.raises(QkvError, match=says):
        model_dir.spec_from_config({"model_type": family, **COMMON, **change}, "config.json")
