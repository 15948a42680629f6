"""GPT-J: attention and feed-forward network read one norm, rotary positions turn neighbouring numbers (2021)."""

from typing import Any

from qkv.families import Config, gpt2, llama, name_labels
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack

TYPES = ("gptj",)
TOKENS = {"gptj": "bytes"}


def spec(c: Config) -> Spec:
    """The spec that a GPT-J config describes."""
    width, heads, drop = c.size("n_embd", 4096), c.size("n_head", 16), c.share("resid_pdrop", 0.0)
    norm = Norm("layer", c.number("layer_norm_epsilon", 1e-5))
    turn = Rotary(c.size("rotary_dim", 64), pairs="interleaved")
    attn = Attention(heads=heads, groups=heads, head_dim=width // heads, mask=Mask("causal"), rotary=turn,
                     dropout=c.share("attn_pdrop", 0.0))
    activation = c.choice("activation_function", gpt2.ACTIVATIONS, "gelu_new")
    ffn = Ffn(c.size("n_inner", None) or 4 * width, activation, bias=True)
    block = Block(attn, ffn, norm_in=norm, residual="parallel", norms="one", dropout=drop)
    stack = Stack(width, (block,) * c.layers("n_layer", 28), final_norm=norm, dropout=c.share("embd_pdrop", 0.0),
                  context=c.size("n_positions", 2048))
    head, labels = llama.read_heads(c)
    head = head and Head(head.kind, bias=True)
    init = Init("normal", std=c.share("initializer_range", 0.02))
    return Spec(vocabulary=c.size("vocab_size", 50_400), decoder=stack, head=head, init=init, labels=labels)


def config(s: Spec) -> dict[str, Any]:
    """The GPT-J config of a spec; reading it back shows what GPT-J cannot express."""
    stack, block = s.stack, s.stack.blocks[0]
    attn: Any = block.attn
    ending = "ForCausalLM" if s.head else "ForSequenceClassification" if s.labels else "Model"
    return {
        "architectures": [f"GPTJ{ending}"], "model_type": "gptj", "vocab_size": s.vocabulary,
        "n_positions": stack.longest, "n_embd": stack.width, "n_layer": len(stack.blocks), "n_head": attn.heads,
        "rotary_dim": attn.rotary.dim, "n_inner": block.ffn.width,
        "activation_function": {v: k for k, v in reversed(gpt2.ACTIVATIONS.items())}[block.ffn.activation],
        "resid_pdrop": block.dropout, "embd_pdrop": stack.dropout, "attn_pdrop": attn.dropout,
        "layer_norm_epsilon": block.norm_in.eps, "initializer_range": s.init.std,
        "tie_word_embeddings": bool(s.head) and s.head.kind == "tied",
        **({"id2label": name_labels(s.labels.count)} if s.labels else {}),
    }


SIZES = {"6b": {"vocab_size": 50_400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64}}
NAMES = """
embed                        [transformer.]wte
layers.*.attn_in             [transformer.]h.*.ln_1
layers.*.attn.{q,k,v,out}    [transformer.]h.*.attn.{q_proj,k_proj,v_proj,out_proj}
layers.*.ffn.{up,down}       [transformer.]h.*.mlp.{fc_in,fc_out}
final_norm                   [transformer.]ln_f
head                         lm_head
labels.out                   score
"""
IGNORE = {
    "n_ctx|rotary|scale_attn_weights": "the same in every GPT-J",
    "summary_.*": "belongs to a classification head",
    r"(transformer\.)?h\.[0-9]+\.attn\.(bias|masked_bias)": "the causal mask, computed",
}
