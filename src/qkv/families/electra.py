"""ELECTRA: BERT with embeddings of a width of their own, learnt by telling replaced words (Clark et al. 2020)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, bert
from qkv.spec import Dense, Spec

TYPES = ("electra",)
TOKENS = {"electra": "pieces"}
HEADS = {"ElectraForMaskedLM": "words", "ElectraForSequenceClassification": "texts", "ElectraModel": "none",
         "ElectraForPreTraining": "none"}
SMALL = {"vocab_size": 30_522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12,
         "num_attention_heads": 4, "intermediate_size": 1024}


def spec(c: Config) -> Spec:
    """The spec that an ELECTRA config describes; a discriminator's states, without its verdict on each word."""
    s, wide = bert.spec(c.with_defaults(**SMALL), HEADS), c.size("embedding_size", 128)
    assert s.encoder
    norm = s.encoder.embed_norm
    head = s.head and replace(s.head, dense=Dense("gelu", norm))
    labels = s.labels and replace(s.labels, dense=Dense("gelu"))
    narrow = None if wide == s.encoder.width else wide
    return replace(s, encoder=replace(s.encoder, embed_width=narrow), head=head, labels=labels)


def config(s: Spec) -> dict[str, Any]:
    """The ELECTRA config of a spec; reading it back shows what ELECTRA cannot express."""
    return bert.config(s, "electra", HEADS) | {"embedding_size": s.encoder.embed_width or s.encoder.width}


def size(width: int, layers: int, heads: int, ffn: int, embedding: int) -> dict[str, Any]:
    """One of the released models (Clark et al. 2020, table 6): a generator guesses words, the others tell which."""
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": ffn}
    return {"vocab_size": 30_522, "embedding_size": embedding, **shape}


SIZES = {
    "small": SMALL, "base": size(768, 12, 12, 3072, 768), "large": size(1024, 24, 16, 4096, 1024),
    "small-generator": size(256, 12, 4, 1024, 128), "base-generator": size(256, 12, 4, 1024, 768),
}

NAMES = bert.BODY.replace("[bert.]", "[electra.]") + """
embed_project               [electra.]embeddings_project
head                        generator_lm_head
head.dense.{linear,norm}    generator_predictions.{dense,LayerNorm}
labels.dense.linear         classifier.dense
labels.out                  classifier.out_proj
"""

IGNORE = {
    "summary_.*": "belongs to a head for choices",
    "(electra.)?embeddings.(position_ids|token_type_ids)": "positions, counted",
    "discriminator_predictions.*": "says which words were replaced: a step of pretraining",
    "generator_(predictions|lm_head).*": "the words' head of a model that gives labels or states",
}
