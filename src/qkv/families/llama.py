"""LLaMA 1 to 3: pre-norm RMSNorm, rotary positions in halves, SwiGLU, shared key/value heads in the large ones."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qkv.families import Config, labelled, named_labels
from qkv.spec import Attention, Block, Ffn, Head, Init, Labels, Mask, Norm, Rotary, Scaling, Spec, Stack

TYPES = ("llama",)
TOKENS = {"llama": "sentence"}
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
SCALINGS: dict[str, tuple[Any, dict[str, str]]] = {  # of each kind: our word for it, our fields by their keys
    "default": ("", {}),
    "linear": ("linear", {"factor": "factor"}),
    "dynamic": ("dynamic", {"factor": "factor"}),
    "llama3": ("wavelength", {"factor": "factor", "low_freq_factor": "slow", "high_freq_factor": "fast"}),
    "yarn": ("yarn", {"factor": "factor", "beta_slow": "slow", "beta_fast": "fast", "attention_factor": "gain"}),
}
OTHERS = "type|mscale(_all_dim)?|truncate|" + "|".join(key for _, keys in SCALINGS.values() for key in keys)


def rotary(c: Config, dim: int, *, partial: bool = False) -> Rotary:
    """The rotary part of a config: `rope_parameters` as today, or `rope_theta` with `rope_scaling` as before.

    Raises for a kind of scaling that is none of SCALINGS, and for partly turned heads unless the family is `partial`.
    """
    context, base = c.get("max_position_embeddings", 2048), c.get("rope_theta", None) or 10_000.0
    trained, share = c.get("original_max_position_embeddings", None), c.get("partial_rotary_factor", None)
    today, before = c.part("rope_parameters"), c.part("rope_scaling")
    rope = before or today  # transformers prefers them in this order
    kind = rope.get("rope_type", None) or rope.get("type", None) or "default"
    trained = trained or rope.get("original_max_position_embeddings", None) or context
    base, share = rope.get("rope_theta", None) or base, rope.get("partial_rotary_factor", None) or share or 1.0
    if kind not in SCALINGS:
        raise rope.error("rope_type", kind, f"one of {', '.join(SCALINGS)}")
    if share != 1 and not partial:
        raise rope.error("partial_rotary_factor", share, "1, as this family turns whole heads")
    slower = None if kind == "default" else scaling(rope, kind, context, trained)
    rope.finish((OTHERS,))
    return Rotary(int(dim * share), float(base), scaling=slower)


def scaling(c: Config, kind: str, context: int, trained: int) -> Scaling:
    """How a config slows the rotary angles down, with transformers' defaults; `trained` positions unless dynamic."""
    usual, whole = dict[str, float](), c.get("truncate", True)
    if kind == "yarn":
        over, under = c.get("mscale", None), c.get("mscale_all_dim", None)
        factor = c.get("factor", None) or context / trained
        gain = sharper(factor, over) / sharper(factor, under) if over and under else sharper(factor, 1)
        usual = {"factor": factor, "beta_slow": 1, "beta_fast": 32, "attention_factor": gain}
    ours, keys = SCALINGS[kind]
    said = {field: float(c.get(key, None) or usual.get(key) or c[key]) for key, field in keys.items()}
    at = {"linear": 0, "dynamic": context}.get(kind, trained)
    return Scaling(ours, trained=at, **said, whole="exact" if kind == "yarn" and not whole else "rounded")


