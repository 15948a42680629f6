"""Command R and Aya: parallel parts behind one norm, interleaved rotary positions, scaled logits (model cards).

Command R7B turns positions only in layers that see a window. A norm over q and k with weights of each head's own
(Command R+) is refused.
"""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama, name_windows, read_windows
from qkv.messages import Message
from qkv.spec import Block, Mask, Norm, Spec

TYPES = ("cohere", "cohere2")
DEFAULTS = {
    "vocab_size": 256_000, "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40,
    "num_attention_heads": 64, "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 5e5,
}
LAYOUT = {"position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "use_gated_activation": True,
          "use_parallel_block": True, "use_embedding_sharing": True}


def spec(c: Config) -> Spec:
    """The spec that a Command R config describes."""
    windowed: bool = c.choice("model_type", {"cohere": False, "cohere2": True}, "cohere")
    s = llama.spec(c.with_defaults(**DEFAULTS | ({"rope_theta": 1e4} if windowed else {})))
    c.fixed("use_qk_norm", False, Message("false: norms with weights of each head's own are not supported"))
    for key, usual in LAYOUT.items():
        c.fixed(key, usual)
    norm, layers = Norm("unbiased", c.number("layer_norm_eps", 1e-5)), len(s.stack.blocks)
    near = Mask("causal", c.size("sliding_window", 4096)) if windowed else Mask("causal")
    nth = c.size("sliding_window_pattern", 4)
    usual = [not windowed or (i + 1) % nth != 0 for i in range(layers)]
    turned = read_windows(c, usual) if windowed else usual

    def place_norm(i: int, b: Block) -> Block:
        turn: Any = b.attn.rotary
        attn = replace(b.attn, rotary=replace(turn, pairs="interleaved") if turned[i] else None)
        attn = replace(attn, mask=near if turned[i] else attn.mask)
        return replace(b, attn=attn, norm_in=norm, residual="parallel", norms="one")

    s = llama.map_blocks(s, place_norm)
    context = c.size("model_max_length", None) or s.stack.context
    head = s.head and replace(s.head, scale=float(c.number("logit_scale", 0.0625)))
    return replace(s, decoder=replace(s.stack, final_norm=norm, context=context), head=head)


def config(s: Spec) -> dict[str, Any]:
    """The Command R config of a spec; reading it back shows what Command R cannot express."""
    blocks: Any = s.stack.blocks
    turned, windows = next(b for b in blocks if b.attn.rotary), [b.attn.mask.window for b in blocks]
    windowed = any(windows)
    said = llama.config(llama.map_blocks(s, lambda *_: turned), "Cohere2" if windowed else "Cohere")
    said = {k: v for k, v in said.items() if k not in ("rms_norm_eps", "mlp_bias")}
    said |= {"layer_norm_eps": turned.norm_in.eps, "logit_scale": s.head.scale if s.head else 0.0625}
    kinds = {"sliding_window": max(filter(None, windows)), "layer_types": name_windows(s)} if windowed else {}
    return said | kinds


SMALL: dict[str, Any] = {"groups": 8, "vocab_size": 256_000}
SIZES = {
    "command-r": DEFAULTS | {"model_max_length": 131_072, "rope_theta": 8e6},
    "aya-23-8b": llama.size(4096, 32, 32, 14_336, context=8192, **SMALL, rope_theta=1e4, tie_word_embeddings=True),
    "command-r7b": llama.size(4096, 32, 32, 14_336, context=132_096, **SMALL, rope_theta=5e4, logit_scale=0.25,
                              tie_word_embeddings=True, model_type="cohere2"),
}
NAMES = "\n".join(row for row in llama.NAMES.splitlines() if "ffn_in" not in row)
IGNORE = llama.IGNORE | {
    "cache_implementation|use_parallel_embedding": "how it was once run",
    "layer_switch|order_of_interleaved_layers": "repeat sliding_window_pattern",
}

GGUF = {"command-r": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM"}
GGUF_ALWAYS = {"tie_word_embeddings": True, "attention_bias": False, "head_dim": None}
