"""transformers' own mixtures of experts at drawn shapes; like oracles.py beside it."""

import random
from typing import Any

import torch
import transformers

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe")
WINDOW = 9  # every padded position still sees a real one: where nothing is seen, transformers is NaN in fp64


def draw(family: str, seed: int) -> Any:
    """A random model of transformers with routers that spread; None for a family that is not of this file."""
    if family not in FAMILIES:
        return None
    pick = random.Random(f"{family} {seed}")
    heads, dim, count = pick.choice((2, 4)), pick.choice((32, 48)), pick.choice((4, 6))
    common: dict[str, Any] = {
        "vocab_size": pick.randrange(70, 120), "num_attention_heads": heads, "num_key_value_heads": pick.choice((1, 2)),
        "num_hidden_layers": pick.choice((3, 4)), "intermediate_size": pick.choice((96, 160)),
        "max_position_embeddings": 256, "tie_word_embeddings": pick.random() < 0.3,
        "rms_norm_eps": pick.choice((1e-5, 1e-6)), "num_experts_per_tok": pick.choice((2, 3)),
        "rope_parameters": {"rope_type": "default", "rope_theta": pick.choice((10_000.0, 1e6))},
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(seed)
    if family == "mixtral":
        config = transformers.MixtralConfig(
            hidden_size=heads * 48, head_dim=dim, num_local_experts=count,
            sliding_window=pick.choice((None, WINDOW)), **common,
        )  # fmt: skip
        return shaken(transformers.MixtralForCausalLM(config))
    small = {
        "num_experts": count, "moe_intermediate_size": pick.choice((32, 48)), "norm_topk_prob": pick.random() < 0.5,
        "mlp_only_layers": pick.choice(([], [1])), "use_sliding_window": pick.random() < 0.5, "sliding_window": WINDOW,
    }  # fmt: skip
    if family == "qwen2_moe":
        config = transformers.Qwen2MoeConfig(
            hidden_size=heads * dim, shared_expert_intermediate_size=pick.choice((32, 80)),
            qkv_bias=pick.random() < 0.8, max_window_layers=2, **common, **small,
        )  # fmt: skip
        return shaken(transformers.Qwen2MoeForCausalLM(config))
    config = transformers.Qwen3MoeConfig(
        hidden_size=heads * 48, head_dim=dim, attention_bias=pick.random() < 0.5, **common, **small
    )
    return shaken(transformers.Qwen3MoeForCausalLM(config))


def shaken(model: Any) -> Any:
    """The model with every weight off its initial value, and routers that choose clearly."""
    double = model.double

    def looping() -> Any:
        model.set_experts_implementation("eager")  # transformers' grouped matmul knows no double precision
        return double()

    model.double = looping
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                p.normal_(0.0, 0.5)
            else:
                p.add_(torch.randn_like(p) * {1: 0.3, 2: 0.14, 3: 0.06}[p.ndim])  # larger experts amplify rounding
    return model.eval()
