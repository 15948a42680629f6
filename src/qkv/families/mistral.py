"""Mistral: LLaMA without biases whose queries see only the newest `sliding_window` keys (Jiang et al. 2023)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Mask, Spec

TYPES = ("mistral",)
TOKENS = {"mistral": "sentence"}


def spec(c: Config) -> Spec:
    """The spec that a Mistral config describes."""
    mask = Mask("causal", window=c.size("sliding_window", 4096, null=True))
    s = llama.spec(c.with_defaults(num_key_value_heads=8, max_position_embeddings=131_072))
    return llama.map_blocks(s, lambda _, b: replace(b, attn=replace(b.attn, mask=mask)))


def config(s: Spec) -> dict[str, Any]:
    """The Mistral config of a spec; reading it back shows what Mistral cannot express."""
    said = llama.config(s, "Mistral") | {"sliding_window": s.stack.blocks[0].attn.mask.window}
    return {k: v for k, v in said.items() if k not in ("attention_bias", "mlp_bias")}


SEVEN = llama.size(4096, 32, 32, 14336, groups=8, context=32_768, rms_norm_eps=1e-5)
SIZES = {"7b": SEVEN | {"sliding_window": 4096}, "7b-v0.3": SEVEN | {
    "vocab_size": 32_768, "rope_theta": 1e6, "sliding_window": None}}
NAMES, IGNORE = llama.NAMES, llama.IGNORE
