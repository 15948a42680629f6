"""transformers' own models with latent attention at drawn shapes: even numbers are V3, odd ones V2."""

import random
from typing import Any

import torch
import transformers


def draw(family: str, seed: int) -> Any:
    """A random DeepSeek model in which faults would show; None for any other family."""
    if family != "deepseek":
        return None
    pick = random.Random(f"{family} {seed}")
    torch.manual_seed(seed)
    v3, heads, layers = seed % 2 == 0, pick.choice((2, 3)), pick.choice((3, 4))
    yarn = {
        "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": pick.choice((0.707, 1.0)),
    }  # fmt: skip
    plain = {"rope_type": "default", "rope_theta": pick.choice((10_000.0, 500_000.0))}
    common = {
        "vocab_size": pick.randrange(70, 120), "hidden_size": 96, "intermediate_size": pick.choice((96, 160)),
        "moe_intermediate_size": pick.choice((24, 40)), "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "q_lora_rank": pick.choice((None, 40)), "kv_lora_rank": pick.choice((36, 48)),
        "qk_nope_head_dim": pick.choice((32, 48)), "qk_rope_head_dim": pick.choice((32, 16)),
        "v_head_dim": pick.choice((32, 40)), "first_k_dense_replace": pick.choice((0, 1, 2)), "n_routed_experts": 12,
        "num_experts_per_tok": pick.choice((2, 3)), "n_group": 4, "topk_group": 2,
        "n_shared_experts": pick.choice((1, 2)), "routed_scaling_factor": pick.choice((1.0, 2.5)),
        "attention_bias": pick.random() < 0.5, "tie_word_embeddings": pick.random() < 0.3,
        "rms_norm_eps": pick.choice((1e-5, 1e-6)), "rope_parameters": yarn if pick.random() < 0.6 else plain,
        "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    if v3:
        own = {"rope_interleave": pick.random() < 0.7, "norm_topk_prob": pick.random() < 0.7}
        model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**common, **own))
    else:
        own = {"topk_method": pick.choice(("greedy", "group_limited_greedy")), "mlp_bias": pick.random() < 0.5}
        model = transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(**common, **own))
    return shaken(model)


def shaken(model: Any) -> Any:
    """The model with every weight, norm and bias off its initial value, the balancing bias included."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.14))
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.add_(torch.randn_like(b) * 0.3)
    return model.eval()
