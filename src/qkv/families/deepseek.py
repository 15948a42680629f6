"""DeepSeek-V2 and V3: LLaMA with latent attention, and experts beside a shared one after a few dense layers."""

import math
from dataclasses import replace
from typing import Any

from qkv.families import Config, _rope, llama
from qkv.messages import Message
from qkv.spec import Attention, Block, Experts, Ffn, Latent, Mask, Norm, Spec

TYPES = ("deepseek_v3", "deepseek_v2")
BOTH = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "rope_interleave": True, "moe_layer_freq": 1,
}
V3 = BOTH | {
    "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "max_position_embeddings": 4096, "n_shared_experts": 1,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
}
V2 = BOTH | {
    "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008, "moe_intermediate_size": 1407,
    "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048, "n_shared_experts": 2,
    "n_routed_experts": 64,
    "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "norm_topk_prob": False, "scoring_func": "softmax",
    "topk_method": "greedy",
}
SCORES = {"noaux_tc": "sigmoid", "greedy": "softmax", "group_limited_greedy": "softmax"}


def spec(c: Config) -> Spec:
    """The spec that a DeepSeek config describes."""
    defaults = c.choice("model_type", {"deepseek_v3": V3, "deepseek_v2": V2}, TYPES[0])
    c = c.with_defaults(**defaults, head_dim=c.size("qk_rope_head_dim", 64))
    base = llama.spec(c)
    block: Any = base.stack.blocks[0]
    usual, wide = block.attn, block.ffn
    turn = replace(usual.rotary, pairs="interleaved" if c.flag("rope_interleave") else "half")
    attn = Latent(
        heads=usual.heads, q_rank=c.size("q_lora_rank", null=True), kv_rank=c.size("kv_lora_rank"),
        nope_head_dim=c.size("qk_nope_head_dim"), value_dim=c.size("v_head_dim"), mask=Mask("causal"), rotary=turn,
        norm=Norm("rms", 1e-6), bias=usual.bias, dropout=usual.dropout,
    )  # fmt: skip  # the norms of the latents take no epsilon from the config
    weight = (c.part("rope_scaling") or c.part("rope_parameters")).number("mscale_all_dim", None)
    if turn.scaling and weight:  # yarn scales the whole dot product, not the rotary part alone
        by = _rope.yarn_mscale(turn.scaling.factor, weight)
        attn = replace(attn, scale=(attn.nope_head_dim + turn.dim) ** -0.5 * by * by)
    c.fixed("moe_layer_freq", 1, Message("1: experts in every layer after the dense ones"))
    first, sparse = c.count("first_k_dense_replace"), {"ffn": None, "moe": read_experts(c, wide)}
    return llama.map_blocks(base, lambda i, b: replace(b, attn=attn, **({} if i < first else sparse)))


def read_experts(c: Config, wide: Ffn) -> Experts:
    """V3: sigmoid scores, balancing bias, groups ranked by their best two; V2: softmax, groups ranked by their best."""
    method, summed = c.choice("topk_method", {name: name for name in SCORES}), c.flag("norm_topk_prob")
    score: Any = SCORES[method]
    v3 = method == "noaux_tc"
    scoring = c.choice("scoring_func", {name: name for name in SCORES.values()})
    if scoring != score or (summed and not v3):
        wanted = Message("one that matches {scoring_func} and norm_topk_prob {summed}", scoring_func=scoring,
                         summed=summed)
        raise c.error("topk_method", method, wanted)
    one = replace(wide, width=c.size("moe_intermediate_size"), bias=False)
    shared = c.count("n_shared_experts", null=True) or 0
    groups, topk_groups = (1, 1) if method == "greedy" else (c.size("n_group"), c.size("topk_group"))
    return Experts(
        num_experts=c.size("n_routed_experts"), top_k=c.size("num_experts_per_tok"), expert=one, score=score,
        weights="sum to one" if summed else "as scored", scale=float(c.number("routed_scaling_factor")),
        balance="bias" if v3 else "none", groups=groups, topk_groups=topk_groups,
        group_score="best two" if v3 else "best",
        shared=replace(wide, width=one.width * shared) if shared else None,
    )


