"""transformers' own models at drawn shapes: families derived from LLaMA."""

import random
from typing import Any

import torch
import transformers

FAMILIES = ("mistral", "qwen2", "qwen3", "glm")


def draw(family: str, seed: int) -> Any:
    """A random model of transformers with scaled rotary positions, or None."""
    from support.oracles import shaken

    if family not in FAMILIES:
        return None
    pick = random.Random(f"{family} {seed}")
    heads, dim, layers = pick.choice((2, 4)), pick.choice((32, 48)), pick.choice((3, 4))
    common = {
        "vocab_size": pick.randrange(70, 120), "hidden_size": heads * 48, "num_attention_heads": heads,
        "num_key_value_heads": pick.choice((1, 2)), "num_hidden_layers": layers, "head_dim": dim,
        "intermediate_size": pick.choice((96, 160)), "max_position_embeddings": 256,
        "tie_word_embeddings": pick.random() < 0.3, "rms_norm_eps": pick.choice((1e-5, 1e-6)),
        "rope_parameters": scaling(pick), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    # the batch's padded rows must see a real token, else transformers' eager attention is NaN in fp64: 13 - 5 < window
    windows = {"use_sliding_window": pick.random() < 0.7, "sliding_window": 9, "max_window_layers": pick.choice((1, 2))}
    windows["layer_types"] = pick.choice((None, ["sliding_attention", "full_attention"] * 2)) and [
        "sliding_attention" if windows["use_sliding_window"] and i % 2 else "full_attention" for i in range(layers)
    ]
    biased, sandwich = pick.random() < 0.5, pick.random() < 0.5
    torch.manual_seed(seed)
    if family == "mistral":
        config = transformers.MistralConfig(**common, sliding_window=pick.choice((9, 11, None)))
        return shaken(transformers.MistralForCausalLM(config))
    if family == "qwen2":
        return shaken(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common, **windows)))
    if family == "qwen3":
        config = transformers.Qwen3Config(**common, **windows, attention_bias=biased)
        return shaken(transformers.Qwen3ForCausalLM(config))
    common["rope_parameters"]["partial_rotary_factor"] = pick.choice((0.5, 0.25))
    if sandwich:
        return shaken(transformers.Glm4ForCausalLM(transformers.Glm4Config(**common, attention_bias=biased)))
    return shaken(transformers.GlmForCausalLM(transformers.GlmConfig(**common, attention_bias=biased)))


def scaling(pick: random.Random) -> dict[str, Any]:
    """A drawn kind of rotary scaling, trained on fewer positions than the texts have."""
    kind = pick.choice(("default", "default", "linear", "llama3", "yarn"))
    found = {"rope_type": kind, "rope_theta": pick.choice((10_000.0, 500_000.0))}
    if kind != "default":
        found["factor"] = pick.choice((2.0, 4.0))
    if kind in ("llama3", "yarn"):
        found["original_max_position_embeddings"] = 16
    if kind == "llama3":
        found |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return found
