"""What is special in T5 and GPT-Neo: buckets of distances, bare encoders, heads tied or not, windows by layer."""

import json
from dataclasses import replace

import pytest
import torch
from support import oracles_t5 as drawn

from qkv import cost, hub
from qkv.core import positions
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.families import Config, gpt_neo, t5

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 60, "d_model": 48, "d_kv": 32, "d_ff": 64, "num_layers": 3, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
}  # fmt: skip


def states(model, at):
    """Our states of a model without a head on real positions."""
    with torch.no_grad():
        if "target" in at:
            return model(source=at["ids"], target=at["target"], padding=at["real"]).hidden
        return model(at["ids"], padding=at["real"]).hidden[at["real"]]


@pytest.mark.parametrize("kind", ["T5EncoderModel", "MT5EncoderModel", "T5Model"])
def test_models_without_a_head_equal_transformers_and_come_back(kind, tmp_path):
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind.split('5')[0]}5Config")(**SMALL, feed_forward_proj="gated-gelu")
    oracle = drawn.mild(drawn.oracles.shaken(getattr(transformers, kind)(config)), ".q.weight", 32)
    oracle.save_pretrained(tmp_path / "theirs")
    at = drawn.oracles.batch(oracle, 0)
    model = hub.load(tmp_path / "theirs")
    with torch.no_grad():
        if kind == "T5Model":
            want = oracle(at["ids"], at["real"].long(), decoder_input_ids=at["target"]).last_hidden_state
        else:
            at.pop("target", None)
            want = oracle(at["ids"], attention_mask=at["real"].long()).last_hidden_state[at["real"]]
    assert (states(model, at) - want).abs().max() <= 1e-5 * want.std().item() * 3
    model.config = None
    model.save(tmp_path / "ours")
    again = getattr(transformers, kind.removeprefix("M")).from_pretrained(tmp_path / "ours")
    assert all(torch.equal(p, again.state_dict()[n]) for n, p in oracle.state_dict().items())


@pytest.mark.parametrize("fault", ["distance", "direction", "scale"])
def test_a_fault_in_the_distances_shows(fault, tmp_path, monkeypatch):
    oracle = drawn.draw("t5", 1)
    oracle.save_pretrained(tmp_path)
    model, at = hub.load(tmp_path), drawn.oracles.batch(oracle, 1)
    usual = positions.bucket_distances
    if fault == "scale":
        for layer in model.core.encoder.layers:
            layer.attn.scale = 32**-0.5
    else:
        change = {"distance": 11 + oracle.config.relative_attention_max_distance} if fault == "distance" else {}

        def wrong(start, tokens, s, device):
            other = {"both": "past", "past": "both"}[s.direction] if fault == "direction" else s.direction
            return usual(start, tokens, replace(s, direction=other, **change), device)

        monkeypatch.setattr("qkv.core.model.bucket_distances", wrong)
    with torch.no_grad():
        got = model(source=at["ids"], target=at["target"], padding=at["real"]).logits.flatten(0, 1)
    assert (got - drawn.oracles.logits(oracle, at)).abs().max() > 1e-3


def test_buckets_equal_transformers_far_out():
    from transformers.models.t5.modeling_t5 import T5Attention

    for direction in ("both", "past"):
        s = replace(t5.spec(Config(t5.SIZES["small"], "small")).encoder.relative, direction=direction)
        ours = positions.bucket_distances(0, 400, s, torch.device("cpu"))
        ahead = torch.arange(400)[None] - torch.arange(400)[:, None]
        theirs = T5Attention._relative_position_bucket(ahead, direction == "both", s.buckets, s.distance)
        assert torch.equal(ours, theirs)


def test_every_wording_of_the_head_is_understood():
    def head(**keys):
        return t5.spec(Config(SMALL | keys, "config")).head

    scaled = head()
    assert (scaled.kind, scaled.scale) == ("tied", 48**-0.5)
    assert head(tie_word_embeddings=True) == scaled
    assert head(tie_word_embeddings=False).kind == "untied"  # as the released 1.1 files say it
    assert head(tie_word_embeddings=True, scale_decoder_outputs=False).kind == "untied"  # and as transformers 5 does
    assert head(tie_word_embeddings=True, scale_decoder_outputs=True) == scaled
    assert head(model_type="mt5", tie_word_embeddings=True).scale == 1.0


def test_an_untied_head_that_is_not_stored_is_the_embedding(tmp_path):
    torch.manual_seed(0)
    oracle = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**SMALL, tie_word_embeddings=False, decoder_start_token_id=0)
    )
    oracle.save_pretrained(tmp_path)
    model = hub.load(tmp_path)
    assert torch.equal(model.core.head.weight, oracle.shared.weight)
    assert torch.equal(model.core.embed.weight, oracle.shared.weight)


def test_what_t5_cannot_mean_is_refused(tmp_path):
    with pytest.raises(QkvError, match="architectures"):
        t5.spec(Config(SMALL | {"architectures": ["T5ForTokenClassification"]}, "config"))
    with pytest.raises(QkvError, match="feed_forward_proj"):
        t5.spec(Config(SMALL | {"feed_forward_proj": "gated-relo"}, "config"))
    config = gpt_neo.SIZES["125m"] | {"attention_types": [[["global", "locale"], 6]]}
    with pytest.raises(QkvError, match="attention_types"):
        gpt_neo.spec(Config(config, "config"))
    with pytest.raises(QkvError, match="attention_types"):
        gpt_neo.spec(Config(gpt_neo.SIZES["125m"] | {"num_layers": 13}, "config"))


def test_a_config_without_its_optional_keys_means_transformers_defaults(tmp_path):
    config = transformers.GPTNeoConfig()
    ours = gpt_neo.spec(Config({"model_type": "gpt_neo"}, "config"))
    assert ours == gpt_neo.spec(Config(json.loads(config.to_json_string(use_diff=False)), "config"))
    windows = [b.attn.mask.window for b in ours.decoder.blocks]
    assert windows == [256 if kind == "local" else None for kind in config.attention_layers]


def test_a_window_of_another_width_shows(tmp_path):
    oracle = drawn.draw("gpt_neo", 0)
    oracle.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"window_size": config["window_size"] + 1}), encoding="utf-8")
    model, at = hub.load(tmp_path), drawn.oracles.batch(oracle, 0)
    with torch.no_grad():
        got = model.core(at["ids"], Inputs(padding_mask=at["real"])).logits[at["real"]]
    assert (got - drawn.oracles.logits(oracle, at)).abs().max() > 1e-3


# The model cards' files, counted
PUBLISHED = {
    "small": 60_506_624, "base": 222_903_552, "large": 737_668_096, "3b": 2_851_598_336, "11b": 11_307_321_344,
    "v1.1-small": 76_961_152, "v1.1-base": 247_577_856, "v1.1-large": 783_150_080, "v1.1-xl": 2_849_757_184,
    "v1.1-xxl": 11_135_332_352,
}  # fmt: skip


@pytest.mark.parametrize("size", PUBLISHED)
def test_sizes_have_the_published_counts(size):
    assert cost.count(t5.spec(Config(t5.SIZES[size], size))).parameters == PUBLISHED[size]
