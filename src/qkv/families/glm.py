"""GLM-4: LLaMA with interleaved rotary positions on half of each head; 4-0414 also norms each sub-layer's output."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Block, Spec

TYPES = ("glm", "glm4")
USUAL = {"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131_072, "attention_bias": True,
         "rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5}


def spec(c: Config) -> Spec:
    """The spec that a GLM-4 config describes."""
    sandwich: bool = c.choice("model_type", {"glm": False, "glm4": True}, "glm")

    def block(_: int, b: Block) -> Block:
        turn: Any = b.attn.rotary
        attn = replace(b.attn, out_bias=False, rotary=replace(turn, pairs="interleaved"))
        return replace(b, attn=attn, norm_out=b.norm_in if sandwich else None)

    return llama.map_blocks(llama.spec(c.with_defaults(**USUAL), partial=True), block)


def config(s: Spec) -> dict[str, Any]:
    """The GLM-4 config of a spec; reading it back shows what GLM-4 cannot express."""
    said = llama.config(s, "Glm4" if s.stack.blocks[0].norm_out else "Glm", partial=True)
    return {k: v for k, v in said.items() if k != "mlp_bias"}


def size(**more: Any) -> dict[str, Any]:
    """One of the released models of nine billion parameters (model cards)."""
    return llama.size(4096, 40, 32, 13696, groups=2, vocab_size=151_552, **more)


SIZES = {
    "9b": size(context=131_072),
    "4-9b": size(context=32_768, rms_norm_eps=1e-5, model_type="glm4"),
}
NAMES = """
embed                           [model.]embed_tokens
layers.*.attn_in                [model.]layers.*.input_layernorm
layers.*.attn.{q,k,v,out}       [model.]layers.*.self_attn.{q_proj,k_proj,v_proj,o_proj}
layers.*.attn_out               [model.]layers.*.post_self_attn_layernorm
layers.*.ffn_in                 [model.]layers.*.post_attention_layernorm
layers.*.ffn.{gate,up}          [model.]layers.*.mlp.gate_up_proj                   split
layers.*.ffn.down               [model.]layers.*.mlp.down_proj
layers.*.ffn_out                [model.]layers.*.post_mlp_layernorm
final_norm                      [model.]norm
head                            lm_head
labels.out                      score
"""
IGNORE = llama.IGNORE

GGUF = {"chatglm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM"}
GGUF_NAMES = "layers.*.ffn.{gate,up}  blk.*.ffn_up  split\n"


def complete_gguf(config: dict[str, Any], _: Container[str]) -> dict[str, Any]:
    """The config of a GGUF file; those of the first generation say nothing of the width of a head."""
    dim = config["hidden_size"] // config["num_attention_heads"]
    return config | ({"head_dim": dim} if config["model_type"] == "glm" else {})
