"""transformers' models of every architecture of GGUF, drawn within what llama.cpp knows of it."""

from typing import Any

from qkv.checkpoints.gguf import architectures
from support import oracles

DRAWN = [name for name in architectures() if name != "bert"]
# one value only, by model type: what GGUF has no key for, or llama.cpp reads and then leaves out
ONE: dict[str, dict[str, Any]] = {
    "gemma": {"attention_bias": False, "tie_word_embeddings": True},
    "gemma2": {"attention_bias": False, "tie_word_embeddings": True, "attn_logit_softcapping": 20.0,
               "final_logit_softcapping": 30.0},
    "gemma3_text": {"attention_bias": False}, "phi3": {"sliding_window": None},
    "starcoder2": {"sliding_window": None, "use_bias": True}, "qwen3": {"attention_bias": False},
    "cohere": {"attention_bias": False, "tie_word_embeddings": True},
    "cohere2": {"attention_bias": False, "tie_word_embeddings": True},
    "olmo2": {"attention_bias": False, "tie_word_embeddings": False},
    "olmo3": {"attention_bias": False, "tie_word_embeddings": False},
    "gpt_neox": {"attention_bias": True, "tie_word_embeddings": False}, "stablelm": {"tie_word_embeddings": False},
    "smollm3": {"attention_bias": False, "mlp_bias": False},
}  # fmt: skip
NARROW = ("qwen2", "cohere", "cohere2", "glm")  # heads are as wide as the model together
WHOLE = ("qwen2", "qwen3", "smollm3")  # no windows


def draw(architecture: str) -> Any:
    """transformers' model of an architecture, off its first values."""
    one = architectures()[architecture]
    family, kind = one.family.__name__.rpartition(".")[2], one.begin["model_type"]
    model = next(m for m in (oracles.draw(family, seed) for seed in range(9)) if m.config.model_type == kind)
    said = model.config.to_dict() | ONE.get(kind, {})
    if "query_pre_attn_scalar" in said:
        said["query_pre_attn_scalar"] = said["head_dim"]
    if kind in NARROW:
        said["hidden_size"] = said["num_attention_heads"] * 48
        said |= {"head_dim": 48} if "head_dim" in said else {}
    if kind in WHOLE:
        said |= {"layer_types": None, "sliding_window": None, "use_sliding_window": False}
    if kind in ("gemma3_text", "olmo3"):
        said["layer_types"] = ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"] * 9
        said["layer_types"] = said["layer_types"][: said["num_hidden_layers"]]
    if kind == "gemma3_text":  # as those of 4 to 27 billion parameters
        said["rope_parameters"]["full_attention"] = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    if kind == "smollm3":
        said["no_rope_layers"] = [int((i + 1) % 4 != 0) for i in range(said["num_hidden_layers"])]
    rope = said.get("rope_parameters") or {}
    for turn in rope.values() if kind == "olmo3" else [rope]:
        kept = {"rope_theta": 10_000.0 if kind == "olmo3" else turn.get("rope_theta"), "rope_type": "default"}
        share = {k: v for k, v in turn.items() if k == "partial_rotary_factor"}
        if "rope_theta" in turn:
            turn.clear()
            turn.update(kept | share)
    return oracles.shaken(type(model)(type(model.config)(**said)))
