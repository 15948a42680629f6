"""transformers' own models at drawn shapes: decoders of 2021 to 2025 unlike LLaMA in norms, caps or layout."""

import random
from typing import Any

import torch
import transformers

IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def draw(family: str, seed: int) -> Any:
    """A random model of transformers, or None."""
    from support.oracles import shaken

    if family not in DRAWS:
        return None
    pick = random.Random(f"{family} {seed}")
    heads, dim = pick.choice((2, 4)), pick.choice((32, 48))
    common = {
        "vocab_size": pick.randrange(70, 120), "hidden_size": heads * dim, "num_attention_heads": heads,
        "num_hidden_layers": pick.choice((3, 4)), "max_position_embeddings": 256, **IDS,
    }
    name, own = DRAWS[family](pick, common)
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**common | own)
    kind = getattr(transformers, f"{name.replace('Text', '')}ForCausalLM")
    return shaken(kind(config))


def like_llama(pick: random.Random) -> dict[str, Any]:
    """What most of them share: the width of the feed-forward network, groups, epsilon, a tied head, biases."""
    from support.oracles_qwen import scaling

    return {
        "intermediate_size": pick.choice((96, 160)), "num_key_value_heads": pick.choice((1, 2)),
        "rms_norm_eps": pick.choice((1e-5, 1e-6)), "tie_word_embeddings": pick.random() < 0.4,
        "attention_bias": pick.random() < 0.5, "rope_parameters": scaling(pick),
    }


def windows(pick: random.Random, layers: int) -> dict[str, Any]:
    """A window, and which layers have it: in their usual places, or drawn."""
    drawn = [pick.choice(("sliding_attention", "full_attention")) for _ in range(layers)]
    return {"sliding_window": pick.choice((9, 11)), "layer_types": pick.choice((None, drawn))}


def two_turns(pick: random.Random) -> dict[str, Any]:
    """Rotary positions of their own for layers with and without a window."""
    from support.oracles_qwen import scaling

    local = {"rope_type": "default", "rope_theta": pick.choice((1e4, 5e4))}
    return {"rope_parameters": {"full_attention": scaling(pick), "sliding_attention": local}}


def gemma(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Heads that are wider or narrower than the width divided by them."""
    return "Gemma", {**like_llama(pick), "head_dim": pick.choice((32, 48)), "hidden_act": "gelu_pytorch_tanh"}


def gemma2(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Caps low enough to be felt, or none."""
    return "Gemma2", {
        **gemma(pick, common)[1], **windows(pick, common["num_hidden_layers"]),
        "query_pre_attn_scalar": pick.choice((24, 32, 100)), "attn_logit_softcapping": pick.choice((4.0, 50.0, None)),
        "final_logit_softcapping": pick.choice((8.0, 30.0, None)),
    }


def gemma3(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """As Gemma 2, turned by two bases."""
    return "Gemma3Text", gemma2(pick, common)[1] | two_turns(pick) | {"attn_logit_softcapping": None}


def phi3(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Half-turned heads, a window."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": pick.choice((1.0, 0.5))}
    own = like_llama(pick) | {"rope_parameters": rope, "sliding_window": pick.choice((None, 9, 11))}
    return "Phi3", {k: v for k, v in own.items() if k != "attention_bias"}


def olmo2(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """As LLaMA."""
    return "Olmo2", like_llama(pick)


def olmo3(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Windows, turned by two bases."""
    return "Olmo3", like_llama(pick) | windows(pick, common["num_hidden_layers"]) | two_turns(pick)


def partly(pick: random.Random) -> dict[str, Any]:
    """Heads of which a part is turned."""
    return {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": pick.choice((1.0, 0.5, 0.25))}


def gpt_neox(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Parallel and serial, with and without biases."""
    return "GPTNeoX", {
        "intermediate_size": pick.choice((96, 160)), "hidden_act": pick.choice(("gelu", "gelu_fast")),
        "layer_norm_eps": pick.choice((1e-5, 1e-6)), "tie_word_embeddings": pick.random() < 0.3,
        "attention_bias": pick.random() < 0.6, "use_parallel_residual": pick.random() < 0.6,
        "rope_parameters": partly(pick),
    }


def gptj(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Rotary positions on a part of each head."""
    names = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
             "max_position_embeddings": "n_positions"}
    said = {new: common.pop(old) for old, new in names.items()}
    return "GPTJ", said | {
        "rotary_dim": pick.choice((8, 16, 32)), "n_inner": pick.choice((None, 96)),
        "activation_function": pick.choice(("gelu_new", "relu")), "layer_norm_epsilon": pick.choice((1e-5, 1e-6)),
    }


def opt(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Norms before and after, with and without biases."""
    return "OPT", {
        "ffn_dim": pick.choice((96, 160)), "do_layer_norm_before": pick.random() < 0.6,
        "activation_function": pick.choice(("relu", "gelu")), "enable_bias": pick.random() < 0.6,
        "tie_word_embeddings": pick.random() < 0.6,
    }


def falcon(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """One key/value head, several, or one for each; one norm or two."""
    common |= {"num_attention_heads": 4, "hidden_size": 4 * 32}
    new = pick.random() < 0.5
    return "Falcon", {
        "new_decoder_architecture": new, "num_kv_heads": 2 if new else 4, "multi_query": pick.random() < 0.6,
        "num_ln_in_parallel_attn": pick.choice((None, 1, 2)) if new else None, "bias": pick.random() < 0.5,
        "ffn_hidden_size": pick.choice((None, 96)), "layer_norm_epsilon": pick.choice((1e-5, 1e-6)),
        "tie_word_embeddings": pick.random() < 0.6,
        "rope_parameters": {"rope_type": "default", "rope_theta": pick.choice((1e4, 5e5))},
    }


def starcoder2(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """With and without biases, a window."""
    own = {k: v for k, v in like_llama(pick).items() if k not in ("attention_bias", "rms_norm_eps")}
    return "Starcoder2", own | {
        "norm_epsilon": pick.choice((1e-5, 1e-6)), "use_bias": pick.random() < 0.6,
        "sliding_window": pick.choice((None, 9, 11)), "hidden_act": pick.choice(("gelu_pytorch_tanh", "gelu")),
    }


def stablelm(pick: random.Random, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Parallel and serial."""
    own = {k: v for k, v in like_llama(pick).items() if k not in ("attention_bias", "rms_norm_eps")}
    return "StableLm", own | {
        "layer_norm_eps": pick.choice((1e-5, 1e-6)), "use_qkv_bias": pick.random() < 0.5,
        "use_parallel_residual": pick.random() < 0.5, "rope_parameters": partly(pick),
    }


DRAWS = {f.__name__: f for f in (gemma, gemma2, gemma3, phi3, olmo2, olmo3, gpt_neox, gptj, opt, falcon, starcoder2,
                                 stablelm)}
