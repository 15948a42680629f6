"""transformers' own models of newer decoders, and of M2M-100, at drawn shapes; like oracles.py beside it."""

import random
from typing import Any

import torch
import transformers

FAMILIES = ("smollm3", "glm4_moe", "m2m_100", "granite", "cohere")
WINDOW = 9  # as in oracles_moe.py


def draw(family: str, seed: int) -> Any:
    """A random model of transformers in which faults would show; None for a family that is not of this file."""
    if family not in FAMILIES:
        return None
    from support.oracles import shaken

    torch.manual_seed(seed)
    model = globals()[family](random.Random(f"{family} {seed}"))
    return shake_experts(model) if any("experts" in name for name, _ in model.named_parameters()) else shaken(model)


def decoder(pick: random.Random, dim: int) -> dict[str, Any]:
    """What the configs of all decoders hold."""
    heads = pick.choice((2, 4))
    return {
        "vocab_size": pick.randrange(70, 120), "hidden_size": heads * dim, "num_attention_heads": heads,
        "num_key_value_heads": pick.choice((1, 2)), "num_hidden_layers": pick.choice((3, 4)),
        "intermediate_size": pick.choice((96, 160)), "max_position_embeddings": 256,
        "tie_word_embeddings": pick.random() < 0.3, "attention_bias": pick.random() < 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": pick.choice((10_000.0, 1e6))},
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip


def smollm3(pick: random.Random) -> Any:
    """Every second or third layer turns nothing, and may see a window."""
    return transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(
        **decoder(pick, pick.choice((32, 48))), mlp_bias=pick.random() < 0.5, rms_norm_eps=pick.choice((1e-5, 1e-6)),
        no_rope_layer_interval=pick.choice((2, 3)), use_sliding_window=pick.random() < 0.5, sliding_window=WINDOW,
    ))


def granite(pick: random.Random) -> Any:
    """Each of the four multipliers is 1 or another number."""
    return transformers.GraniteForCausalLM(transformers.GraniteConfig(
        **decoder(pick, pick.choice((32, 48))), mlp_bias=pick.random() < 0.5, rms_norm_eps=pick.choice((1e-5, 1e-6)),
        embedding_multiplier=pick.choice((1.0, 12.0)), residual_multiplier=pick.choice((1.0, 0.22)),
        attention_multiplier=pick.choice((0.125, 0.3)), logits_scaling=pick.choice((0.25, 0.5)),
    ))


def cohere(pick: random.Random) -> Any:
    """Command R, or Command R7B, two of whose layers in three see a window."""
    usual = decoder(pick, pick.choice((32, 48)))
    common = {"layer_norm_eps": pick.choice((1e-5, 1e-6)), "logit_scale": pick.choice((0.5, 1.0, 2.0))}
    if pick.random() < 0.5:
        return transformers.CohereForCausalLM(transformers.CohereConfig(**usual, **common))
    kinds = ["full_attention" if i % 3 == 1 else "sliding_attention" for i in range(usual["num_hidden_layers"])]
    return transformers.Cohere2ForCausalLM(transformers.Cohere2Config(
        **usual, **common, sliding_window=WINDOW, layer_types=kinds))


def glm4_moe(pick: random.Random) -> Any:
    """One or two dense layers first; groups of experts or none."""
    groups = pick.choice((1, 2))
    config = transformers.Glm4MoeConfig(
        **decoder(pick, 48), head_dim=pick.choice((32, 48)), moe_intermediate_size=pick.choice((32, 48)),
        n_routed_experts=pick.choice((4, 6)), num_experts_per_tok=2, n_shared_experts=pick.choice((1, 2)),
        n_group=groups, topk_group=1, first_k_dense_replace=pick.choice((1, 2)), use_qk_norm=pick.random() < 0.5,
        norm_topk_prob=pick.random() < 0.5, routed_scaling_factor=pick.choice((1.0, 2.5)),
    )  # fmt: skip
    config.rope_parameters["partial_rotary_factor"] = pick.choice((0.5, 1.0))
    return transformers.Glm4MoeForCausalLM(config)


def m2m_100(pick: random.Random) -> Any:
    """The number of the padding decides where positions begin."""
    heads, ffn = pick.choice((2, 4)), pick.choice((96, 160))
    return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(
        vocab_size=pick.randrange(70, 120), d_model=heads * pick.choice((32, 48)), max_position_embeddings=256,
        encoder_layers=pick.choice((3, 4)), decoder_layers=3, encoder_attention_heads=heads,
        decoder_attention_heads=pick.choice((2, heads)), encoder_ffn_dim=ffn, decoder_ffn_dim=ffn + 32,
        activation_function=pick.choice(("relu", "gelu", "swish")), scale_embedding=pick.random() < 0.7,
        decoder_start_token_id=2, forced_eos_token_id=None, bos_token_id=1, eos_token_id=2,
        pad_token_id=0,
    ))


def shake_experts(model: Any) -> Any:
    """The model with every weight off its initial value, and routers that choose clearly."""
    from support.oracles_moe import shaken

    model = shaken(model)
    with torch.no_grad():
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.normal_(0.0, 0.2)
    return model
