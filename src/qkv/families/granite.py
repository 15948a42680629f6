"""Granite 3 and 4 (dense): LLaMA with a multiplier on embeddings, scores, updates and logits (Granite Team 2024)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Spec

TYPES = ("granite",)


def spec(c: Config) -> Spec:
    """The spec that a Granite config describes."""
    s, by = llama.spec(c), float(c.number("residual_multiplier", 1.0))
    scaled: Any = {"residual": "scaled", "residual_scale": by} if by != 1 else {}
    scale = float(c.number("attention_multiplier", 1.0))
    s = llama.map_blocks(s, lambda _, b: replace(b, attn=replace(b.attn, scale=scale), **scaled))
    head = s.head and replace(s.head, scale=1 / c.number("logits_scaling", 1.0))
    return replace(s, decoder=replace(s.stack, embed_scale=float(c.number("embedding_multiplier", 1.0))), head=head)


def config(s: Spec) -> dict[str, Any]:
    """The Granite config of a spec; reading it back shows what Granite cannot express."""
    block = s.stack.blocks[0]
    return llama.config(s, "Granite") | {
        "embedding_multiplier": s.stack.embed_scale, "residual_multiplier": block.residual_scale,
        "attention_multiplier": block.attn.scale, "logits_scaling": 1 / s.head.scale if s.head else 1.0,
    }


def size(width: int, layers: int, ffn: int, scale: float, **more: Any) -> dict[str, Any]:
    """One of the released models of the third generation (model cards)."""
    shape = llama.size(width, layers, 32, ffn, groups=8, context=131_072, vocab_size=49_155, rms_norm_eps=1e-5, **more)
    return shape | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": scale,
                    "tie_word_embeddings": True}


SIZES = {"3.1-2b": size(2048, 40, 8192, 0.015625, logits_scaling=8.0, rope_theta=5e6),
         "3.1-8b": size(4096, 40, 12_800, 0.0078125, logits_scaling=16.0, rope_theta=1e7)}
NAMES, IGNORE = llama.NAMES, llama.IGNORE
GGUF, GGUF_NAMES = {"granite": "GraniteForCausalLM"}, llama.GGUF_NAMES
