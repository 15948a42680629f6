"""GPT-NeoX and Pythia: attention beside the feed-forward network, rotary positions on part of each head (2022)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, gpt2, llama
from qkv.spec import Block, Norm, Spec

TYPES = ("gpt_neox",)
TOKENS = {"gpt_neox": "bytes"}


def spec(c: Config) -> Spec:
    """The spec that a GPT-NeoX config describes."""
    usual = {"hidden_act": "gelu", "attention_bias": True, "partial_rotary_factor": c.share("rotary_pct", 0.25),
             "rope_theta": c.number("rotary_emb_base", 10_000.0)}
    s, drop = llama.spec(c.with_defaults(**usual), partial=True), c.share("hidden_dropout", 0.0)
    norm = Norm("layer", c.number("layer_norm_eps", 1e-5))
    residual: Any = "parallel" if c.flag("use_parallel_residual", True) else "serial"

    def block(_: int, b: Block) -> Block:
        ffn = b.ffn and replace(b.ffn, gated=False, bias=True)
        return replace(b, ffn=ffn, norm_in=norm, residual=residual, dropout=drop)

    s = llama.map_blocks(s, block)
    return replace(s, decoder=replace(s.stack, final_norm=norm, dropout=drop))


def config(s: Spec) -> dict[str, Any]:
    """The GPT-NeoX config of a spec; reading it back shows what GPT-NeoX cannot express."""
    block: Any = s.stack.blocks[0]
    said = llama.config(s, "GPTNeoX", partial=True)
    own = {"model_type": "gpt_neox", "layer_norm_eps": said.pop("rms_norm_eps"), "hidden_dropout": block.dropout,
           "use_parallel_residual": block.residual == "parallel"}
    return {k: v for k, v in said.items() if k not in ("num_key_value_heads", "head_dim", "mlp_bias")} | own


def size(width: int, layers: int, heads: int, vocabulary: int = 50_304, **more: Any) -> dict[str, Any]:
    """One of the released models (Black et al. 2022, section 2; Biderman et al. 2023, table 1)."""
    shape = llama.size(width, layers, heads, 4 * width, **{"vocab_size": vocabulary} | more)
    return {k: v for k, v in shape.items() if k != "num_key_value_heads"}


SIZES = {
    "20b": size(6144, 44, 64, 50_432, hidden_act="gelu_fast"), "pythia-70m": size(512, 6, 8),
    "pythia-160m": size(768, 12, 12), "pythia-410m": size(1024, 24, 16), "pythia-1b": size(2048, 16, 8),
    "pythia-1.4b": size(2048, 24, 16), "pythia-2.8b": size(2560, 32, 32), "pythia-6.9b": size(4096, 32, 32, 50_432),
    "pythia-12b": size(5120, 36, 40, 50_688),
}
NAMES = """
embed                       [gpt_neox.]embed_in
layers.*.attn_in            [gpt_neox.]layers.*.input_layernorm
layers.*.attn.{q,k,v}       [gpt_neox.]layers.*.attention.query_key_value    weave split
layers.*.attn.out           [gpt_neox.]layers.*.attention.dense
layers.*.ffn_in             [gpt_neox.]layers.*.post_attention_layernorm
layers.*.ffn.{up,down}      [gpt_neox.]layers.*.mlp.{dense_h_to_4h,dense_4h_to_h}
final_norm                  [gpt_neox.]final_layer_norm
head                        embed_out|lm_head
labels.out                  score
"""
IGNORE = {
    r"(gpt_neox\.)?layers\.[0-9]+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)": "computed",
}

GGUF, GGUF_NAMES = {"gptneox": "GPTNeoXForCausalLM"}, gpt2.GGUF_NAMES
GGUF_ALWAYS = {"tie_word_embeddings": False, "attention_bias": True}