def config(s: Spec) -> dict[str, Any]:
    """The DeepSeek config of a spec; reading it back shows what it cannot express."""
    last: Any = s.stack.blocks[-1]
    attn, moe, turn = last.attn, last.moe, last.attn.rotary
    dense, v3 = [b.ffn for b in s.stack.blocks if b.ffn], moe.balance == "bias"
    usual = Attention(
        heads=attn.heads, groups=attn.heads, head_dim=turn.dim, mask=attn.mask, bias=attn.bias, rotary=turn,
        dropout=attn.dropout,
    )
    plain = Block(usual, dense[0] if dense else moe.shared or moe.expert, norm_in=last.norm_in)
    said = llama.config(llama.map_blocks(s, lambda *_: plain), "DeepseekV3" if v3 else "DeepseekV2")
    if attn.scale and turn.scaling:
        by = (attn.scale * (attn.nope_head_dim + turn.dim) ** 0.5) ** 0.5
        said["rope_parameters"]["mscale_all_dim"] = round((by - 1) / (0.1 * math.log(turn.scaling.factor)), 9)
    return said | expert_config(moe) | {
        "model_type": TYPES[not v3], "q_lora_rank": attn.q_rank, "kv_lora_rank": attn.kv_rank,
        "qk_nope_head_dim": attn.nope_head_dim, "qk_rope_head_dim": turn.dim, "v_head_dim": attn.value_dim,
        "rope_interleave": turn.pairs == "interleaved", "first_k_dense_replace": len(dense),
        "scoring_func": moe.score,
        "topk_method": "noaux_tc" if v3 else "greedy" if moe.groups == 1 else "group_limited_greedy",
    }


def expert_config(moe: Experts) -> dict[str, Any]:
    """The keys of a config that describe the experts of one layer."""
    return {
        "moe_intermediate_size": moe.expert.width, "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "n_shared_experts": moe.shared.width // moe.expert.width if moe.shared else 0,
        "n_group": moe.groups, "topk_group": moe.topk_groups, "routed_scaling_factor": moe.scale,
        "norm_topk_prob": moe.weights == "sum to one",
    }


def size(weight: float, **own: Any) -> dict[str, Any]:
    """A released model; yarn extends the 4096 trained positions 40 times."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 4096}
    return own | {"max_position_embeddings": 163_840, "rope_parameters": {**yarn, "mscale": weight,
                  "mscale_all_dim": weight, "beta_fast": 32, "beta_slow": 1}}


SIZES = {
    "v3": size(1.0),
    "v2": size(
        0.707, model_type="deepseek_v2", hidden_size=5120, intermediate_size=12_288, moe_intermediate_size=1536,
        num_hidden_layers=60, num_attention_heads=128, n_routed_experts=160, num_experts_per_tok=6, n_group=8,
        topk_group=3, topk_method="group_limited_greedy", routed_scaling_factor=16.0, first_k_dense_replace=1,
    ),
    "v2-lite": size(
        0.707, model_type="deepseek_v2", hidden_size=2048, intermediate_size=10_944, moe_intermediate_size=1408,
        num_hidden_layers=27, num_attention_heads=16, q_lora_rank=None, num_experts_per_tok=6, first_k_dense_replace=1,
    ),
}

EXPERTS = """
layers.*.moe.router                    [model.]layers.*.mlp.gate
layers.*.moe.bias                      [model.]layers.*.mlp.gate.e_score_correction_bias
layers.*.moe.{gate,up,down}            [model.]layers.*.mlp.experts.#.{gate_proj,up_proj,down_proj}     stack
layers.*.moe.shared.{gate,up,down}     [model.]layers.*.mlp.shared_experts.{gate_proj,up_proj,down_proj}
"""
NAMES = f"""{llama.NAMES}{EXPERTS}
layers.*.attn.{{q_down,q_norm,q_up}}     [model.]layers.*.self_attn.{{q_a_proj,q_a_layernorm,q_b_proj}}
layers.*.attn.{{kv_down,kv_norm}}        [model.]layers.*.self_attn.{{kv_a_proj_with_mqa,kv_a_layernorm}}
layers.*.attn.kv_up                    [model.]layers.*.self_attn.kv_b_proj
"""

IGNORE = llama.IGNORE | {
    "qk_head_dim": "the sum of two dimensions that are read",
    "n_group|topk_group": "a greedy router ignores them",
    "ep_size": "how it was trained in parallel",
    "aux_loss_alpha|seq_aux": "a loss of training",
    "num_nextn_predict_layers|num_mtp_layers": "layers that predict further ahead, for training and speculation",
    r"model\.layers\.61\..*": "such a layer of the released V3, after its own 61",
}
