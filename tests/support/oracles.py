"""transformers' own models at drawn shapes: the independent reference of every family test."""

import importlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def others() -> list[Any]:
    """The files oracles_*.py beside this one, each with a `draw` for some families."""
    paths = sorted(Path(__file__).parent.glob("oracles_*.py"))
    return [importlib.import_module(f"support.{path.stem}") for path in paths]


def draw(family: str, seed: int) -> Any:
    """A random model of transformers in which faults would show: head dim >= 32, >= 3 layers, biases off zero.

    None where transformers has no such model.
    """
    drawn = (module.draw(family, seed) for module in others())
    return own(family, seed) if family in OWN else next((m for m in drawn if m is not None), None)


OWN = ("marian", "gpt2", "llama")


def own(family: str, seed: int) -> Any:
    """The models that this file draws."""
    pick = random.Random(f"{family} {seed}")
    heads, dim = pick.choice((2, 4)), pick.choice((32, 48))
    layers, ffn, vocabulary = pick.choice((3, 4)), pick.choice((96, 160)), pick.randrange(70, 120)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(seed)
    if family == "marian":
        config = transformers.MarianConfig(
            vocab_size=vocabulary, d_model=heads * dim, max_position_embeddings=256, encoder_layers=layers,
            decoder_layers=3, encoder_attention_heads=heads, decoder_attention_heads=pick.choice((2, heads)),
            encoder_ffn_dim=ffn, decoder_ffn_dim=ffn + 32, activation_function=pick.choice(("swish", "relu", "gelu")),
            scale_embedding=pick.random() < 0.7, decoder_start_token_id=0, forced_eos_token_id=None, **ids,
        )  # fmt: skip
        model = transformers.MarianMTModel(config)
    elif family == "gpt2":  # its heads are 16 wider: a tied head of width 64 may spread its logits by less than 1
        config = transformers.GPT2Config(
            vocab_size=vocabulary, n_embd=heads * (dim + 16), n_layer=layers, n_head=heads, n_positions=256,
            n_inner=pick.choice((None, ffn)), activation_function=pick.choice(("gelu_new", "relu")),
            layer_norm_epsilon=pick.choice((1e-5, 1e-6)), tie_word_embeddings=pick.random() < 0.7, **ids,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=vocabulary, hidden_size=heads * 48, num_attention_heads=heads, head_dim=dim,
            num_key_value_heads=pick.choice((1, 2)), num_hidden_layers=layers, intermediate_size=ffn,
            attention_bias=pick.random() < 0.5, mlp_bias=pick.random() < 0.5, max_position_embeddings=256,
            tie_word_embeddings=pick.random() < 0.3, rms_norm_eps=pick.choice((1e-5, 1e-6)),
            rope_parameters={"rope_type": "default", "rope_theta": pick.choice((10_000.0, 500_000.0))}, **ids,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    return shaken(model)


def shaken(model: Any) -> Any:
    """The model with every weight, norm and bias off its initial value, so that nothing hides behind a 0 or a 1."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" not in name:
                p.add_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.14))
        for name, b in model.named_buffers():
            if name == "final_logits_bias":
                b.add_(torch.randn_like(b))
    return model.eval()


def batch(model: Any, seed: int) -> dict[str, torch.Tensor]:
    """Ids of an unequal, right-padded batch, and the decoder's where there is one."""
    draw = torch.Generator().manual_seed(seed)
    vocabulary = model.config.vocab_size
    ids = torch.randint(3, vocabulary, (4, 13), generator=draw)
    real = torch.arange(13)[None] < torch.tensor([13, 9, 5, 12])[:, None]
    found = {"ids": ids.where(real, torch.tensor(0)), "real": real}
    if model.config.is_encoder_decoder:
        vocabulary = getattr(model.config, "decoder_vocab_size", None) or vocabulary
        found["target"] = torch.randint(3, vocabulary, (4, 7), generator=draw)
    return found


def logits(model: Any, at: dict[str, torch.Tensor]) -> torch.Tensor:
    """The oracle's logits on real positions: [N, V]."""
    with torch.no_grad():
        if "target" in at:
            mask = at["real"].long()
            out = model(input_ids=at["ids"], attention_mask=mask, decoder_input_ids=at["target"])
            return out.logits.flatten(0, 1)
        return model(at["ids"], attention_mask=at["real"].long()).logits[at["real"]]


def in_double(model: Any) -> Any:
    """The same model in float64; its experts one by one, for the grouped way knows no double precision."""
    if any("experts" in name for name, _ in model.named_parameters()):
        model.set_experts_implementation("eager")
    return model.double()


def rounding(model: Any, at: dict[str, torch.Tensor]) -> float:
    """How far rounding alone moves these logits on this machine: transformers' float32, eager and SDPA, and float64."""
    found = []
    for way in ("sdpa", "eager") if model._supports_sdpa else ("eager",):
        model.set_attn_implementation(way)
        found.append(logits(model, at))
    found.append(logits(in_double(model), at))
    model.float()
    return max((a - b).abs().max().item() for a in found for b in found)
