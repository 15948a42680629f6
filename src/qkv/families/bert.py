"""BERT: a post-norm encoder with token types (Devlin et al. 2018), and heads for masked words, pairs and texts."""

from collections.abc import Mapping
from typing import Any

from qkv.families import Config, count_labels, gpt2, name_labels, read_architecture
from qkv.spec import Attention, Block, Dense, Ffn, Head, Init, Labels, Mask, Norm, Spec, Stack, Table

TYPES = ("bert",)
TOKENS = {"bert": "pieces"}
ACTIVATIONS = {**gpt2.ACTIVATIONS, "silu": "silu", "swish": "silu"}
HEADS = {"BertForMaskedLM": "words", "BertForPreTraining": "words and pairs", "BertForSequenceClassification": "texts",
         "BertModel": "none"}


def spec(c: Config, heads_of: Mapping[str, str] = HEADS) -> Spec:
    """The spec that a BERT config describes; derived families name their own architectures (`heads_of`)."""
    c = c.with_defaults(**SIZES["base"])
    width = c.size("hidden_size")
    heads = c.heads("num_attention_heads", width)
    drop, norm = c.share("hidden_dropout_prob", 0.1), Norm("layer", c.number("layer_norm_eps", 1e-12))
    for key, usual in (("is_decoder", False), ("tie_word_embeddings", True), ("position_embedding_type", "absolute")):
        c.fixed(key, usual)
    mask, dim, attn_drop = Mask("full"), width // heads, c.share("attention_probs_dropout_prob", 0.1)
    attn = Attention(heads=heads, groups=heads, head_dim=dim, mask=mask, bias=True, out_bias=True, dropout=attn_drop)
    activation, kind = c.choice("hidden_act", ACTIVATIONS, "gelu"), read_architecture(c, heads_of)
    ffn = Ffn(width=c.size("intermediate_size"), activation=activation, bias=True)
    blocks = (Block(attn, ffn, norm_sum=norm, dropout=drop),) * c.layers("num_hidden_layers")
    table, segments = Table("learned", size=c.size("max_position_embeddings", 512)), c.size("type_vocab_size", 2)
    stack = Stack(width=width, blocks=blocks, positions=table, embed_norm=norm, dropout=drop, segments=segments)
    head = labels = None
    if "words" in kind:
        head = Head("tied", bias=True, dense=Dense(activation, norm))
    if kind == "words and pairs":
        labels = Labels(2, dense=Dense("tanh"))
    if kind == "texts":
        given = c.share("classifier_dropout", None)
        labels = Labels(count_labels(c), dense=Dense("tanh"), dropout=drop if given is None else given)
    init = Init("normal", std=c.share("initializer_range", 0.02))
    return Spec(vocabulary=c.size("vocab_size"), encoder=stack, head=head, init=init, labels=labels)


def config(s: Spec, name: str = "bert", heads_of: Mapping[str, str] = HEADS) -> dict[str, Any]:
    """The BERT config of a spec; reading it back shows what BERT cannot express."""
    stack, block = s.encoder, s.encoder.blocks[0]
    kind = ("words and pairs" if s.labels else "words") if s.head else "texts" if s.labels else "none"
    said = {
        "architectures": [next(type_ for type_, k in heads_of.items() if k == kind)], "model_type": name,
        "vocab_size": s.vocabulary, "hidden_size": stack.width, "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": block.attn.heads, "intermediate_size": block.ffn.width,
        "hidden_act": {v: k for k, v in reversed(ACTIVATIONS.items())}[block.ffn.activation],
        "hidden_dropout_prob": block.dropout, "attention_probs_dropout_prob": block.attn.dropout,
        "max_position_embeddings": stack.longest, "type_vocab_size": stack.segments,
        "initializer_range": s.init.std, "layer_norm_eps": block.norm_sum.eps,
    }
    if kind == "texts":
        said |= {"id2label": name_labels(s.labels.count), "classifier_dropout": s.labels.dropout}
    return said


def size(width: int, layers: int, heads: int, vocabulary: int = 30522) -> dict[str, Any]:
    """One of the released models: those of the paper, section 3, and smaller ones (Turc et al. 2019, table 1)."""
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"vocab_size": vocabulary, "intermediate_size": 4 * width, **shape}


SIZES = {"base": size(768, 12, 12), "large": size(1024, 24, 16), "base-chinese": size(768, 12, 12, 21128),
         "tiny": size(128, 2, 2), "mini": size(256, 4, 4)}

NORMS = {
    "embed_norm": "[bert.]embeddings.LayerNorm",
    "layers.*.attn_sum": "[bert.]encoder.layer.*.attention.output.LayerNorm",
    "layers.*.ffn_sum": "[bert.]encoder.layer.*.output.LayerNorm",
    "head.dense.norm": "cls.predictions.transform.LayerNorm",
}
NAMES = """
embed                       [bert.]embeddings.word_embeddings
positions                   [bert.]embeddings.position_embeddings
segments                    [bert.]embeddings.token_type_embeddings
layers.*.attn.{q,k,v}       [bert.]encoder.layer.*.attention.self.{query,key,value}
layers.*.attn.out           [bert.]encoder.layer.*.attention.output.dense
layers.*.ffn.{up,down}      [bert.]encoder.layer.*.{intermediate,output}.dense
head.weight                 cls.predictions.decoder.weight
head.bias                   cls.predictions.bias|cls.predictions.decoder.bias
head.dense.linear           cls.predictions.transform.dense
labels.dense.linear         bert.pooler.dense
labels.out                  cls.seq_relationship                              with:head
labels.out                  classifier                                        without:head
""" + "\n".join(
    f"{ours}.{part} {theirs}.{part}|{theirs}.{old}"  # early checkpoints call them gamma and beta
    for ours, theirs in NORMS.items() for part, old in (("weight", "gamma"), ("bias", "beta"))
)
# what derived families share, their own heads apart
BODY = "\n".join(row for row in NAMES.splitlines() if not row.startswith(("head", "labels")))

GGUF = {"bert": "BertModel"}

IGNORE = {
    "directionality|pooler_.*": "what the first release could have been and was not",
    "(bert.)?embeddings.(position_ids|token_type_ids)": "positions, counted",
    "(bert.)?pooler.dense.(weight|bias)": "a step towards labels that this model does not give",
    "cls.seq_relationship.(weight|bias)": "guesses whether two texts follow one another; BertForPreTraining reads it",
    "cls.predictions.decoder.bias": "the bias once more",
}
