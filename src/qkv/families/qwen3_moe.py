"""Qwen3-MoE: Qwen2-MoE without shared expert and biases, with a norm over each head's q and k."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama, qwen2_moe
from qkv.spec import Mask, Spec

TYPES = ("qwen3_moe",)
TOKENS = {"qwen3_moe": "bytes-nfc"}
DEFAULTS = {"intermediate_size": 6144, "max_position_embeddings": 32_768, "num_key_value_heads": 4}


def spec(c: Config) -> Spec:
    """The spec that a Qwen3-MoE config describes."""
    base = llama.spec(c.with_defaults(**DEFAULTS))
    window = c.size("sliding_window", 4096, null=True)
    mask = Mask("causal", window=window if c.flag("use_sliding_window", False) else None)
    moe, norm = qwen2_moe.read_experts(c, base.stack.blocks[0].ffn, (128, 8, 768)), base.stack.final_norm
    attn = replace(base.stack.blocks[0].attn, mask=mask, qk_norm=norm)
    return llama.map_blocks(qwen2_moe.add_experts(c, base, moe), lambda _, b: replace(b, attn=attn))


def config(s: Spec) -> dict[str, Any]:
    """The Qwen3-MoE config of a spec; reading it back shows what it cannot express."""
    window = s.stack.blocks[0].attn.mask.window
    own = {"model_type": "qwen3_moe", "sliding_window": window, "use_sliding_window": window is not None}
    return qwen2_moe.common_config(s, "Qwen3Moe") | own


def size(width: int, layers: int, heads: int, ffn: int, expert: int) -> dict[str, Any]:
    """One of the released models (Yang et al. 2025, table 2), all with 128 experts."""
    own = qwen2_moe.expert_size(128, 8, expert) | {"head_dim": 128, "norm_topk_prob": True}
    return llama.size(width, layers, heads, ffn, groups=4, context=40_960, **own)


SIZES = {"30b-a3b": size(2048, 48, 32, 6144, 768), "235b-a22b": size(4096, 94, 64, 12288, 1536)}

NAMES = f"""{qwen2_moe.NAMES}
layers.*.attn.{{q_norm,k_norm}}         [model.]layers.*.self_attn.{{q_norm,k_norm}}
"""

IGNORE = qwen2_moe.IGNORE | {"max_window_layers": "without effect in this format"}
