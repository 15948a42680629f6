"""RoBERTa: BERT whose positions begin behind the padding's number (Liu et al. 2019); XLM-R and CamemBERT too."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, bert
from qkv.spec import Dense, Spec, Table

TYPES = ("roberta", "xlm-roberta", "camembert")
TOKENS = {"roberta": "bytes-framed", "xlm-roberta": "sentence-offset"}
NAMED = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
PARTS = {"ForMaskedLM": "words", "ForSequenceClassification": "texts", "Model": "none"}


def spec(c: Config) -> Spec:
    """The spec that a RoBERTa config describes."""
    kind: str = c.choice("model_type", NAMED, "roberta")
    c = c.with_defaults(vocab_size=50_265 if kind == "Roberta" else 30_522)
    s = bert.spec(c, {kind + part: head for part, head in PARTS.items()})
    assert s.encoder
    first = c.count("pad_token_id", 1) + 1  # the table has a row for the padding and unused ones before it
    table = Table("learned", size=c.size("max_position_embeddings", 512) - first, offset=first)
    head = s.head and replace(s.head, dense=Dense("gelu", s.encoder.embed_norm))
    return replace(s, encoder=replace(s.encoder, positions=table), head=head)


def config(s: Spec) -> dict[str, Any]:
    """The RoBERTa config of a spec; reading it back shows what RoBERTa cannot express."""
    table: Any = s.stack.positions
    said = bert.config(s, "roberta", {"Roberta" + part: head for part, head in PARTS.items()})
    return said | {"max_position_embeddings": table.size + table.offset, "pad_token_id": table.offset - 1}


def size(width: int, layers: int, heads: int, vocabulary: int = 50_265, **more: Any) -> dict[str, Any]:
    """One of the released models (Liu et al. 2019, section 3.1; Conneau et al. 2020; Martin et al. 2020)."""
    shape = bert.size(width, layers, heads, vocabulary)
    return shape | {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5, **more}


SIZES = {
    "base": size(768, 12, 12), "large": size(1024, 24, 16),
    "xlm-base": size(768, 12, 12, 250_002, model_type="xlm-roberta"),
    "xlm-large": size(1024, 24, 16, 250_002, model_type="xlm-roberta"),
    "camembert-base": size(768, 12, 12, 32_005, model_type="camembert"),
}

NAMES = bert.BODY.replace("[bert.]", "[roberta.]") + """
head.weight                 lm_head.decoder.weight
head.bias                   lm_head.bias|lm_head.decoder.bias
head.dense.{linear,norm}    lm_head.{dense,layer_norm}
labels.dense.linear         classifier.dense
labels.out                  classifier.out_proj
"""

IGNORE = {
    "(roberta.)?embeddings.(position_ids|token_type_ids)": "positions, counted",
    "(roberta.)?pooler.dense.(weight|bias)": "a layer that no head of these models reads",
    "lm_head.*": "the words' head of a model that gives labels or states",
    "lm_head.decoder.bias": "the bias once more",
}
