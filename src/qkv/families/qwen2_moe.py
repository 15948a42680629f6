"""Qwen2-MoE: LLaMA with q/k/v biases and many small experts, and a shared one with its own gate."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qkv.families import Config, llama, name_windows, read_windows
from qkv.messages import Message
from qkv.spec import Experts, Ffn, Mask, Spec

TYPES = ("qwen2_moe",)
TOKENS = {"qwen2_moe": "bytes-nfc"}
DEFAULTS = {"intermediate_size": 5632, "max_position_embeddings": 32_768, "num_key_value_heads": 16}


def spec(c: Config) -> Spec:
    """The spec that a Qwen2-MoE config describes."""
    base = llama.spec(c.with_defaults(**DEFAULTS))
    attn, ffn = base.stack.blocks[0].attn, base.stack.blocks[0].ffn
    assert ffn
    attn = replace(attn, bias=c.flag("qkv_bias", True), out_bias=False)
    shared = replace(ffn, width=c.size("shared_expert_intermediate_size", 5632))
    moe = replace(read_experts(c, ffn, (60, 4, 1408)), shared=shared, shared_gate=True)
    layers, most = len(base.stack.blocks), c.count("max_window_layers", 28)
    near = read_windows(c, [i % 2 == 0 and i < most for i in range(layers)])
    windowed = c.flag("use_sliding_window", False)
    window = c.count("sliding_window", 4096, null=True)  # 0 where none is used
    if windowed and window == 0:
        raise c.error("sliding_window", 0, Message("1 or more, with use_sliding_window"))
    mask = Mask("causal", window=window) if windowed else attn.mask
    return llama.map_blocks(add_experts(c, base, moe), lambda i, b: replace(b, attn=replace(
        attn, mask=mask if near[i] else attn.mask)))


def read_experts(c: Config, ffn: Ffn | None, defaults: tuple[int, int, int]) -> Experts:
    """The experts of a config; `defaults` are their count, how many are chosen, and their width."""
    count, also = c.size("num_experts", None), c.size("num_local_experts", None)  # new files may have both
    assert ffn
    expert = replace(ffn, width=c.size("moe_intermediate_size", defaults[2]))
    weights = "sum to one" if c.flag("norm_topk_prob", False) else "as scored"
    count, top_k = count or also or defaults[0], c.size("num_experts_per_tok", defaults[1])
    return Experts(num_experts=count, top_k=top_k, expert=expert, weights=weights)


def add_experts(c: Config, base: Spec, moe: Experts) -> Spec:
    """The spec with experts in every n-th layer, except in those that the config lists as dense."""
    fits: Callable[[Any], bool] = lambda v: isinstance(v, list) and all(type(i) is int for i in v)  # noqa: E731
    dense = c.value("mlp_only_layers", [], Message("a list of whole numbers"), fits, null=True) or []
    nth = c.size("decoder_sparse_step", 1)
    return llama.map_blocks(base, lambda i, b: b if i in dense or (i + 1) % nth else replace(b, ffn=None, moe=moe))


def config(s: Spec) -> dict[str, Any]:
    """The Qwen2-MoE config of a spec; reading it back shows what it cannot express."""
    windows, said = [b.attn.mask.window for b in s.stack.blocks], common_config(s, "Qwen2Moe")
    del said["attention_bias"]
    return said | {
        "model_type": "qwen2_moe", "qkv_bias": s.stack.blocks[0].attn.bias,
        "shared_expert_intermediate_size": next(b.moe for b in s.stack.blocks if b.moe).shared.width,
        "use_sliding_window": any(windows), "sliding_window": max(w or 0 for w in windows),
        "layer_types": name_windows(s),
    }


def common_config(s: Spec, name: str) -> dict[str, Any]:
    """The part of the config that all Qwen MoE formats share."""
    moe, dense = next(b.moe for b in s.stack.blocks if b.moe), [b.ffn for b in s.stack.blocks if b.ffn]
    ffn = dense[0] if dense else moe.expert
    said = llama.config(llama.map_blocks(s, lambda _, b: replace(b, ffn=ffn, moe=None)), name)
    del said["mlp_bias"]
    return said | {
        "num_experts": moe.num_experts, "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert.width, "norm_topk_prob": moe.weights == "sum to one",
        "mlp_only_layers": [i for i, b in enumerate(s.stack.blocks) if b.ffn], "decoder_sparse_step": 1,
    }


def expert_size(count: int, chosen: int, width: int) -> dict[str, Any]:
    """The experts of a released model (model cards), and what all releases share."""
    return {"num_experts": count, "num_experts_per_tok": chosen, "moe_intermediate_size": width,
            "vocab_size": 151_936, "rope_theta": 1e6}


SIZES = {
    "a2.7b": llama.size(2048, 24, 16, 5632, context=8192, **expert_size(60, 4, 1408)),
    "a14b": llama.size(3584, 28, 28, 18944, groups=4, context=131_072, **expert_size(64, 8, 2560))
    | {"shared_expert_intermediate_size": 20_480},
}

NAMES = f"""{llama.NAMES}
layers.*.moe.router                   [model.]layers.*.mlp.gate
layers.*.moe.{{gate,up,down}}           [model.]layers.*.mlp.experts.#.{{gate_proj,up_proj,down_proj}}    stack
layers.*.moe.shared.{{gate,up,down}}    [model.]layers.*.mlp.shared_expert.{{gate_proj,up_proj,down_proj}}
layers.*.moe.shared_gate              [model.]layers.*.mlp.shared_expert_gate
"""

IGNORE = llama.IGNORE | {"router_aux_loss_coef": "weighs a loss of training"}
