"""SmolLM3: LLaMA in which every fourth layer turns no positions (NoPE, Yang et al. 2025, arXiv 2501.18795)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qkv.families import Config, llama, name_windows, read_windows
from qkv.messages import Message
from qkv.spec import Block, Mask, Spec

TYPES = ("smollm3",)
DEFAULTS = {
    "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32_768, "rope_theta": 2e6,
    "tie_word_embeddings": True,
}


def spec(c: Config) -> Spec:
    """The spec that a SmolLM3 config describes."""
    s = llama.spec(c.with_defaults(**DEFAULTS))
    layers, nth = len(s.stack.blocks), c.size("no_rope_layer_interval", 4)
    bits: Callable[[Any], bool] = lambda v: (  # noqa: E731
        isinstance(v, list) and set(map(repr, v)) <= {"0", "1"} and len(v) >= layers)
    wanted = Message("a list of 1 (turned) and 0 (not), one for each of {layers} layers", layers=layers)
    turned = c.value("no_rope_layers", None, wanted, bits) or [int((i + 1) % nth != 0) for i in range(layers)]
    window, windowed = c.count("sliding_window", None), c.flag("use_sliding_window", False)
    window = window if windowed else None
    near = read_windows(c, [bool(window) and not turn for turn in turned[:layers]], allowed=bool(window))

    def change_turn(i: int, b: Block) -> Block:
        turn = b.attn.rotary if turned[i] else None
        return replace(b, attn=replace(b.attn, rotary=turn, mask=Mask("causal", window if near[i] else None)))

    return llama.map_blocks(s, change_turn)


def config(s: Spec) -> dict[str, Any]:
    """The SmolLM3 config of a spec; reading it back shows what SmolLM3 cannot express."""
    blocks: Any = s.stack.blocks
    turned = next(b for b in blocks if b.attn.rotary)
    windows = [b.attn.mask.window for b in blocks]
    return llama.config(llama.map_blocks(s, lambda *_: turned), "SmolLM3") | {
        "no_rope_layers": [int(b.attn.rotary is not None) for b in blocks], "use_sliding_window": any(windows),
        "sliding_window": next(filter(None, windows), None),
        "layer_types": name_windows(s),
    }


SIZES = {"3b": DEFAULTS | {"max_position_embeddings": 65_536, "rope_theta": 5e6}}
NAMES = llama.NAMES
IGNORE = llama.IGNORE | {"max_window_layers": "layer_types says which layers see a window"}

GGUF, GGUF_NAMES = {"smollm3": "SmolLM3ForCausalLM"}, llama.GGUF_NAMES
GGUF_ALWAYS = {"attention_bias": False, "mlp_bias": False}
