"""Phi-3: LLaMA whose q, k and v lie in one tensor, gate and up in another; it may see a window (Abdin et al. 2024)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Mask, Spec

TYPES = ("phi3",)
TOKENS = {"phi3": "sentence"}


def spec(c: Config) -> Spec:
    """The spec that a Phi-3 config describes."""
    s = llama.spec(c.with_defaults(rms_norm_eps=1e-5, max_position_embeddings=4096), partial=True)
    mask, drop = Mask("causal", c.size("sliding_window", None)), c.share("resid_pdrop", 0.0)
    return llama.map_blocks(s, lambda _, b: replace(b, attn=replace(b.attn, mask=mask), dropout=drop))


def config(s: Spec) -> dict[str, Any]:
    """The Phi-3 config of a spec; reading it back shows what Phi-3 cannot express."""
    said, block = llama.config(s, "Phi3", partial=True), s.stack.blocks[0]
    said |= {"sliding_window": block.attn.mask.window, "resid_pdrop": block.dropout}
    return {k: v for k, v in said.items() if k not in ("attention_bias", "mlp_bias", "head_dim")}


FOUR: dict[str, Any] = {"context": 4096, "vocab_size": 32_064, "sliding_window": 2047}
SIZES = {
    "mini-4k": llama.size(3072, 32, 32, 8192, **FOUR),
    "medium-4k": llama.size(5120, 40, 40, 17_920, groups=10, **FOUR),
    "4": llama.size(5120, 40, 40, 17_920, groups=10, context=16_384, vocab_size=100_352, rope_theta=250_000.0),
}
NAMES = """
embed                           [model.]embed_tokens
layers.*.attn_in                [model.]layers.*.input_layernorm
layers.*.attn.{q,k,v}           [model.]layers.*.self_attn.qkv_proj       split
layers.*.attn.out               [model.]layers.*.self_attn.o_proj
layers.*.ffn_in                 [model.]layers.*.post_attention_layernorm
layers.*.ffn.{gate,up}          [model.]layers.*.mlp.gate_up_proj         split
layers.*.ffn.down               [model.]layers.*.mlp.down_proj
final_norm                      [model.]norm
head                            lm_head
labels.out                      score
"""
IGNORE = llama.IGNORE | {"embd_pdrop": "transformers keeps it and drops nothing by it"}

GGUF = {"phi3": "Phi3ForCausalLM"}
GGUF_NAMES = """
layers.*.attn.{q,k,v}    blk.*.attn_qkv   split
layers.*.ffn.{gate,up}   blk.*.ffn_up     split
"""
