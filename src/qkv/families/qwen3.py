"""Qwen3: Qwen2 without its biases, and each head's q and k normed before the rotation (Yang et al. 2025)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama, qwen2
from qkv.spec import Spec

TYPES = ("qwen3",)
TOKENS = {"qwen3": "bytes-nfc"}


def spec(c: Config) -> Spec:
    """The spec that a Qwen3 config describes."""
    s = llama.spec(c.with_defaults(num_key_value_heads=32, head_dim=128, max_position_embeddings=32_768))
    return qwen2.add_windows(c, llama.map_blocks(s, lambda _, b: replace(b, attn=replace(b.attn, qk_norm=b.norm_in))))


def config(s: Spec) -> dict[str, Any]:
    """The Qwen3 config of a spec; reading it back shows what Qwen3 cannot express."""
    return qwen2.config(s, "Qwen3") | {"attention_bias": s.stack.blocks[0].attn.bias}


def size(width: int, layers: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """One of the released models (Yang et al. 2025, table 1)."""
    shape = llama.size(width, layers, heads, ffn, groups=8, context=40_960, rope_theta=1e6, head_dim=128)
    return shape | {"vocab_size": 151_936} | more


SIZES = {
    "0.6b": size(1024, 28, 16, 3072, tie_word_embeddings=True),
    "1.7b": size(2048, 28, 16, 6144, tie_word_embeddings=True),
    "8b": size(4096, 36, 32, 12288),
    "32b": size(5120, 64, 64, 25600),
}
NAMES = llama.NAMES + "layers.*.attn.{q_norm,k_norm}  [model.]layers.*.self_attn.{q_norm,k_norm}\n"
IGNORE = llama.IGNORE
GGUF, GGUF_ALWAYS = {"qwen3": "Qwen3ForCausalLM"}, {"attention_bias": False}
