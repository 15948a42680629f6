"""Gemma 3, its text model: Gemma 2 whose q and k are normed and whose windows turn by a base of their own (2025)."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from qkv.families import Config, _rope, gemma2, llama
from qkv.spec import Spec

TYPES = ("gemma3_text", "gemma3")
TOKENS = {"gemma3_text": "sentence", "gemma3": "sentence"}
USUAL = gemma2.USUAL | {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "max_position_embeddings": 131_072, "rope_theta": 1e6,
    "final_logit_softcapping": None,
}


def spec(c: Config) -> Spec:
    """The spec that a Gemma 3 config describes, or the text part of one that sees images too."""
    text = c.part("text_config")
    if text:
        found = spec(text)
        text.finish(IGNORE)
        return found
    c = c.with_defaults(**USUAL)
    turns = _rope.read_rotaries(c, c.size("head_dim"), c.number("rope_local_base_freq", 10_000.0))
    s = gemma2.add_parts(c, llama.spec(c, turn=turns[False]), c.size("sliding_window_pattern", 6))
    return llama.map_blocks(s, lambda _, b: replace(b, attn=replace(
        b.attn, qk_norm=b.norm_in, rotary=turns[bool(b.attn.mask.window)])))


def config(s: Spec) -> dict[str, Any]:
    """The Gemma 3 config of a spec; reading it back shows what Gemma 3 cannot express."""
    said: Any = gemma2.config(s, "Gemma3") | {"model_type": "gemma3_text", "rope_parameters": _rope.write_rotaries(s)}
    del said["attn_logit_softcapping"]  # transformers knows the key and caps nothing by it
    return said | {"architectures": [said["architectures"][0].replace("3Model", "3TextModel")]}


def size(width: int, layers: int, heads: int, ffn: int, groups: int, **more: Any) -> dict[str, Any]:
    """One of the released models (Gemma Team 2025, table 1 and its model cards)."""
    shape = llama.size(width, layers, heads, ffn, groups=groups, head_dim=256, vocab_size=262_208, context=131_072)
    eight = {"rope_type": "linear", "factor": 8.0}
    return shape | {"sliding_window": 1024, "rope_scaling": eight} | more


SMALL = {"max_position_embeddings": 32_768, "rope_scaling": None, "vocab_size": 262_144, "sliding_window": 512}
SIZES = {
    "270m": size(640, 18, 4, 2048, 1, **SMALL),
    "1b": size(1152, 26, 4, 6912, 1, **SMALL),
    "4b": size(2560, 34, 8, 10_240, 4),
    "12b": size(3840, 48, 16, 15_360, 8),
    "27b": size(5376, 62, 32, 21_504, 16, head_dim=128, query_pre_attn_scalar=168),
}
PARTS = {
    "embed": "embed_tokens", "final_norm": "norm", "attn_in": "input_layernorm", "attn_out": "post_attention_layernorm",
    "ffn_in": "pre_feedforward_layernorm", "ffn_out": "post_feedforward_layernorm",
    **{f"attn.{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v")}, "attn.out": "self_attn.o_proj",
    **{f"attn.{part}": f"self_attn.{part}" for part in ("q_norm", "k_norm")},
    **{f"ffn.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
WHERE = ("[model.]", "language_model.model.", "model.language_model.")  # alone, and where it sees images too
NAMES = "head  lm_head\nlabels.out  score\n" + "\n".join(
    f"{at}{ours}  {'|'.join(f'{where}{at}{theirs}' for where in WHERE)}" for ours, theirs in PARTS.items()
    for at in ("" if ours in ("embed", "final_norm") else "layers.*.",))
IGNORE = gemma2.IGNORE | {
    "tie_word_embeddings|initializer_range": "repeat what text_config says",
    "vision_config|mm_tokens_per_image|(boi|eoi|image)_token_index": "of images, which are not read here",
    r"(model\.)?(vision_tower|multi_modal_projector)\..*": "sees images, which are not read here",
}

GGUF, GGUF_ALWAYS = {"gemma3": "Gemma3TextForCausalLM"}, {"attention_bias": False}
GGUF_ROPE = ("default", "linear")  # with others llama.cpp stretches the layers with a window too
GGUF_NAMES = gemma2.GGUF_NAMES + """
layers.*.attn.{q_norm,k_norm}  blk.*.{attn_q_norm,attn_k_norm}   shift
"""


def complete_gguf(config: dict[str, Any], tensors: Container[str]) -> dict[str, Any]:
    """The config of a GGUF file with what such files leave unsaid."""
    return gemma2.complete_gguf(config, tensors, 62)
