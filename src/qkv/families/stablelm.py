"""StableLM 2 and 3B: LLaMA with LayerNorm, rotary positions on a quarter of each head, biases on q, k and v (2024)."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Block, Norm, Spec

TYPES = ("stablelm",)


def spec(c: Config) -> Spec:
    """The spec that a StableLM config describes; those that norm q and k by a weight for each head are refused."""
    c.fixed("qk_layernorm", False)
    usual = {"partial_rotary_factor": 0.25, "max_position_embeddings": 4096}
    s, bias = llama.spec(c.with_defaults(**usual), partial=True), c.flag("use_qkv_bias", False)
    norm, drop = Norm("layer", c.number("layer_norm_eps", 1e-5)), c.share("hidden_dropout", 0.0)
    how: Any = {"residual": "parallel", "norms": "one"} if c.flag("use_parallel_residual", False) else {}

    def block(_: int, b: Block) -> Block:
        return Block(replace(b.attn, bias=bias, out_bias=False), b.ffn, norm_in=norm, dropout=drop, **how)

    s = llama.map_blocks(s, block)
    return replace(s, decoder=replace(s.stack, final_norm=norm))


def config(s: Spec) -> dict[str, Any]:
    """The StableLM config of a spec; reading it back shows what StableLM cannot express."""
    said, block = llama.config(s, "StableLm", partial=True), s.stack.blocks[0]
    own = {"layer_norm_eps": said.pop("rms_norm_eps"), "use_qkv_bias": said.pop("attention_bias"),
           "hidden_dropout": block.dropout, "use_parallel_residual": block.residual == "parallel"}
    return {k: v for k, v in said.items() if k not in ("mlp_bias", "head_dim")} | own


SIZES = {
    "3b": llama.size(2560, 32, 32, 6912, context=4096, vocab_size=50_304),
    "2-1.6b": llama.size(2048, 24, 32, 5632, context=4096, vocab_size=100_352, use_qkv_bias=True),
}
NAMES, IGNORE = llama.NAMES, llama.IGNORE

GGUF, GGUF_ALWAYS = {"stablelm": "StableLmForCausalLM"}, {"tie_word_embeddings": False}


def complete_gguf(config: dict[str, Any], tensors: Container[str]) -> dict[str, Any]:
    """The config of a GGUF file; its key for parallel parts is set in files without them too, so norms tell."""
    return config | {"use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors}
