"""Every size that a family names: as many parameters as transformers counts on the meta device, or was published."""

from typing import Any

import pytest
import torch

from qkv import cost, hub
from qkv.adapt.group_heads import group_spec, groups_of
from qkv.checkpoints import model_dir

transformers = pytest.importorskip("transformers")

PEERLESS = {"chatglm", "glm_blank", "gpt3", "gpt4", "palm"}  # transformers has no such model: see test_papers.py
NAMED = [f"{family}:{size}" for family, module in sorted(model_dir.modules().items()) for size in module.SIZES]
MASKED = {"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert"}
PUBLISHED = {
    "gpt2:124m": 124_439_808, "gpt2:355m": 354_823_168, "gpt2:774m": 774_030_080, "gpt2:1.5b": 1_557_611_200,
    "llama:7b": 6_738_415_616, "llama:2-70b": 68_976_648_192, "llama:3-8b": 8_030_261_248,
    "llama:3-70b": 70_553_706_496, "llama:tinyllama": 1_100_048_384, "mistral:7b": 7_241_732_096,
    "qwen2:0.5b": 494_032_768, "qwen2:1.5b": 1_543_714_304, "qwen2:7b": 7_615_616_512, "qwen2:72b": 72_706_203_648,
    "qwen3:0.6b": 596_049_920, "qwen3:8b": 8_190_735_360, "qwen3:32b": 32_762_123_264, "glm:9b": 9_399_951_360,
    "mixtral:8x7b": 46_702_792_704, "deepseek:v3": 671_026_404_352, "t5:base": 222_903_552,
}  # fmt: skip
ASKED = [  # what the help, the docs and the papers' readers ask for by name
    *PUBLISHED, "gpt3:125m", "gpt3:350m", "gpt3:760m", "gpt3:1.3b", "gpt3:2.7b", "gpt3:6.7b", "gpt3:13b", "gpt3:175b",
    "bert:base", "bert:large", "bart:large", "transformer:base", "transformer:big", "gpt4:as-reported",
]  # fmt: skip
KIB, MIB = 2**10, 2**20
CACHED = [  # bytes for each token in two-byte numbers: a name, its key/value heads if others, the bytes
    ("gpt3:175b", None, 9 * MIB // 2), ("gpt3:175b", "mqa", 48 * KIB), ("llama:7b", None, 512 * KIB),
    ("qwen2:72b", None, 320 * KIB), ("qwen2:72b", "mha", 5 * MIB // 2), ("deepseek:v3", None, 61 * (512 + 64) * 2),
]  # fmt: skip


def theirs(config: dict[str, Any]) -> int:
    """transformers' own count of a config's model, without what it computes or stores twice."""
    known = transformers.AutoConfig.for_model(**{"pad_token_id": 0} | config)
    kind = ("AutoModelForSeq2SeqLM" if known.is_encoder_decoder else
            "AutoModelForMaskedLM" if known.model_type in MASKED else "AutoModelForCausalLM")  # fmt: skip
    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(known)
    computed = sum(p.numel() for n, p in model.named_parameters() if not p.requires_grad and "embed_positions" in n)
    bias = sum(b.numel() for n, b in model.named_buffers() if n == "final_logits_bias")  # a buffer there
    # transformers 5 ties T5's head at first and parts it when a checkpoint's own comes: the checkpoints of 1.1 have one
    head, embed = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    parted = head.numel() if config.get("tie_word_embeddings") is False and head is embed else 0
    return sum(p.numel() for p in model.parameters()) - computed + bias + parted


@pytest.mark.parametrize("name", [name for name in NAMED if name.partition(":")[0] not in PEERLESS])
def test_a_named_size_has_the_parameters_that_transformers_counts(name: str) -> None:
    config = model_dir.preset_config(name)
    assert config
    ours = cost.count(model_dir.spec_from_config(config, name)).parameters
    assert ours == theirs(config) == PUBLISHED.get(name, ours)


def test_every_name_that_people_ask_for_is_there() -> None:
    assert set(PUBLISHED) <= set(NAMED)
    for name in ASKED:
        assert model_dir.preset_config(name), name


@pytest.mark.parametrize(("name", "attention", "held"), CACHED)
def test_bytes_of_the_cache_are_the_published_ones(name: str, attention: str | None, held: int) -> None:
    spec = hub.spec_of(name)
    spec = group_spec(spec, groups_of(attention)) if attention else spec
    assert cost.count(spec).kv_bytes_per_token("bf16") == held


@pytest.mark.parametrize("name", ["mixtral:8x7b", "deepseek:v3", "bert:base", "transformer:base"])
def test_a_report_is_made_of_integers(name: str) -> None:
    found, mixes = hub.report(name, dtype="bf16"), any(block.moe for block in hub.spec_of(name).stack.blocks)
    keys = ("parameters", "active_parameters", "stored", "kv_bytes_per_token", "weight_bytes", "flops_per_token")
    assert {type(found[key]) for key in keys} == {int}
    assert (found["active_parameters"] < found["parameters"]) == mixes
    assert found["stored"] - found["parameters"] == (14_848 if name == "deepseek:v3" else 0)  # what steers its routers
