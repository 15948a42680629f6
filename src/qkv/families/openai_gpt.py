"""GPT-1: a decoder with its norms after the sums (Radford et al. 2018), and heads for words, texts and choices."""

from typing import Any

from qkv.families import Config, count_labels, gpt2, name_labels, read_architecture
from qkv.messages import Message
from qkv.spec import Attention, Block, Ffn, Head, Init, Labels, Mask, Norm, Spec, Stack, Table

TYPES = ("openai-gpt",)
TOKENS = {"openai-gpt": "words"}
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}  # its "gelu" is the tanh one
HEADS = {"OpenAIGPTLMHeadModel": "words", "OpenAIGPTModel": "words", "OpenAIGPTForSequenceClassification": "texts",
         "OpenAIGPTDoubleHeadsModel": "choices"}
SUMMARY = {"summary_use_proj": True, "summary_proj_to_labels": True, "summary_activation": None}


def spec(c: Config) -> Spec:
    """The spec that a GPT-1 config describes."""
    c = c.with_defaults(**SIZES["117m"])
    width, drop = c.size("n_embd"), c.share("resid_pdrop", 0.1)
    heads = c.heads("n_head", width)
    c.fixed("tie_word_embeddings", True, Message("true: the head of GPT-1 is its embedding"))
    mask, dim, attn_drop = Mask("causal"), width // heads, c.share("attn_pdrop", 0.1)
    attn = Attention(heads=heads, groups=heads, head_dim=dim, mask=mask, bias=True, out_bias=True, dropout=attn_drop)
    ffn = Ffn(width=4 * width, activation=c.choice("afn", ACTIVATIONS, "gelu"), bias=True)
    block = Block(attn, ffn, norm_sum=Norm("layer", c.number("layer_norm_epsilon", 1e-5)), dropout=drop)
    table, early = Table("learned", size=c.size("n_positions", 512)), c.share("embd_pdrop", 0.1)
    stack = Stack(width=width, blocks=(block,) * c.layers("n_layer"), positions=table, dropout=early)
    kind, labels = read_architecture(c, HEADS), None
    if kind == "texts":
        labels = Labels(count_labels(c), token="last", bias=False)
    if kind == "choices":
        token = c.choice("summary_type", {"cls_index": "last", "last": "last", "first": "first"}, "cls_index")
        for key in SUMMARY:
            c.fixed(key, SUMMARY[key])
        labels = Labels(1, token=token, dropout=c.share("summary_first_dropout", 0.1))
    head, init = None if kind == "texts" else Head(), Init("normal", std=c.share("initializer_range", 0.02))
    return Spec(vocabulary=c.size("vocab_size"), decoder=stack, head=head, init=init, labels=labels)


def config(s: Spec) -> dict[str, Any]:
    """The GPT-1 config of a spec; reading it back shows what GPT-1 cannot express."""
    block, kind = s.decoder.blocks[0], "words" if not s.labels else "choices" if s.head else "texts"
    said = {
        "architectures": [next(name for name, k in HEADS.items() if k == kind)], "model_type": "openai-gpt",
        "vocab_size": s.vocabulary, "n_positions": s.decoder.longest, "n_embd": s.decoder.width,
        "n_layer": len(s.decoder.blocks), "n_head": block.attn.heads,
        "afn": {v: k for k, v in reversed(ACTIVATIONS.items())}[block.ffn.activation],
        "layer_norm_epsilon": block.norm_sum.eps, "attn_pdrop": block.attn.dropout,
        "resid_pdrop": block.dropout, "embd_pdrop": s.decoder.dropout, "initializer_range": s.init.std,
    }
    if s.labels:
        said |= {"id2label": name_labels(s.labels.count), "summary_first_dropout": s.labels.dropout}
        said["summary_type"] = "cls_index" if s.labels.token == "last" else "first"
    return said


SIZES = {"117m": {"vocab_size": 40478, "n_embd": 768, "n_layer": 12, "n_head": 12}}

NAMES = """
head                        lm_head                                       with:labels
embed                       [transformer.]tokens_embed
positions                   [transformer.]positions_embed
layers.*.attn.{q,k,v}       [transformer.]h.*.attn.c_attn                 flip split
layers.*.attn.out           [transformer.]h.*.attn.c_proj                 flip
layers.*.attn_sum           [transformer.]h.*.ln_1
layers.*.ffn.{up,down}      [transformer.]h.*.mlp.{c_fc,c_proj}           flip
layers.*.ffn_sum            [transformer.]h.*.ln_2
head                        lm_head
labels.out                  multiple_choice_head.summary                  with:head
labels.out                  score                                         without:head
"""

IGNORE = gpt2.IGNORE | {
    "n_special|predict_special_tokens": "how its tokenizer was once built",
    "(transformer.)?position_ids": "positions, counted",
}