def sharper(factor: float, weight: float) -> float:
    """The growth of cosine and sine that keeps scores over a longer text as peaked (Peng et al. 2023, section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope(r: Rotary) -> dict[str, Any]:
    """The `rope_parameters` of a rotary part."""
    kind = next(k for k, (ours, _) in SCALINGS.items() if ours == (r.scaling.kind if r.scaling else ""))
    said: dict[str, Any] = {"rope_type": kind, "rope_theta": r.base}
    said |= {key: getattr(r.scaling, field) for key, field in SCALINGS[kind][1].items()}
    if kind in ("llama3", "yarn"):
        said["original_max_position_embeddings"] = r.scaling.trained
    return said | ({"truncate": False} if r.scaling and r.scaling.whole == "exact" else {})


def spec(c: Config, *, partial: bool = False) -> Spec:
    """The spec that a LLaMA config describes; for younger families `partial` allows heads that are partly turned."""
    width, heads, bias = c["hidden_size"], c["num_attention_heads"], c.get("attention_bias", False)
    dim = c.get("head_dim", None) or width // heads
    groups, drop = c.get("num_key_value_heads", None) or heads, c.get("attention_dropout", 0.0) or 0.0
    turn = rotary(c, dim, partial=partial)
    attn = Attention(heads, groups, dim, Mask("causal"), bias, bias, rotary=turn, dropout=drop)
    activation = c.choice("hidden_act", ACTIVATIONS, "silu")
    ffn = Ffn(c["intermediate_size"], activation, gated=True, bias=c.get("mlp_bias", False))
    norm = Norm("rms", c.get("rms_norm_eps", 1e-6))
    blocks = (Block(attn, ffn, norm_in=norm),) * c["num_hidden_layers"]
    stack = Stack(width, blocks, final_norm=norm, context=c.get("max_position_embeddings", 2048))
    head, labels = speaks(c)
    return Spec(c["vocab_size"], stack, head=head, init=Init("normal", c.get("initializer_range", 0.02)), labels=labels)


def speaks(c: Config) -> tuple[Head | None, Labels | None]:
    """What the last states become, by `architectures`: tokens, labels from the last token, or nothing."""
    kind = (c.get("architectures", None) or ["ForCausalLM"])[0]
    head = Head("tied" if c.get("tie_word_embeddings", False) else "untied")
    labels = Labels(labelled(c), "last", bias=False)
    for ending, found in {"ForCausalLM": (head, None), "ForSequenceClassification": (None, labels)}.items():
        if kind.endswith(ending):
            return found
    if not kind.endswith("Model"):
        raise c.error("architectures", kind, "one that ends in ForCausalLM, ForSequenceClassification or Model")
    return None, None


def config(s: Spec, name: str = "Llama") -> dict[str, Any]:
    """The LLaMA config of a spec; what LLaMA cannot say comes back different and is found by comparing."""
    stack, block = s.stack, s.stack.blocks[0]
    attn: Any = block.attn  # of another kind in other families: then this fails, and they try elsewhere
    ending = "ForCausalLM" if s.head else "ForSequenceClassification" if s.labels else "Model"
    return {
        "architectures": [name + ending],
        "model_type": name.lower(),
        "vocab_size": s.vocabulary,
        "hidden_size": stack.width,
        "intermediate_size": block.ffn.width,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": attn.heads,
        "num_key_value_heads": attn.groups,
        "head_dim": attn.head_dim,
        "hidden_act": {v: k for k, v in reversed(ACTIVATIONS.items())}[block.ffn.activation],
        "max_position_embeddings": stack.longest,
        "rms_norm_eps": block.norm_in.eps,
        "rope_parameters": rope(attn.rotary),
        "attention_bias": attn.bias,
        "attention_dropout": attn.dropout,
        "mlp_bias": block.ffn.bias,
        "initializer_range": s.init.std,
        "tie_word_embeddings": bool(s.head) and s.head.kind == "tied",
        **({"id2label": named_labels(s.labels.count)} if s.labels else {}),
    }


def each(s: Spec, change: Callable[[int, Block], Block]) -> Spec:
    """The spec with every block changed: what a younger family says of itself."""
    blocks = tuple(change(i, b) for i, b in enumerate(s.stack.blocks))
    return replace(s, decoder=replace(s.stack, blocks=blocks))


def size(
    width: int, layers: int, heads: int, ffn: int, *, groups: int | None = None, context: int = 2048, **more: Any
) -> dict[str, Any]:
    """One of the released models (Touvron et al. 2023, table 2; model cards); `more` is what differs from LLaMA 1."""
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": ffn}
    return shape | {"vocab_size": 32_000, "num_key_value_heads": groups or heads,
                    "max_position_embeddings": context} | more  # fmt: skip


LONG = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}  # fmt: skip
THREE = {"vocab_size": 128_256, "rope_theta": 5e5, "rms_norm_eps": 1e-5}
SIZES = {
    "7b": size(4096, 32, 32, 11008),
    "13b": size(5120, 40, 40, 13824),
    "30b": size(6656, 60, 52, 17920),
    "65b": size(8192, 80, 64, 22016),
    "2-70b": size(8192, 80, 64, 28672, groups=8, context=4096, rms_norm_eps=1e-5),
    "3-8b": size(4096, 32, 32, 14336, groups=8, context=8192, **THREE),
    "3-70b": size(8192, 80, 64, 28672, groups=8, context=8192, **THREE),
    "3.1-8b": size(4096, 32, 32, 14336, groups=8, context=131_072, **THREE, rope_scaling=LONG),
    "tinyllama": size(2048, 22, 32, 5632, groups=4, rms_norm_eps=1e-5),
}

NAMES = """
embed                           [model.]embed_tokens
layers.*.attn_in                [model.]layers.*.input_layernorm
layers.*.attn.{q,k,v,out}       [model.]layers.*.self_attn.{q_proj,k_proj,v_proj,o_proj}
layers.*.ffn_in                 [model.]layers.*.post_attention_layernorm
layers.*.ffn.{gate,up,down}     [model.]layers.*.mlp.{gate_proj,up_proj,down_proj}
final_norm                      [model.]norm
head                            lm_head
labels.out                      score
"""

IGNORE = {
    "pretraining_tp": "how it was trained in parallel",
    r"(model\.)?layers.[0-9]+.self_attn.rotary_emb.inv_freq": "rotary frequencies, computed",
}
