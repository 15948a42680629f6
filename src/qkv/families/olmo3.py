"""OLMo 3: OLMo 2 with a window in three of four layers, whose rotary positions are never stretched (2025)."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from qkv.families import Config, _rope, llama, name_windows, olmo2, read_windows
from qkv.spec import Block, Mask, Spec

TYPES = ("olmo3",)
THETA = 5e5


def spec(c: Config) -> Spec:
    """The spec that an OLMo 3 config describes."""
    dim = c.size("hidden_size") // c.size("num_attention_heads")
    turns = _rope.read_rotaries(c.with_defaults(rope_theta=THETA), dim, THETA)
    s, window = olmo2.spec(c, turns[False]), c.size("sliding_window", 4096)
    near = read_windows(c, [(i + 1) % 4 != 0 for i in range(len(s.stack.blocks))])

    def block(i: int, b: Block) -> Block:
        return replace(b, attn=replace(b.attn, mask=Mask("causal", window if near[i] else None), rotary=turns[near[i]]))

    return llama.map_blocks(s, block)


def config(s: Spec) -> dict[str, Any]:
    """The OLMo 3 config of a spec; reading it back shows what OLMo 3 cannot express."""
    windows = [b.attn.mask.window for b in s.stack.blocks]
    return olmo2.config(s, "Olmo3") | {
        "sliding_window": next(filter(None, windows), 4096), "rope_parameters": _rope.write_rotaries(s),
        "layer_types": name_windows(s),
    }


EIGHT = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
         "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0}
LONG = {"context": 65_536, "vocab_size": 100_278, "sliding_window": 4096, "rope_scaling": EIGHT}
SIZES = {
    "7b": olmo2.size(4096, 32, 32, 11_008, **LONG),
    "32b": olmo2.size(5120, 64, 40, 27_648, groups=8, **LONG),
}
NAMES, IGNORE = olmo2.NAMES, olmo2.IGNORE

GGUF, GGUF_ALWAYS = {"olmo2+attention.sliding_window": "Olmo3ForCausalLM"}, olmo2.GGUF_ALWAYS


def complete_gguf(config: dict[str, Any], _: Container[str]) -> dict[str, Any]:
    """The config of a GGUF file, for which all layers turn by one base."""
    turns = config["rope_parameters"]
    near = turns["sliding_attention"] | {"rope_theta": turns["full_attention"]["rope_theta"]}
    return config | {"rope_parameters": turns | {"sliding_attention": near}}
