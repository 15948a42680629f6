"""transformers' own T5, mT5 and GPT-Neo at drawn shapes; None for families that transformers does not have."""

import random
from typing import Any

import torch
import transformers

from support import oracles


def draw(family: str, seed: int) -> Any:
    """A random model of transformers in which faults would show, or None for a family that is not ours to draw."""
    pick = random.Random(f"{family} {seed}")
    torch.manual_seed(seed)
    if family == "t5":
        return t5(pick)
    if family == "gpt_neo":
        return gpt_neo(pick)
    return None


def t5(pick: random.Random) -> Any:
    """T5 1.0, 1.1 or mT5: gated or not, tied and scaled or neither, head dim off width / heads."""
    heads, dim, head = pick.choice((2, 4)), pick.choice((32, 48)), pick.choice(("scaled", "untied"))
    kind = pick.choice(("T5", "T5", "MT5"))
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=pick.randrange(70, 120), d_model=heads * 40, d_kv=dim, d_ff=pick.choice((96, 160)),
        num_layers=pick.choice((3, 4)), num_decoder_layers=pick.choice((None, 3)), num_heads=heads,
        feed_forward_proj=pick.choice(("relu", "gated-gelu", "gated-silu", "gated-relu", "gelu")),
        relative_attention_num_buckets=pick.choice((8, 12)), relative_attention_max_distance=pick.choice((10, 16)),
        layer_norm_epsilon=pick.choice((1e-5, 1e-6)), tie_word_embeddings=head == "scaled",
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    if head == "untied" or kind == "MT5":
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))  # as released
    model = mild(oracles.shaken(model), ".q.weight", dim)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("relative_attention_bias.weight"):
                p.mul_(4.0)
        model.shared.weight.mul_(4.0 if head == "scaled" else 1.0)
        if model.lm_head.weight is not model.shared.weight:
            model.lm_head.weight.mul_(0.2)
    return model


def gpt_neo(pick: random.Random) -> Any:
    """GPT-Neo: local layers whose window is shorter than the text, in several orders."""
    heads, dim = pick.choice((2, 4)), pick.choice((32, 48))
    types = pick.choice(([[["global", "local"], 2]], [[["local"], 2], [["global"], 1]], [[["global", "local"], 2]]))
    config = transformers.GPTNeoConfig(
        vocab_size=pick.randrange(70, 120), hidden_size=heads * dim, num_heads=heads,
        num_layers=sum(len(kinds) * times for kinds, times in types), attention_types=types,
        window_size=pick.choice((3, 5)), intermediate_size=pick.choice((None, 96)), max_position_embeddings=256,
        activation_function=pick.choice(("gelu_new", "relu")), layer_norm_epsilon=pick.choice((1e-5, 1e-6)),
        tie_word_embeddings=pick.random() < 0.7, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return mild(oracles.shaken(transformers.GPTNeoForCausalLM(config)), ".q_proj.weight", dim)


def mild(model: Any, queries: str, dim: int) -> Any:
    """The model with queries small for unscaled scores: else each head stares at one key, and rounding decides."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(queries):
                p.mul_(0.5 * dim**-0.5)
    return model
