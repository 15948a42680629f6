"""M2M-100 and NLLB-200: the 2017 Transformer with pre-norm, between 100 or 200 languages (Fan et al. 2020)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, marian
from qkv.spec import Head, Init, Norm, Spec, Stack, Table

TYPES = ("m2m_100",)
TOKENS = {"m2m_100": "numbered"}  # NLLB brings a tokenizer.json, which comes first
DEFAULTS = {"d_model": 1024, "activation_function": "relu", "scale_embedding": True, "attention_dropout": 0.1,
            **marian.both_sides(12, 16, 4096)}


def spec(c: Config) -> Spec:
    """The spec that an M2M-100 config describes."""
    s, norm = marian.spec(c.with_defaults(**DEFAULTS, vocab_size=128_112)), Norm("layer", 1e-5)
    c.fixed("tie_word_embeddings", True)
    offset = c.count("pad_token_id", 1) + 1  # positions begin behind the padding's number, as in fairseq
    table = Table("sinusoid", size=c.size("max_position_embeddings", 1024), layout="spanning", offset=offset)

    def norm_before(old: Stack | None) -> Stack:
        assert old
        block = replace(old.blocks[0], norm_in=norm, norm_sum=None)
        return replace(old, positions=table, blocks=(block,) * len(old.blocks), final_norm=norm)

    init = Init("normal", std=c.share("init_std", 0.02))
    return replace(s, decoder=norm_before(s.decoder), encoder=norm_before(s.encoder), head=Head("tied"), init=init)


def config(s: Spec) -> dict[str, Any]:
    """The M2M-100 config of a spec; reading it back shows what M2M-100 cannot express."""
    said, table = marian.config(s), s.decoder.positions
    for key in ("decoder_vocab_size", "share_encoder_decoder_embeddings"):
        del said[key]
    return said | {"architectures": ["M2M100ForConditionalGeneration"], "model_type": "m2m_100",
                   "pad_token_id": table.offset - 1, "init_std": s.init.std}


def size(width: int, layers: int, ffn: int, vocabulary: int = 256_206) -> dict[str, Any]:
    """One of the released models (Fan et al. 2020; NLLB team 2022, table 31), all with 16 heads."""
    return {**marian.both_sides(layers, 16, ffn), "d_model": width, "vocab_size": vocabulary}


SIZES = {"418m": size(1024, 12, 4096, 128_112), "1.2b": size(1024, 24, 8192, 128_112),
         "nllb-600m": size(1024, 12, 4096), "nllb-1.3b": size(1024, 24, 8192), "nllb-3.3b": size(2048, 24, 8192)}

NAMES = marian.NAMES.replace("_sum ", "_in ") + """
{encoder,decoder}.final_norm             model.{encoder,decoder}.layer_norm
"""
IGNORE = marian.IGNORE | {"model.(en|de)coder.embed_positions.weights": "sinusoids, computed"}
