"""Gemma 2: Gemma with a norm after each part too, capped scores and logits, a window in every other layer (2024)."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from qkv.families import Config, gemma, llama, name_windows, read_windows
from qkv.spec import Block, Head, Mask, Spec

TYPES = ("gemma2",)
TOKENS = {"gemma2": "sentence"}
USUAL = gemma.USUAL | {
    "num_key_value_heads": 4, "max_position_embeddings": 8192, "sliding_window": 4096, "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
}


def spec(c: Config) -> Spec:
    """The spec that a Gemma 2 config describes; every other layer, the first one too, sees a window."""
    c = c.with_defaults(**USUAL)
    s, cap = add_parts(c, llama.spec(c), 2), c.number("attn_logit_softcapping", None)
    return llama.map_blocks(s, lambda _, b: replace(b, attn=replace(b.attn, cap=cap and float(cap))))


def add_parts(c: Config, base: Spec, period: int) -> Spec:
    """The spec with windows but in every `period`th layer, and the scale, norms and capped logits of later Gemmas."""
    c.fixed("hidden_activation", "gelu_pytorch_tanh")
    s, window = gemma.shift(base), c.size("sliding_window", None)
    near = read_windows(c, [(i + 1) % period != 0 for i in range(len(s.stack.blocks))])
    scalar, limit = c.size("query_pre_attn_scalar"), c.number("final_logit_softcapping", None)

    def block(i: int, b: Block) -> Block:
        scale = None if scalar == c.size("head_dim") else scalar**-0.5
        attn = replace(b.attn, mask=Mask("causal", window if near[i] else None), scale=scale)
        return replace(b, attn=attn, norm_out=b.norm_in)

    head: Head | None = s.head and replace(s.head, cap=limit and float(limit))
    return replace(llama.map_blocks(s, block), head=head)


def config(s: Spec, name: str = "Gemma2") -> dict[str, Any]:
    """The Gemma 2 config of a spec; reading it back shows what Gemma 2 cannot express."""
    said, attn = gemma.config(s, name), s.stack.blocks[0].attn
    windows = [b.attn.mask.window for b in s.stack.blocks]
    return said | {
        "hidden_activation": said.pop("hidden_act"), "sliding_window": next(filter(None, windows), None),
        "layer_types": name_windows(s),
        "query_pre_attn_scalar": round(attn.scale**-2) if attn.scale else said["head_dim"],
        "attn_logit_softcapping": attn.cap, "final_logit_softcapping": s.head.cap if s.head else None,
    }


SIZES = {
    "2b": gemma.size(2304, 26, 8, 9216, groups=4),
    "9b": gemma.size(3584, 42, 16, 14_336, groups=8),
    "27b": gemma.size(4608, 46, 32, 36_864, groups=16) | {"head_dim": 128, "query_pre_attn_scalar": 144},
}
NAMES = llama.NAMES.replace("layers.*.ffn_in                 [model.]layers.*.post_attention_layernorm", """
layers.*.{attn_out,ffn_out}     [model.]layers.*.{post_attention_layernorm,post_feedforward_layernorm}
layers.*.ffn_in                 [model.]layers.*.pre_feedforward_layernorm""")
IGNORE = llama.IGNORE | {"hidden_act": "repeats hidden_activation", "cache_implementation": "how to generate"}

GGUF, GGUF_ALWAYS = {"gemma2": "Gemma2ForCausalLM"}, gemma.GGUF_ALWAYS
GGUF_NAMES = gemma.GGUF_NAMES + """
layers.*.{attn_out,ffn_out}  blk.*.{post_attention_norm,post_ffw_norm}   shift
"""


def complete_gguf(config: dict[str, Any], _: Container[str], largest: int = 46) -> dict[str, Any]:
    """The config of a GGUF file with what such files leave unsaid: scores are scaled otherwise in the largest model."""
    width = config["hidden_size"] // config["num_attention_heads"]
    scalar = width if config["num_hidden_layers"] == largest else config["head_dim"]
    return config | {"query_pre_attn_scalar": scalar}
