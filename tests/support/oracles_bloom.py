"""transformers' own BLOOM at drawn shapes."""

import random
from typing import Any

import torch
import transformers


def draw(family: str, seed: int) -> Any:
    """A random BLOOM of transformers, or None for another family."""
    from support.oracles import shaken

    if family != "bloom":
        return None
    pick = random.Random(f"{family} {seed}")
    heads, dim = pick.choice((3, 4)), pick.choice((32, 48))  # ALiBi's slopes differ where heads are no power of two
    torch.manual_seed(seed)
    config = transformers.BloomConfig(
        vocab_size=pick.randrange(70, 120), hidden_size=heads * dim, n_head=heads, n_layer=pick.choice((3, 4)),
        layer_norm_epsilon=pick.choice((1e-5, 1e-6)), tie_word_embeddings=pick.random() < 0.7,
        apply_residual_connection_post_layernorm=pick.random() < 0.3,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return shaken(transformers.BloomForCausalLM(config))
