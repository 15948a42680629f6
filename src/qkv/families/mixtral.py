"""Mixtral: LLaMA with experts in place of each feed-forward network, of which a softmax router picks two."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Experts, Mask, Spec

TYPES = ("mixtral",)
TOKENS = {"mixtral": "sentence"}
DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 1e6}


def spec(c: Config) -> Spec:
    """The spec that a Mixtral config describes."""
    base = llama.spec(c.with_defaults(**DEFAULTS))
    attn, ffn = base.stack.blocks[0].attn, base.stack.blocks[0].ffn
    assert ffn
    moe = Experts(num_experts=c.size("num_local_experts", 8), top_k=c.size("num_experts_per_tok", 2), expert=ffn)
    attn = replace(attn, mask=Mask("causal", window=c.size("sliding_window", None)))
    return llama.map_blocks(base, lambda _, b: replace(b, attn=attn, ffn=None, moe=moe))


def config(s: Spec) -> dict[str, Any]:
    """The Mixtral config of a spec; reading it back shows what Mixtral cannot express."""
    moe, mask = s.stack.blocks[0].moe, s.stack.blocks[0].attn.mask
    said = llama.config(llama.map_blocks(s, lambda _, b: replace(b, ffn=moe.expert, moe=None)), "Mixtral")
    del said["attention_bias"], said["mlp_bias"]
    own = {"num_local_experts": moe.num_experts, "num_experts_per_tok": moe.top_k, "sliding_window": mask.window}
    return said | own


SIZES = {
    "8x7b": llama.size(4096, 32, 32, 14336, groups=8, context=32_768, rope_theta=1e6, rms_norm_eps=1e-5),
    "8x22b": llama.size(6144, 56, 48, 16384, groups=8, context=65_536, rope_theta=1e6, rms_norm_eps=1e-5),
}

NAMES = f"""{llama.NAMES}
layers.*.moe.router             [model.]layers.*.block_sparse_moe.gate
layers.*.moe.{{gate,up,down}}     [model.]layers.*.block_sparse_moe.experts.#.{{w1,w3,w2}}     stack
"""

IGNORE = llama.IGNORE | {
    "router_aux_loss_coef": "weighs a loss of training",
    "router_jitter_noise": "noise of training",
}
