"""LLaMA 1 to 3: pre-norm RMSNorm, rotary positions in halves, SwiGLU, shared key/value heads in the large ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qkv.families import Config, _rope, count_labels, name_heads
from qkv.messages import Message
from qkv.spec import Attention, Block, Ffn, Head, Init, Labels, Mask, Norm, Rotary, Spec, Stack

TYPES = ("llama",)
TOKENS = {"llama": "sentence"}
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
               "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}


def spec(c: Config, *, partial: bool = False, turn: Rotary | None = None) -> Spec:
    """The spec that a LLaMA config describes; derived families may allow partly rotated heads, or give the rotation."""
    width, heads, bias = c.size("hidden_size"), c.size("num_attention_heads"), c.flag("attention_bias", False)
    dim = c.size("head_dim", None) or width // c.heads("num_attention_heads", width)
    groups, turn = c.size("num_key_value_heads", None) or heads, turn or _rope.read_rotary(c, dim, partial=partial)
    attn = Attention(
        heads=heads, groups=groups, head_dim=dim, mask=Mask("causal"), bias=bias, out_bias=bias, rotary=turn,
        dropout=c.share("attention_dropout", None) or 0.0,
    )
    activation = c.choice("hidden_act", ACTIVATIONS, "silu")
    ffn = Ffn(width=c.size("intermediate_size"), activation=activation, gated=True, bias=c.flag("mlp_bias", False))
    norm = Norm("rms", c.number("rms_norm_eps", 1e-6))
    blocks = (Block(attn, ffn, norm_in=norm),) * c.layers("num_hidden_layers")
    stack = Stack(width=width, blocks=blocks, final_norm=norm, context=c.size("max_position_embeddings", 2048))
    head, labels = read_heads(c)
    init = Init("normal", std=c.share("initializer_range", 0.02))
    return Spec(vocabulary=c.size("vocab_size"), decoder=stack, head=head, init=init, labels=labels)


def read_heads(c: Config) -> tuple[Head | None, Labels | None]:
    """The head and the labels by `architectures`: tokens, labels from the last token, or neither."""
    kind = (c.texts("architectures", None) or ["ForCausalLM"])[0]
    head = Head("tied" if c.flag("tie_word_embeddings", False) else "untied")
    labels = Labels(count_labels(c), token="last", bias=False)
    for ending, found in {"ForCausalLM": (head, None), "ForSequenceClassification": (None, labels)}.items():
        if kind.endswith(ending):
            return found
    if not kind.endswith("Model"):
        raise c.error("architectures", kind,
                      Message("one that ends in ForCausalLM, ForSequenceClassification or Model"))
    return None, None


def config(s: Spec, name: str = "Llama", *, partial: bool = False) -> dict[str, Any]:
    """The LLaMA config of a spec, with the `partial` turn of heads; reading it back shows what LLaMA cannot express."""
    stack, block = s.stack, s.stack.blocks[0]
    attn: Any = block.attn  # another kind of attention fails here, and the caller tries the next family
    share = {"partial_rotary_factor": attn.rotary.dim / attn.head_dim} if partial else {}
    return {
        **name_heads(s, name), "model_type": name.lower(), "vocab_size": s.vocabulary,
        "hidden_size": stack.width, "intermediate_size": block.ffn.width,
        "num_hidden_layers": len(stack.blocks), "num_attention_heads": attn.heads,
        "num_key_value_heads": attn.groups, "head_dim": attn.head_dim,
        "hidden_act": {v: k for k, v in reversed(ACTIVATIONS.items())}[block.ffn.activation],
        "max_position_embeddings": stack.longest, "rms_norm_eps": block.norm_in.eps,
        "rope_parameters": _rope.write_rotary(attn.rotary) | share, "attention_bias": attn.bias,
        "attention_dropout": attn.dropout, "mlp_bias": block.ffn.bias, "initializer_range": s.init.std,
        "tie_word_embeddings": bool(s.head) and s.head.kind == "tied",
    }


def map_blocks(s: Spec, change: Callable[[int, Block], Block]) -> Spec:
    """The spec with `change(i, block)` in place of every block: how derived families differ."""
    blocks = tuple(change(i, b) for i, b in enumerate(s.stack.blocks))
    return replace(s, decoder=replace(s.stack, blocks=blocks))


def size(
    width: int, layers: int, heads: int, ffn: int, *, groups: int | None = None, context: int = 2048, **more: Any
) -> dict[str, Any]:
    """One of the released models (Touvron et al. 2023, table 2; model cards); `more` is what differs from LLaMA 1."""
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": ffn}
    return shape | {"vocab_size": 32_000, "num_key_value_heads": groups or heads,
                    "max_position_embeddings": context} | more


LONG = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}
THREE = {"vocab_size": 128_256, "rope_theta": 5e5, "rms_norm_eps": 1e-5}
SIZES = {
    "7b": size(4096, 32, 32, 11008), "13b": size(5120, 40, 40, 13824),
    "30b": size(6656, 60, 52, 17920), "65b": size(8192, 80, 64, 22016),
    "2-70b": size(8192, 80, 64, 28672, groups=8, context=4096, rms_norm_eps=1e-5),
    "3-8b": size(4096, 32, 32, 14336, groups=8, context=8192, **THREE),
    "3-70b": size(8192, 80, 64, 28672, groups=8, context=8192, **THREE),
    "3.1-8b": size(4096, 32, 32, 14336, groups=8, context=131_072, **THREE, rope_scaling=LONG),
    "tinyllama": size(2048, 22, 32, 5632, groups=4, rms_norm_eps=1e-5),
}

NAMES = """
embed                           [model.]embed_tokens
layers.*.attn_in                [model.]layers.*.input_layernorm
layers.*.attn.{q,k,v,out}       [model.]layers.*.self_attn.{q_proj,k_proj,v_proj,o_proj}
layers.*.ffn_in                 [model.]layers.*.post_attention_layernorm
layers.*.ffn.{gate,up,down}     [model.]layers.*.mlp.{gate_proj,up_proj,down_proj}
final_norm                      [model.]norm
head                            lm_head
labels.out                      score
"""

GGUF = {"llama": "LlamaForCausalLM"}
GGUF_NAMES = """
layers.*.attn.{q,k}  blk.*.{attn_q,attn_k}  pairs
"""

IGNORE = {
    "pretraining_tp": "how it was trained in parallel",
    r"(model\.)?layers.[0-9]+.self_attn.rotary_emb.inv_freq": "rotary frequencies, computed",
}
