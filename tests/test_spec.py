"""A spec as JSON and back; what earlier versions wrote is still read."""

import json

import pytest
from support import zoo

from qkv import hub
from qkv.errors import QkvError
from qkv.paths import bundled_dir
from qkv.spec import Spec, as_json, from_json

OLD = {
    "num_experts": "count", "top_k": "chosen", "topk_groups": "open_groups", "nope_head_dim": "plain_dim",
    "residual_scale": "carry", "deepnorm": "normed", "half": "halves", "interleaved": "neighbours",
}  # fmt: skip


@pytest.mark.parametrize("name", zoo.ALL)
def test_a_spec_survives_json_also_in_the_words_of_earlier_versions(name: str) -> None:
    spec = zoo.ALL[name]()
    text = json.dumps(as_json(spec))
    assert from_json(Spec, json.loads(text)) == spec
    for new, old in OLD.items():
        text = text.replace(f'"{new}"', f'"{old}"')
    assert from_json(Spec, json.loads(text)) == spec


def test_a_bundled_model_is_read_with_old_names() -> None:
    config = json.loads((bundled_dir() / "demo-moe" / "config.json").read_text(encoding="utf-8"))
    assert "open_groups" in json.dumps(config)
    assert from_json(Spec, config["spec"]).stack.blocks[0].moe.top_k == 2


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(QkvError, match="vocabulary"):
        from_json(Spec, {"vocabulery": 9})


@pytest.mark.parametrize(
    ("family", "architecture", "fills_blanks"),
    [
        ("marian", "encoder-decoder", False),
        ("bert", "encoder", False),
        ("llama", "causal decoder", False),
        ("deepseek", "causal decoder", False),
        ("chatglm", "prefix decoder", True),
        ("glm_blank", "prefix decoder", True),
    ],
)
def test_a_spec_names_its_architecture(family: str, architecture: str, fills_blanks: bool) -> None:
    spec = hub.spec_of(family)
    assert spec.architecture == architecture
    assert spec.fills_blanks == fills_blanks
