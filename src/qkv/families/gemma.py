"""Gemma: LLaMA with embeddings scaled by the root of the width, norm weights around 0 and a tanh GELU (2024)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Spec

TYPES = ("gemma",)
TOKENS = {"gemma": "sentence"}
USUAL = {"head_dim": 256, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}


def spec(c: Config) -> Spec:
    """The spec that a Gemma config describes."""
    c.choice("hidden_act", {"gelu": 0, "gelu_pytorch_tanh": 0}, "gelu")  # the first releases say gelu and mean tanh
    return shift(llama.spec(c.with_defaults(**USUAL, max_position_embeddings=8192)))


def shift(s: Spec) -> Spec:
    """The spec with weights of norms around 0, embeddings scaled and tanh GELU: what all Gemmas share."""
    stack: Any = s.decoder
    norm = replace(stack.final_norm, offset=1.0)
    s = replace(s, decoder=replace(stack, embed_scale=stack.width**0.5, final_norm=norm))
    return llama.map_blocks(
        s, lambda _, b: replace(b, norm_in=norm, ffn=b.ffn and replace(b.ffn, activation="gelu_tanh"))
    )


def config(s: Spec, name: str = "Gemma") -> dict[str, Any]:
    """The Gemma config of a spec; reading it back shows what Gemma cannot express."""
    return {k: v for k, v in llama.config(s, name).items() if k != "mlp_bias"}


def size(width: int, layers: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """One of the released models (Gemma Team 2024, table 1)."""
    return llama.size(width, layers, heads, ffn, context=8192, head_dim=256, vocab_size=256_000, **more)


SIZES = {"2b": size(2048, 18, 8, 16_384, groups=1), "7b": size(3072, 28, 16, 24_576)}
NAMES = llama.NAMES
IGNORE = llama.IGNORE | {"hidden_activation": "repeats hidden_act"}

GGUF = {"gemma": "GemmaForCausalLM"}
GGUF_ALWAYS = {"tie_word_embeddings": True, "attention_bias": False}
GGUF_NAMES = """
final_norm                 output_norm                shift
layers.*.{attn_in,ffn_in}  blk.*.{attn_norm,ffn_norm}   shift
"""
