"""GLM-4.5 and 4.6: LLaMA with DeepSeek-V3's experts, half of each head turned (GLM-4.5 Team 2025)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, deepseek, llama
from qkv.spec import Block, Spec

TYPES = ("glm4_moe",)
DEFAULTS = {
    "vocab_size": 151_552, "hidden_size": 4096, "intermediate_size": 10_944, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5, "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "norm_topk_prob": True, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
}


def spec(c: Config) -> Spec:
    """The spec that a GLM-4.5 config describes."""
    c = c.with_defaults(**DEFAULTS)
    s, first = llama.spec(c, partial=True), c.count("first_k_dense_replace")
    norm = s.stack.final_norm if c.flag("use_qk_norm", False) else None
    wide = s.stack.blocks[0].ffn
    assert wide
    sparse: dict[str, Any] = {"ffn": None, "moe": deepseek.read_experts(c, wide)}

    def add_mixture(i: int, b: Block) -> Block:
        return replace(b, attn=replace(b.attn, out_bias=False, qk_norm=norm), **({} if i < first else sparse))

    return llama.map_blocks(s, add_mixture)


def config(s: Spec) -> dict[str, Any]:
    """The GLM-4.5 config of a spec; reading it back shows what it cannot express."""
    blocks: Any = s.stack.blocks
    attn, moe, dense = blocks[0].attn, blocks[-1].moe, [b.ffn for b in blocks if b.ffn]
    plain = replace(blocks[-1], ffn=dense[0] if dense else moe.expert, moe=None)
    said = llama.config(llama.map_blocks(s, lambda *_: plain), "Glm4Moe", partial=True) | deepseek.expert_config(moe)
    del said["mlp_bias"]
    own = {"model_type": "glm4_moe", "use_qk_norm": attn.qk_norm is not None, "first_k_dense_replace": len(dense)}
    return said | own


FOUR: dict[str, Any] = {"head_dim": 128, "vocab_size": 151_552, "rope_theta": 1e6, "rms_norm_eps": 1e-5,
                        "attention_bias": True, "groups": 8, "context": 131_072}
SIZES = {
    "4.5": llama.size(5120, 92, 96, 12_288, **FOUR, moe_intermediate_size=1536, n_routed_experts=160,
                      first_k_dense_replace=3, routed_scaling_factor=2.5, use_qk_norm=True),
    "4.5-air": llama.size(4096, 46, 96, 10_944, **FOUR),
}

NAMES = f"""{llama.NAMES}{deepseek.EXPERTS}
layers.*.attn.{{q_norm,k_norm}}     [model.]layers.*.self_attn.{{q_norm,k_norm}}
"""

IGNORE = llama.IGNORE | {
    "num_nextn_predict_layers|num_mtp_layers": "layers that predict further ahead, for training and speculation",
    r"model\.layers\.(46|92)\..*": "such a layer of the released models, after their own 46 or 92",
}
