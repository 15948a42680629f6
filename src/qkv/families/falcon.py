"""Falcon: attention beside the feed-forward network, one or few key/value heads, no bias (Almazrouei et al. 2023)."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.messages import Message
from qkv.spec import Block, Norm, Spec

TYPES = ("falcon",)


def spec(c: Config) -> Spec:
    """The spec that a Falcon config describes: the 7B's with one key/value head, or the later ones' with several."""
    if c.flag("alibi", False):
        raise c.error("alibi", True, Message("false: here Falcon's older way to add distances is not supported"))
    new, heads = c.flag("new_decoder_architecture", False), c.size("num_attention_heads", 71)
    groups, one = c.size("num_kv_heads", None) or heads, c.flag("multi_query", True)
    groups = groups if new else 1 if one else heads
    width, bias, drop = c.size("hidden_size", 4544), c.flag("bias", False), c.share("hidden_dropout", 0.0)
    s = llama.spec(c.with_defaults(
        hidden_size=width, num_attention_heads=heads, num_hidden_layers=32, vocab_size=65_024,
        num_key_value_heads=groups, intermediate_size=c.size("ffn_hidden_size", None) or 4 * width,
        attention_bias=bias, mlp_bias=bias, hidden_act="gelu", tie_word_embeddings=True,
    ))
    norm = Norm("layer", c.number("layer_norm_epsilon", 1e-5))
    c.fixed("parallel_attn", True)
    norms: Any = "each" if c.size("num_ln_in_parallel_attn", None) != 1 and new else "one"
    activation = c.choice("activation", llama.ACTIVATIONS, "gelu")

    def block(_: int, b: Block) -> Block:
        return Block(b.attn, b.ffn and replace(b.ffn, gated=False, activation=activation), norm_in=norm, dropout=drop,
                     residual="parallel", norms=norms)

    s = llama.map_blocks(s, block)
    return replace(s, decoder=replace(s.stack, final_norm=norm))


def config(s: Spec) -> dict[str, Any]:
    """The Falcon config of a spec; reading it back shows what Falcon cannot express."""
    block: Any = s.stack.blocks[0]
    said, groups = llama.config(s, "Falcon"), block.attn.groups
    new = groups not in (1, block.attn.heads) or block.norms == "each"
    own = {
        "layer_norm_epsilon": said.pop("rms_norm_eps"), "ffn_hidden_size": said.pop("intermediate_size"),
        "activation": said.pop("hidden_act"), "bias": said.pop("attention_bias"), "hidden_dropout": block.dropout,
        "num_kv_heads": said.pop("num_key_value_heads"), "new_decoder_architecture": new, "alibi": False,
        "multi_query": groups == 1, "parallel_attn": True,
        "num_ln_in_parallel_attn": (2 if block.norms == "each" else 1) if new else None,
    }
    return {k: v for k, v in said.items() if k not in ("mlp_bias", "head_dim")} | own


def size(width: int, layers: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    """One of the released models (Almazrouei et al. 2023, table 1)."""
    return {"vocab_size": 65_024, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_kv_heads": groups, "new_decoder_architecture": groups > 1} | more


SIZES = {
    "7b": size(4544, 32, 71, 1), "40b": size(8192, 60, 128, 8), "180b": size(14_848, 80, 232, 8),
    "11b": size(4096, 60, 32, 8, num_ln_in_parallel_attn=1, ffn_hidden_size=16_384, rope_theta=500_042),
}
NAMES = """
embed                      [transformer.]word_embeddings
layers.*.attn_in           [transformer.]h.*.input_layernorm          without:layers.0.ffn_in
layers.*.{attn_in,ffn_in}  [transformer.]h.*.{ln_attn,ln_mlp}         with:layers.0.ffn_in
layers.*.attn.{q,k,v}      [transformer.]h.*.self_attention.query_key_value    weave split
layers.*.attn.out          [transformer.]h.*.self_attention.dense
layers.*.ffn.{up,down}     [transformer.]h.*.mlp.{dense_h_to_4h,dense_4h_to_h}
final_norm                 [transformer.]ln_f
head                       lm_head
labels.out                 score
"""
IGNORE: dict[str, str] = {}

GGUF = {"falcon": "FalconForCausalLM"}
GGUF_NAMES = """
layers.*.attn_in           blk.*.attn_norm                     without:layers.0.ffn_in
layers.*.{attn_in,ffn_in}  blk.*.{attn_norm_2,attn_norm}       with:layers.0.ffn_in
layers.*.attn.{q,k,v}      blk.*.attn_qkv                      split
"""


def complete_gguf(config: dict[str, Any], tensors: Container[str]) -> dict[str, Any]:
    """The config of a GGUF file with what its heads and norms say of the decoder's kind."""
    groups, norms = config.get("num_kv_heads", 1), 2 if "blk.0.attn_norm_2.weight" in tensors else 1
    new = norms == 2 or groups not in (1, config["num_attention_heads"])
    return config | {"new_decoder_architecture": new, "multi_query": groups == 1, "num_ln_in_parallel_attn": norms}
