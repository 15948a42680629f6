"""LLaMA 1 and 2: pre-norm RMSNorm, rotary positions in halves, SwiGLU, shared key/value heads in the large ones."""

from typing import Any

from qkv.families import Config
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack

TYPES = ("llama",)
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


def rotary(c: Config, dim: int) -> Rotary:
    """The rotary part of a config: `rope_parameters` as today, or `rope_theta` with `rope_scaling` as before."""
    rope = c.part("rope_parameters") or c.part("rope_scaling")
    kind = rope.get("rope_type", None) or rope.get("type", "default")
    if kind not in ("default", None):
        raise rope.error("rope_type", kind, "'default' (scaled rotary positions are not supported yet)")
    return Rotary(dim, float(rope.get("rope_theta", None) or c.get("rope_theta", 10_000.0)))


def spec(c: Config) -> Spec:
    """The spec that a LLaMA config describes."""
    width, heads = c["hidden_size"], c["num_attention_heads"]
    dim = c.get("head_dim", None) or width // heads
    bias = c.get("attention_bias", False)
    attn = Attention(
        heads,
        c.get("num_key_value_heads", None) or heads,
        dim,
        Mask("causal"),
        bias,
        bias,
        rotary=rotary(c, dim),
        dropout=c.get("attention_dropout", 0.0) or 0.0,
    )
    activation = c.choice("hidden_act", ACTIVATIONS, "silu")
    ffn = Ffn(c["intermediate_size"], activation, gated=True, bias=c.get("mlp_bias", False))
    norm = Norm("rms", c.get("rms_norm_eps", 1e-6))
    block = Block(attn, ffn, norm_in=norm)
    stack = Stack(
        width, (block,) * c["num_hidden_layers"], final_norm=norm, context=c.get("max_position_embeddings", 2048)
    )
    head = Head("tied" if c.get("tie_word_embeddings", False) else "untied")
    return Spec(c["vocab_size"], stack, head=head, init=Init("normal", c.get("initializer_range", 0.02)))


def config(s: Spec) -> dict[str, Any]:
    """The LLaMA config of a spec; what LLaMA cannot say comes back different and is found by comparing."""
    stack, block = s.decoder, s.decoder.blocks[0]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": s.vocabulary,
        "hidden_size": stack.width,
        "intermediate_size": block.ffn.width,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": block.attn.heads,
        "num_key_value_heads": block.attn.groups,
        "head_dim": block.attn.head_dim,
        "hidden_act": {v: k for k, v in reversed(ACTIVATIONS.items())}[block.ffn.activation],
        "max_position_embeddings": stack.longest,
        "rms_norm_eps": block.norm_in.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": block.attn.rotary.base},
        "attention_bias": block.attn.bias,
        "attention_dropout": block.attn.dropout,
        "mlp_bias": block.ffn.bias,
        "initializer_range": s.init.std,
        "tie_word_embeddings": s.head.kind == "tied",
    }


def size(width: int, layers: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """One of the released models (Touvron et al. 2023, table 2; model cards); `more` is what differs from LLaMA 1."""
    common = {"vocab_size": 32_000, "num_key_value_heads": heads, "max_position_embeddings": 2048}
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": ffn}
    return {**common, **shape, **more}


SIZES = {
    "7b": size(4096, 32, 32, 11008),
    "13b": size(5120, 40, 40, 13824),
    "30b": size(6656, 60, 52, 17920),
    "65b": size(8192, 80, 64, 22016),
    "2-70b": size(8192, 80, 64, 28672, num_key_value_heads=8, max_position_embeddings=4096),
    "3-8b": size(
        4096, 32, 32, 14336, num_key_value_heads=8, max_position_embeddings=8192, vocab_size=128_256, rope_theta=5e5
    ),
}

NAMES = """
embed                           model.embed_tokens
layers.*.attn_in                model.layers.*.input_layernorm
layers.*.attn.{q,k,v,out}       model.layers.*.self_attn.{q_proj,k_proj,v_proj,o_proj}
layers.*.ffn_in                 model.layers.*.post_attention_layernorm
layers.*.ffn.{gate,up,down}     model.layers.*.mlp.{gate_proj,up_proj,down_proj}
final_norm                      model.norm
head                            lm_head
"""

IGNORE = {
    "pretraining_tp": "how it was trained in parallel",
    "model.layers.[0-9]+.self_attn.rotary_emb.inv_freq": "rotary frequencies, computed",
}
