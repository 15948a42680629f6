"""DistilBERT: BERT with half its layers and without token types, learnt from BERT itself (Sanh et al. 2019)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, bert
from qkv.spec import Dense, Spec

TYPES = ("distilbert",)
TOKENS = {"distilbert": "pieces"}
HEADS = {"DistilBertForMaskedLM": "words", "DistilBertForSequenceClassification": "texts", "DistilBertModel": "none"}
KEYS = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim"}
DEFAULTS = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}


def spec(c: Config) -> Spec:
    """The spec that a DistilBERT config describes."""
    sizes = {ours: c.size(key, DEFAULTS[key]) for ours, key in KEYS.items()}
    told = {key: c.values[key] for key in ("architectures", "id2label", "num_labels") if key in c.values}
    said = Config(told | sizes | {
        "vocab_size": c.size("vocab_size", 30_522), "max_position_embeddings": c.size("max_position_embeddings", 512),
        "hidden_dropout_prob": c.share("dropout", 0.1), "classifier_dropout": c.share("seq_classif_dropout", 0.2),
        "attention_probs_dropout_prob": c.share("attention_dropout", 0.1),
        "initializer_range": c.share("initializer_range", 0.02),
        "hidden_act": c.choice("activation", {name: name for name in bert.ACTIVATIONS}, "gelu"),
        "tie_word_embeddings": c.flag("tie_word_embeddings", True),
    }, c.where)
    s = bert.spec(said, HEADS)
    assert s.encoder
    labels = s.labels and replace(s.labels, dense=Dense("relu"))
    return replace(s, encoder=replace(s.encoder, segments=0), labels=labels)


def config(s: Spec) -> dict[str, Any]:
    """The DistilBERT config of a spec; reading it back shows what DistilBERT cannot express."""
    said = bert.config(s, "distilbert", HEADS)
    kept = ("architectures", "model_type", "vocab_size", "max_position_embeddings", "initializer_range", "id2label")
    return {key: said[key] for key in kept if key in said} | {key: said[ours] for ours, key in KEYS.items()} | {
        "activation": said["hidden_act"], "dropout": said["hidden_dropout_prob"],
        "attention_dropout": said["attention_probs_dropout_prob"],
        "seq_classif_dropout": said.get("classifier_dropout", 0.2),
    }


SIZES = {"base": {"vocab_size": 30_522}, "base-multilingual": {"vocab_size": 119_547}}

NAMES = """
embed                                [distilbert.]embeddings.word_embeddings
{positions,embed_norm}               [distilbert.]embeddings.{position_embeddings,LayerNorm}
layers.*.attn.{q,k,v,out}            [distilbert.]transformer.layer.*.attention.{q_lin,k_lin,v_lin,out_lin}
layers.*.{attn_sum,ffn_sum}          [distilbert.]transformer.layer.*.{sa_layer_norm,output_layer_norm}
layers.*.ffn.{up,down}               [distilbert.]transformer.layer.*.ffn.{lin1,lin2}
head                                 vocab_projector
head.dense.{linear,norm}             {vocab_transform,vocab_layer_norm}
labels.dense.linear                  pre_classifier
labels.out                           classifier
"""

IGNORE = {
    "sinusoidal_pos_embds": "how the positions were first drawn; they are stored like learnt ones",
    "qa_dropout|tie_weights_": "belong to a head that is not read, and to an early way of tying",
    "vocab_(transform|layer_norm|projector).*": "the words' head of a model that gives labels or states",
}
