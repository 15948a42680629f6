"""BLOOM: GPT-2 with ALiBi for positions, a norm over the embedding, and q, k and v fused head by head."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, gpt2, llama, name_heads
from qkv.spec import Attention, Block, Ffn, Init, Mask, Norm, Spec, Stack

TYPES = ("bloom",)


def spec(c: Config) -> Spec:
    """The spec that a BLOOM config describes."""
    width, heads = c.size("n_embed", None) or c.size("hidden_size", 64), c.size("n_head", None)
    heads = heads or c.size("num_attention_heads", 8)
    layers = c.layers("n_layer", None) or c.layers("num_hidden_layers", 2)
    mask, drop = Mask("causal", alibi_heads=heads), c.share("hidden_dropout", 0.0)
    attn = Attention(heads=heads, groups=heads, head_dim=width // heads, mask=mask, bias=True, out_bias=True)
    attn = replace(attn, dropout=c.share("attention_dropout", 0.0))
    ffn = Ffn(width=4 * width, activation="gelu_tanh", bias=True)
    norm = Norm("layer", c.number("layer_norm_epsilon", 1e-5))
    residual = "deepnorm" if c.flag("apply_residual_connection_post_layernorm", False) else "serial"
    block = Block(attn, ffn, norm_in=norm, residual=residual, dropout=drop)
    stack = Stack(width=width, blocks=(block,) * layers, embed_norm=norm, final_norm=norm)
    head, labels = llama.read_heads(c.with_defaults(tie_word_embeddings=True))
    init = Init("normal", std=c.share("initializer_range", 0.02))
    return Spec(vocabulary=c.size("vocab_size", 250_880), decoder=stack, head=head, init=init, labels=labels)


def config(s: Spec) -> dict[str, Any]:
    """The BLOOM config of a spec; reading it back shows what BLOOM cannot express."""
    block: Any = s.decoder.blocks[0]
    return {
        **name_heads(s, "Bloom"), "model_type": "bloom", "vocab_size": s.vocabulary,
        "hidden_size": s.decoder.width, "n_layer": len(s.decoder.blocks), "n_head": block.attn.heads,
        "n_inner": 4 * s.decoder.width, "seq_length": 2048,
        "layer_norm_epsilon": block.norm_in.eps, "initializer_range": s.init.std,
        "attention_dropout": block.attn.dropout, "hidden_dropout": block.dropout,
        "apply_residual_connection_post_layernorm": block.residual == "deepnorm",
        "tie_word_embeddings": s.head is None or s.head.kind == "tied",
    }


def size(width: int, layers: int, heads: int) -> dict[str, Any]:
    """One of the released models (Le Scao et al. 2022, table 3)."""
    return {"vocab_size": 250_880, "hidden_size": width, "n_layer": layers, "n_head": heads}


SIZES = {
    "560m": size(1024, 24, 16), "1b1": size(1536, 24, 16), "1b7": size(2048, 24, 16),
    "3b": size(2560, 30, 32), "7b1": size(4096, 30, 32), "176b": size(14_336, 70, 112),
}

NAMES = """
embed                      [transformer.]word_embeddings
embed_norm                 [transformer.]word_embeddings_layernorm
layers.*.attn_in           [transformer.]h.*.input_layernorm
layers.*.attn.{q,k,v}      [transformer.]h.*.self_attention.query_key_value    weave split
layers.*.attn.out          [transformer.]h.*.self_attention.dense
layers.*.ffn_in            [transformer.]h.*.post_attention_layernorm
layers.*.ffn.{up,down}     [transformer.]h.*.mlp.{dense_h_to_4h,dense_4h_to_h}
final_norm                 [transformer.]ln_f
head                       lm_head
labels.out                 score
"""

IGNORE = {
    "seq_length": "the length of texts in training; relative distances have no limit",
    "n_inner": "always 4 times the width",
    "num_hidden_layers|num_attention_heads": "repeat n_layer and n_head",
    "pretraining_tp|slow_but_exact|attention_softmax_in_fp32": "change rounding, not the model",
    "(bias_dropout|masked_softmax)_fusion|skip_bias_add(_qkv)?|offset_alibi": "how it was trained",
}

GGUF, GGUF_NAMES = {"bloom": "BloomForCausalLM"}, gpt2.GGUF_NAMES
