"""OPT: GPT-3 as its authors at Meta trained it: learned positions from row 2 on, ReLU (Zhang et al. 2022)."""

from typing import Any

from qkv.families import Config, llama, name_heads
from qkv.messages import Message
from qkv.spec import Attention, Block, Ffn, Init, Mask, Norm, Spec, Stack, Table

TYPES = ("opt",)
TOKENS = {"opt": "bytes"}


def spec(c: Config) -> Spec:
    """The spec that an OPT config describes."""
    width, heads, bias = c.size("hidden_size", 768), c.size("num_attention_heads", 12), c.flag("enable_bias", True)
    drop, before = c.share("dropout", 0.1), c.flag("do_layer_norm_before", True)
    norm, ends = Norm("layer"), before and not c.flag("_remove_final_layer_norm", False)
    c.fixed("layer_norm_elementwise_affine", True)
    if c.size("word_embed_proj_dim", None) not in (None, width):
        raise c.error("word_embed_proj_dim", c.values["word_embed_proj_dim"],
                      Message("the width {width}: embeddings that are narrower than the model are not supported",
                              width=width))
    attn = Attention(heads=heads, groups=heads, head_dim=width // heads, mask=Mask("causal"), bias=bias, out_bias=bias,
                     dropout=c.share("attention_dropout", 0.0))
    ffn = Ffn(c.size("ffn_dim", 3072), c.choice("activation_function", llama.ACTIVATIONS, "relu"), bias=bias)
    block = Block(attn, ffn, norm_in=norm if before else None, norm_sum=None if before else norm, dropout=drop)
    stack = Stack(width, (block,) * c.layers("num_hidden_layers", 12), final_norm=norm if ends else None,
                  positions=Table("learned", c.size("max_position_embeddings", 2048), offset=2))
    head, labels = llama.read_heads(c.with_defaults(tie_word_embeddings=True))
    init = Init("normal", std=c.share("init_std", 0.02))
    return Spec(vocabulary=c.size("vocab_size", 50_272), decoder=stack, head=head, init=init, labels=labels)


def config(s: Spec) -> dict[str, Any]:
    """The OPT config of a spec; reading it back shows what OPT cannot express."""
    stack, block = s.stack, s.stack.blocks[0]
    attn: Any = block.attn
    return {
        **name_heads(s, "OPT"), "model_type": "opt", "vocab_size": s.vocabulary,
        "hidden_size": stack.width, "num_hidden_layers": len(stack.blocks), "num_attention_heads": attn.heads,
        "ffn_dim": block.ffn.width, "max_position_embeddings": stack.longest, "word_embed_proj_dim": stack.width,
        "activation_function": {v: k for k, v in reversed(llama.ACTIVATIONS.items())}[block.ffn.activation],
        "do_layer_norm_before": bool(block.norm_in), "_remove_final_layer_norm": not stack.final_norm,
        "enable_bias": attn.bias, "dropout": block.dropout, "attention_dropout": attn.dropout,
        "init_std": s.init.std, "tie_word_embeddings": s.head is None or s.head.kind == "tied",
    }


def size(width: int, layers: int, heads: int) -> dict[str, Any]:
    """One of the released models (Zhang et al. 2022, table 1)."""
    return {"vocab_size": 50_272, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "ffn_dim": 4 * width}


SIZES = {
    "125m": size(768, 12, 12), "1.3b": size(2048, 24, 32), "2.7b": size(2560, 32, 32), "6.7b": size(4096, 32, 32),
    "13b": size(5120, 40, 40), "30b": size(7168, 48, 56), "66b": size(9216, 64, 72),
}
NAMES = """
embed                             [model.]decoder.embed_tokens
positions                         [model.]decoder.embed_positions
layers.*.{attn_in,attn_sum}       [model.]decoder.layers.*.{self_attn_layer_norm,self_attn_layer_norm}
layers.*.attn.{q,k,v,out}         [model.]decoder.layers.*.self_attn.{q_proj,k_proj,v_proj,out_proj}
layers.*.{ffn_in,ffn_sum}         [model.]decoder.layers.*.{final_layer_norm,final_layer_norm}
layers.*.ffn.{up,down}            [model.]decoder.layers.*.{fc1,fc2}
final_norm                        [model.]decoder.final_layer_norm
head                              lm_head
labels.out                        score
"""
IGNORE = {"layerdrop": "how it was trained"}
