"""StarCoder2: LLaMA's grouped heads and rotary positions with LayerNorm, a plain GELU network and biases (2024)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Block, Mask, Norm, Spec

TYPES = ("starcoder2",)
TOKENS = {"starcoder2": "bytes"}


def spec(c: Config) -> Spec:
    """The spec that a StarCoder2 config describes."""
    bias, drop = c.flag("use_bias", True), c.share("residual_dropout", 0.0)
    usual = {"hidden_act": "gelu_pytorch_tanh", "attention_bias": bias, "mlp_bias": bias, "num_key_value_heads": 2,
             "tie_word_embeddings": True, "max_position_embeddings": 4096, "initializer_range": 0.018042}
    s, norm = llama.spec(c.with_defaults(**usual)), Norm("layer", c.number("norm_epsilon", 1e-5))
    mask = Mask("causal", c.size("sliding_window", None))

    def block(_: int, b: Block) -> Block:
        return Block(replace(b.attn, mask=mask), b.ffn and replace(b.ffn, gated=False), norm_in=norm, dropout=drop)

    s = llama.map_blocks(s, block)
    return replace(s, decoder=replace(s.stack, final_norm=norm, dropout=c.share("embedding_dropout", 0.0)))


def config(s: Spec) -> dict[str, Any]:
    """The StarCoder2 config of a spec; reading it back shows what StarCoder2 cannot express."""
    said, block = llama.config(s, "Starcoder2"), s.stack.blocks[0]
    own = {"norm_epsilon": said.pop("rms_norm_eps"), "use_bias": said.pop("attention_bias"),
           "residual_dropout": block.dropout, "embedding_dropout": s.stack.dropout,
           "sliding_window": block.attn.mask.window}
    return {k: v for k, v in said.items() if k not in ("mlp_bias", "head_dim")} | own


def size(width: int, layers: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    """One of the released models (Lozhkov et al. 2024, table 6)."""
    shape = llama.size(width, layers, heads, 4 * width, groups=groups, context=16_384, vocab_size=49_152)
    return shape | {"sliding_window": 4096, "hidden_act": "gelu_pytorch_tanh"} | more


SIZES = {
    "3b": size(3072, 30, 24, 2, rope_theta=999_999.4420358813), "7b": size(4608, 32, 36, 4, rope_theta=1e6),
    "15b": size(6144, 40, 48, 4, rope_theta=100_000.0),
}
NAMES = llama.NAMES.replace("ffn.{gate,up,down}     [model.]layers.*.mlp.{gate_proj,up_proj,down_proj}",
                            "ffn.{up,down}          [model.]layers.*.mlp.{c_fc,c_proj}")
IGNORE = llama.IGNORE | {"norm_type|mlp_type|attention_softmax_in_fp32|scale_attention_.*": "the same in every release"}

GGUF, GGUF_ALWAYS = {"starcoder2": "Starcoder2ForCausalLM"}, {"use_bias": True}
