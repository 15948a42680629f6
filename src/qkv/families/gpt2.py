"""GPT-2: learned positions, pre-norm LayerNorm, fused q/k/v, matrices stored as [in, out], tied head."""

from typing import Any

from qkv.families import Config
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Spec, Stack, Table

TYPES = ("gpt2",)
TOKENS = {"gpt2": "bytes"}
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}


def spec(c: Config) -> Spec:
    """The spec that a GPT-2 config describes."""
    width = c.size("n_embd")
    heads = c.heads("n_head", width)
    norm, drop = Norm("layer", c.number("layer_norm_epsilon", 1e-5)), c.share("resid_pdrop", 0.1)
    attn = Attention(
        heads=heads, groups=heads, head_dim=width // heads, mask=Mask("causal"), bias=True, out_bias=True,
        scale=None if c.flag("scale_attn_weights", True) else 1.0, dropout=c.share("attn_pdrop", 0.1),
    )
    activation = c.choice("activation_function", ACTIVATIONS, "gelu_new")
    ffn = Ffn(width=c.size("n_inner", None) or 4 * width, activation=activation, bias=True)
    block = Block(attn, ffn, norm_in=norm, dropout=drop)
    positions, early = Table("learned", size=c.size("n_positions")), c.share("embd_pdrop", 0.1)
    blocks = (block,) * c.layers("n_layer")
    stack = Stack(width=width, blocks=blocks, positions=positions, final_norm=norm, dropout=early)
    head = Head("tied" if c.flag("tie_word_embeddings", True) else "untied")
    init = Init("normal", std=c.share("initializer_range", 0.02), depth_scaled=True)
    return Spec(vocabulary=c.size("vocab_size"), decoder=stack, head=head, init=init)


def config(s: Spec) -> dict[str, Any]:
    """The GPT-2 config of a spec; reading it back shows what GPT-2 cannot express."""
    stack, block = s.decoder, s.decoder.blocks[0]
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": s.vocabulary,
        "n_positions": stack.longest, "n_embd": stack.width, "n_layer": len(stack.blocks),
        "n_head": block.attn.heads, "n_inner": block.ffn.width,
        "activation_function": {v: k for k, v in reversed(ACTIVATIONS.items())}[block.ffn.activation],
        "layer_norm_epsilon": block.norm_in.eps, "scale_attn_weights": block.attn.scale is None,
        "attn_pdrop": block.attn.dropout, "resid_pdrop": block.dropout, "embd_pdrop": stack.dropout,
        "initializer_range": s.init.std, "tie_word_embeddings": s.head.kind == "tied",
    }


def size(layers: int, width: int, heads: int) -> dict[str, Any]:
    """One of the paper's models (Radford et al. 2019, table 2)."""
    return {"vocab_size": 50257, "n_positions": 1024, "n_embd": width, "n_layer": layers, "n_head": heads}


SIZES = {"124m": size(12, 768, 12), "355m": size(24, 1024, 16), "774m": size(36, 1280, 20), "1.5b": size(48, 1600, 25)}

NAMES = """
embed                       [transformer.]wte
positions                   [transformer.]wpe
layers.*.attn_in            [transformer.]h.*.ln_1
layers.*.attn.{q,k,v}       [transformer.]h.*.attn.c_attn     flip split
layers.*.attn.out           [transformer.]h.*.attn.c_proj     flip
layers.*.ffn_in             [transformer.]h.*.ln_2
layers.*.ffn.{up,down}      [transformer.]h.*.mlp.{c_fc,c_proj}   flip
final_norm                  [transformer.]ln_f
head                        lm_head
"""

GGUF, GGUF_NAMES = {"gpt2": "GPT2LMHeadModel"}, "layers.*.attn.{q,k,v}  blk.*.attn_qkv  split\n"

IGNORE = {
    "n_ctx": "repeats n_positions",
    "reorder_and_upcast_attn": "changes rounding, not the model",
    "summary_.*": "belongs to a classification head",
    "(transformer.)?h.[0-9]+.attn.(bias|masked_bias)": "the causal mask, computed",
}
