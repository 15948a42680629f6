"""ModernBERT: a pre-norm encoder with rotary positions; two layers of three see a window (Warner et al. 2024)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, bert, count_labels, name_labels, name_windows, read_architecture, read_windows
from qkv.spec import Attention, Block, Dense, Ffn, Head, Init, Labels, Mask, Norm, Rotary, Spec, Stack

TYPES = ("modernbert",)
HEADS = {"ModernBertForMaskedLM": "words", "ModernBertForSequenceClassification": "texts", "ModernBertModel": "none"}
KINDS = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}


def spec(c: Config) -> Spec:
    """The spec that a ModernBERT config describes."""
    width, heads, bias = c.size("hidden_size", 768), c.size("num_attention_heads", 12), c.flag("attention_bias", False)
    norm = Norm("layer" if c.flag("norm_bias", False) else "unbiased", c.number("norm_eps", 1e-5))
    layers, nth = c.layers("num_hidden_layers", 22), c.size("global_attn_every_n_layers", 3)
    near, window = read_windows(c, [i % nth != 0 for i in range(layers)]), c.size("local_attention", 128) // 2 + 1
    usual_attn = Attention(
        heads=heads, groups=heads, head_dim=width // heads, mask=Mask("full"), bias=bias, out_bias=bias,
        dropout=c.share("attention_dropout", 0.0),
    )  # fmt: skip
    attn = [replace(usual_attn, rotary=Rotary(usual_attn.head_dim, float(read_base(c, kind))), mask=Mask("full", seen))
            for kind, seen in zip(KINDS, (None, window), strict=True)]
    ffn = Ffn(width=c.size("intermediate_size", 1152), activation=c.choice("hidden_activation", bert.ACTIVATIONS,
              "gelu"), gated=True, bias=c.flag("mlp_bias", False), dropout=c.share("mlp_dropout", 0.0))
    usual_block = Block(attn[near[0]], ffn, norm_in=norm)
    blocks = (replace(usual_block, norms="second"), *(replace(usual_block, attn=attn[seen]) for seen in near[1:]))
    stack = Stack(width=width, blocks=blocks, embed_norm=norm, final_norm=norm,
                  dropout=c.share("embedding_dropout", 0.0), context=c.size("max_position_embeddings", 8192))
    head, labels = read_heads(c, norm)
    init = Init("normal", std=c.share("initializer_range", 0.02))
    return Spec(vocabulary=c.size("vocab_size", 50_368), encoder=stack, head=head, init=init, labels=labels)


def read_base(c: Config, kind: str) -> float:
    """The base of the rotary frequencies in layers of a kind; old files have a key of its own for each kind."""
    key, usual = KINDS[kind]
    rope = c.part("rope_parameters").part(kind)
    rope.fixed("rope_type", "default")
    base = rope.number("rope_theta", c.number(key, usual))
    rope.finish(())
    return base


def read_heads(c: Config, norm: Norm) -> tuple[Head | None, Labels | None]:
    """The head and the labels by `architectures`; both stand behind the same dense layer."""
    kind, activation = read_architecture(c, HEADS), c.choice("classifier_activation", bert.ACTIVATIONS, "gelu")
    dense = Dense(activation, norm, bias=c.flag("classifier_bias", False))
    bias, tied = c.flag("decoder_bias", True), c.flag("tie_word_embeddings", True)
    token: Any = c.choice("classifier_pooling", {"cls": "first", "mean": "mean"}, "cls")
    drop = c.share("classifier_dropout", 0.0)
    head = Head("tied" if tied else "untied", bias=bias, dense=dense) if kind == "words" else None
    return head, Labels(count_labels(c), token, dense, dropout=drop) if kind == "texts" else None


def config(s: Spec) -> dict[str, Any]:
    """The ModernBERT config of a spec; reading it back shows what ModernBERT cannot express."""
    stack, first, windows = s.encoder, s.encoder.blocks[0], [b.attn.mask.window for b in s.encoder.blocks]
    kinds = name_windows(s)
    bases = {kind: next((b.attn.rotary.base for b, k in zip(stack.blocks, kinds, strict=True) if k == kind), usual)
             for kind, (_, usual) in KINDS.items()}
    words = {v: k for k, v in reversed(bert.ACTIVATIONS.items())}
    said = {
        "architectures": [next(name for name, k in HEADS.items() if k == (
            "words" if s.head else "texts" if s.labels else "none"))], "model_type": "modernbert",
        "vocab_size": s.vocabulary, "hidden_size": stack.width, "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": first.attn.heads, "intermediate_size": first.ffn.width,
        "hidden_activation": words[first.ffn.activation], "mlp_bias": first.ffn.bias, "mlp_dropout": first.ffn.dropout,
        "attention_bias": first.attn.bias, "attention_dropout": first.attn.dropout, "norm_eps": first.norm_in.eps,
        "norm_bias": first.norm_in.kind == "layer", "embedding_dropout": stack.dropout, "layer_types": kinds,
        "max_position_embeddings": stack.longest, "initializer_range": s.init.std,
        "local_attention": 2 * (next(filter(None, windows), 65) - 1),
        "rope_parameters": {k: {"rope_type": "default", "rope_theta": base} for k, base in bases.items()},
    }
    if dense := (s.head or s.labels) and (s.head or s.labels).dense:
        said |= {"classifier_activation": words[dense.activation], "classifier_bias": dense.bias}
    if s.head:
        said |= {"decoder_bias": s.head.bias, "tie_word_embeddings": s.head.kind == "tied"}
    if s.labels:
        said |= {"classifier_pooling": "cls" if s.labels.token == "first" else "mean",
                 "classifier_dropout": s.labels.dropout, "id2label": name_labels(s.labels.count)}
    return said


SIZES = {"base": {"vocab_size": 50_368}, "large": {"hidden_size": 1024, "num_hidden_layers": 28,
         "num_attention_heads": 16, "intermediate_size": 2624}}

NAMES = """
embed                          [model.]embeddings.tok_embeddings
embed_norm                     [model.]embeddings.norm
layers.*.{attn_in,ffn_in}      [model.]layers.*.{attn_norm,mlp_norm}
layers.*.attn.{q,k,v}          [model.]layers.*.attn.Wqkv              split
layers.*.attn.out              [model.]layers.*.attn.Wo
layers.*.ffn.{gate,up}         [model.]layers.*.mlp.Wi                 split
layers.*.ffn.down              [model.]layers.*.mlp.Wo
final_norm                     [model.]final_norm
head                           decoder
head.dense.{linear,norm}       head.{dense,norm}
labels.dense.{linear,norm}     head.{dense,norm}
labels.out                     classifier
"""

IGNORE = {
    "initializer_cutoff_factor|sparse_.*": "first weights, and a way of training",
    "deterministic_flash_attn|reference_compile|repad_logits_with_grad": "how it is run",
    "layer_norm_eps|position_embedding_type": "left over: norm_eps holds, and positions are rotary",
    r"(head|decoder)\..*": "the words' head of a model that gives states",
}
