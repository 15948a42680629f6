"""OLMo 2: LLaMA whose norms stand after each part, and norm q and k over all heads together (OLMo et al. 2024)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, llama
from qkv.spec import Rotary, Spec

TYPES = ("olmo2",)


def spec(c: Config, turn: Rotary | None = None) -> Spec:
    """The spec that an OLMo 2 config describes; a derived family may have read its rotary positions itself."""
    s = llama.spec(c.with_defaults(rms_norm_eps=1e-5), turn=turn)
    return llama.map_blocks(s, lambda _, b: replace(
        b, norm_in=None, norm_out=b.norm_in, attn=replace(b.attn, qk_norm=b.norm_in, qk_normed="together")))


def config(s: Spec, name: str = "Olmo2") -> dict[str, Any]:
    """The OLMo 2 config of a spec; reading it back shows what OLMo 2 cannot express."""
    said = llama.config(llama.map_blocks(s, lambda _, b: replace(b, norm_in=b.norm_out)), name)
    return {k: v for k, v in said.items() if k not in ("head_dim", "mlp_bias")}


def size(width: int, layers: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """One of the released models (OLMo et al. 2024, table 1 and its model cards)."""
    usual: Any = {"context": 4096, "vocab_size": 100_352, "rms_norm_eps": 1e-6, "rope_theta": 5e5}
    return llama.size(width, layers, heads, ffn, **usual | more)


SIZES = {
    "1b": size(2048, 16, 16, 8192), "7b": size(4096, 32, 32, 11_008), "13b": size(5120, 40, 40, 13_824),
    "32b": size(5120, 64, 40, 27_648, groups=8),
}
NAMES = llama.NAMES.replace("layers.*.attn_in                [model.]layers.*.input_layernorm\n", "").replace(
    "layers.*.ffn_in                 [model.]layers.*.post_attention_layernorm", """
layers.*.attn.{q_norm,k_norm}   [model.]layers.*.self_attn.{q_norm,k_norm}
layers.*.{attn_out,ffn_out}     [model.]layers.*.{post_attention_layernorm,post_feedforward_layernorm}""")
IGNORE = llama.IGNORE

GGUF, GGUF_ALWAYS = {"olmo2": "Olmo2ForCausalLM"}, {"tie_word_embeddings": False, "attention_bias": False}
