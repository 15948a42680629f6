"""Qwen2 and Qwen2.5: LLaMA with biases on q, k and v; the upper layers may see a window only (Yang et al. 2024)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama, name_windows, read_windows
from qkv.spec import Block, Mask, Spec

TYPES = ("qwen2",)
TOKENS = {"qwen2": "bytes-nfc"}


def spec(c: Config) -> Spec:
    """The spec that a Qwen2 config describes."""
    s = add_windows(c, llama.spec(c.with_defaults(num_key_value_heads=32, max_position_embeddings=32_768)))
    return llama.map_blocks(s, lambda _, b: replace(b, attn=replace(b.attn, bias=True, out_bias=False)))


def add_windows(c: Config, s: Spec) -> Spec:
    """The spec with windows as `layer_types` says, or from layer `max_window_layers` on where `use_sliding_window`."""
    window = c.size("sliding_window", 4096, null=True)
    size = window if c.flag("use_sliding_window", False) else None
    first, layers = c.count("max_window_layers", 28), len(s.stack.blocks)
    near = read_windows(c, [bool(size) and i >= first for i in range(layers)], allowed=bool(size))

    def change_mask(i: int, b: Block) -> Block:
        return replace(b, attn=replace(b.attn, mask=Mask("causal", size if near[i] else None)))

    return llama.map_blocks(s, change_mask)


def config(s: Spec, name: str = "Qwen2") -> dict[str, Any]:
    """The Qwen2 config of a spec; reading it back shows what Qwen2 cannot express."""
    said = {k: v for k, v in llama.config(s, name).items() if k not in ("attention_bias", "mlp_bias")}
    sizes = [b.attn.mask.window for b in s.stack.blocks]
    return said | {"layer_types": name_windows(s), "use_sliding_window": any(sizes),
                   "sliding_window": next(filter(None, sizes), None)}


def size(width: int, layers: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """One of the released models (Yang et al. 2024, table 1)."""
    return llama.size(width, layers, heads, ffn, context=32_768, rope_theta=1e6, **more)


SIZES = {
    "0.5b": size(896, 24, 14, 4864, groups=2, vocab_size=151_936, tie_word_embeddings=True),
    "1.5b": size(1536, 28, 12, 8960, groups=2, vocab_size=151_936, tie_word_embeddings=True),
    "7b": size(3584, 28, 28, 18944, groups=4, vocab_size=152_064),
    "72b": size(8192, 80, 64, 29568, groups=8, vocab_size=152_064, rms_norm_eps=1e-5),
}
NAMES, IGNORE = llama.NAMES, llama.IGNORE
GGUF, GGUF_ALWAYS = {"qwen2": "Qwen2ForCausalLM"}, {"head_dim": None}
