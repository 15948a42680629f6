"""BART: Marian with learned positions and normed embeddings (Lewis et al. 2019); mBART is pre-norm."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, count_labels, marian, name_labels, read_architecture
from qkv.messages import Message
from qkv.spec import Dense, Head, Init, Labels, Norm, Spec, Stack, Table

TYPES = ("bart", "mbart")
TOKENS = {"bart": "bytes-framed"}
NAMED = {"bart": "Bart", "mbart": "MBart"}


def spec(c: Config) -> Spec:
    """The spec that a BART or mBART config describes."""
    s, kind = marian.spec(c.with_defaults(**SIZES["large"])), c.choice("model_type", {t: t for t in TYPES}, "bart")
    before = kind == "mbart"
    for key, usual in (("normalize_before", before), ("add_final_layer_norm", before), ("tie_word_embeddings", True)):
        c.fixed(key, usual, Message("{usual} in a model of type {kind}", usual=str(usual).lower(), kind=kind))

    norm, table = Norm("layer", 1e-5), Table("learned", size=c.size("max_position_embeddings", 1024), offset=2)

    def stack(old: Stack | None) -> Stack:
        assert old
        if not before:
            return replace(old, positions=table, embed_norm=norm)
        block = replace(old.blocks[0], norm_in=norm, norm_sum=None)
        return replace(old, positions=table, embed_norm=norm, blocks=(block,) * len(old.blocks), final_norm=norm)

    heads = {"ForConditionalGeneration": "words", "Model": "bare words", "ForSequenceClassification": "texts"}
    said, labels = read_architecture(c, {NAMED[kind] + name: head for name, head in heads.items()}), None
    if said == "texts":
        drop = c.share("classifier_dropout", None) or 0.0
        labels = Labels(count_labels(c, 2 if before else 3), token="last", dense=Dense("tanh"), dropout=drop)
    head = None if labels else Head("tied", bias=said == "words")
    init = Init("normal", std=c.share("init_std", 0.02))
    return replace(s, decoder=stack(s.decoder), encoder=stack(s.encoder), head=head, init=init, labels=labels)


def config(s: Spec) -> dict[str, Any]:
    """The BART config of a spec; reading it back shows what BART cannot express."""
    kind = "mbart" if s.decoder.final_norm else "bart"
    head = "ForSequenceClassification" if s.labels else "ForConditionalGeneration" if s.head.bias else "Model"
    said = marian.config(replace(s, head=s.head or Head()))
    for key in ("decoder_vocab_size", "share_encoder_decoder_embeddings"):
        del said[key]
    said |= {"architectures": [NAMED[kind] + head], "model_type": kind, "init_std": s.init.std}
    if s.labels:
        said |= {"id2label": name_labels(s.labels.count), "classifier_dropout": s.labels.dropout}
    return said


def size(width: int, layers: int, heads: int) -> dict[str, Any]:
    """One of the released models (Lewis et al. 2019, section 2.1)."""
    sides = marian.both_sides(layers, heads, 4 * width)
    return {**sides, "d_model": width, "vocab_size": 50265, "activation_function": "gelu"}


SIZES = {
    "base": size(768, 6, 12),
    "large": size(1024, 12, 16),
    "mbart-large": size(1024, 12, 16) | {"model_type": "mbart", "vocab_size": 250_027, "scale_embedding": True},
}

SHARED = """
embed                                    [model.]shared|[model.]decoder.embed_tokens
head.weight                              lm_head.weight
head.bias                                final_logits_bias                            row
encoder.{positions,embed_norm}           [model.]encoder.{embed_positions,layernorm_embedding}
decoder.{positions,embed_norm}           [model.]decoder.{embed_positions,layernorm_embedding}
{encoder,decoder}.final_norm             [model.]{encoder,decoder}.layer_norm
labels.dense.linear                      classification_head.dense
labels.out                               classification_head.out_proj
"""
LAYERS = [row.replace(" model.", " [model.]") for row in marian.NAMES.splitlines() if "layers." in row]
NAMES = "\n".join([SHARED, *LAYERS, *(row.replace("_sum ", "_in ") for row in LAYERS if "_sum " in row)])

IGNORE = {
    "(en|de)coder_layerdrop": "a way of training, not a part of the model",
    "num_hidden_layers": "repeats encoder_layers",
    "normalize_embedding": "the embedding is always normed; without its norm's tensors a checkpoint does not load",
    "extra_pos_embeddings": "the unused rows of its positions: always 2",
    "output_past|replacing_rate|classif_dropout|force_bos_token_to_be_generated": "how it was trained or once run",
    "(model.)?(en|de)coder.(embed_tokens.weight|version)": "the shared embedding once more, and a fairseq version",
    "(lm_head.weight|final_logits_bias)": "the words' head of a model that gives labels",
}
