"""GPT-Neo: GPT-2 with unscaled scores, no bias on q, k and v, and a window in every other layer."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, gpt2
from qkv.messages import Message
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Spec, Stack, Table

TYPES = ("gpt_neo",)
TOKENS = {"gpt_neo": "bytes"}
ALTERNATING: list[Any] = [[["global", "local"], 12]]


def spec(c: Config) -> Spec:
    """The spec that a GPT-Neo config describes."""
    width, heads, drop = c.size("hidden_size", 2048), c.size("num_heads", 16), c.share("resid_dropout", 0.0)
    masks = {"global": Mask("causal"), "local": Mask("causal", window=c.size("window_size", 256))}
    layers = c.layers("num_layers", 24)
    wanted = Message("'global' or 'local' for each of {num_layers} layers", num_layers=layers)

    def are_kinds(groups: Any) -> bool:
        rows = groups if isinstance(groups, list) and all(isinstance(g, list) and len(g) == 2 for g in groups) else []
        whole = all(isinstance(of, list) and set(map(str, of)) <= masks.keys() and type(n) is int for of, n in rows)
        return whole and sum(len(of) * n for of, n in rows) == layers and all(0 <= n <= layers for _, n in rows)

    groups = c.value("attention_types", None, wanted, are_kinds) or ALTERNATING
    if not are_kinds(groups):
        raise c.error("attention_types", groups, wanted)
    kinds = [kind for group, times in groups for kind in group * times]
    norm, ffn = Norm("layer", c.number("layer_norm_epsilon", 1e-5)), c.size("intermediate_size", None) or 4 * width
    attn = Attention(
        heads=heads, groups=heads, head_dim=width // heads, mask=masks["global"], out_bias=True,
        scale=1.0, dropout=c.share("attention_dropout", 0.0),
    )  # fmt: skip  # no 1/sqrt(head_dim)
    activation = c.choice("activation_function", gpt2.ACTIVATIONS, "gelu_new")
    block = Block(attn, Ffn(width=ffn, activation=activation, bias=True), norm_in=norm, dropout=drop)
    blocks = tuple(replace(block, attn=replace(attn, mask=masks[kind])) for kind in kinds)
    positions, drop = Table("learned", size=c.size("max_position_embeddings", 2048)), c.share("embed_dropout", 0.0)
    stack = Stack(width=width, blocks=blocks, positions=positions, final_norm=norm, dropout=drop)
    head = Head("tied" if c.flag("tie_word_embeddings", True) else "untied")
    init = Init("normal", std=c.share("initializer_range", 0.02))
    return Spec(vocabulary=c.size("vocab_size", 50257), decoder=stack, head=head, init=init)


def config(s: Spec) -> dict[str, Any]:
    """The GPT-Neo config of a spec; reading it back shows what GPT-Neo cannot express."""
    said, windows = gpt2.config(s), [b.attn.mask.window for b in s.decoder.blocks]
    kinds = ["global" if window is None else "local" for window in windows]
    return {
        "architectures": ["GPTNeoForCausalLM"], "model_type": "gpt_neo", "hidden_size": said["n_embd"],
        "num_layers": said["n_layer"], "num_heads": said["n_head"], "intermediate_size": said["n_inner"],
        "max_position_embeddings": said["n_positions"], "attention_types": [[[kind], 1] for kind in kinds],
        "attention_layers": kinds,
        "window_size": next((window for window in windows if window is not None), 256),
        "attention_dropout": said["attn_pdrop"], "resid_dropout": said["resid_pdrop"],
        "embed_dropout": said["embd_pdrop"],
        **{k: said[k] for k in ("vocab_size", "activation_function", "layer_norm_epsilon", "initializer_range")},
        "tie_word_embeddings": said["tie_word_embeddings"],
    }


def size(layers: int, width: int, heads: int) -> dict[str, Any]:
    """One of the released models (Black et al. 2021, its model cards)."""
    types = [[["global", "local"], layers // 2]]
    return {"hidden_size": width, "num_layers": layers, "num_heads": heads, "attention_types": types}


SIZES = {"125m": size(12, 768, 12), "1.3b": size(24, 2048, 16), "2.7b": size(32, 2560, 20)}

NAMES = """
embed                        [transformer.]wte
positions                    [transformer.]wpe
layers.*.attn_in             [transformer.]h.*.ln_1
layers.*.attn.{q,k,v,out}    [transformer.]h.*.attn.attention.{q_proj,k_proj,v_proj,out_proj}
layers.*.ffn_in              [transformer.]h.*.ln_2
layers.*.ffn.{up,down}       [transformer.]h.*.mlp.{c_fc,c_proj}
final_norm                   [transformer.]ln_f
head                         lm_head
"""

IGNORE = {
    "attention_layers": "repeats attention_types",
    "summary_.*": "belongs to a classification head",
    "(transformer.)?h.[0-9]+.attn.attention.(bias|masked_bias)": "the causal mask, computed",
}
