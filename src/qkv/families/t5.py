"""T5 1.0, 1.1, Flan and mT5: pre-norm RMSNorm, buckets of distances for positions, unscaled scores, no biases."""

from typing import Any, Literal

from qkv.families import Config, read_architecture
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Relative, Spec, Stack

TYPES = ("t5", "mt5")
TOKENS = {"t5": "sentence", "mt5": "sentence"}
HEADS = {f"{name}{part}": kind for part, kind in {"ForConditionalGeneration": "head", "WithLMHeadModel": "head",
         "Model": "states", "EncoderModel": "encoder"}.items() for name in ("T5", "MT5")}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu"}
PROJECTIONS = {  # the activation, and whether it is gated
    "relu": ("relu", False), "gelu": ("gelu", False), "gelu_new": ("gelu_new", False), "silu": ("silu", False),
    "gated-relu": ("relu", True), "gated-gelu": ("gelu_new", True), "gated-gelu_new": ("gelu_new", True),
    "gated-silu": ("silu", True),
}


def spec(c: Config) -> Spec:
    """The spec that a T5 config describes."""
    width, heads, drop = c.size("d_model"), c.size("num_heads"), c.share("dropout_rate", 0.1)
    norm = Norm("rms", c.number("layer_norm_epsilon", 1e-6))
    multilingual: bool = c.choice("model_type", {"t5": False, "mt5": True}, "t5")
    usual = "gated-gelu" if multilingual else "relu"
    form, gated = c.choice("feed_forward_proj", PROJECTIONS, usual)
    activation, gated = c.choice("dense_act_fn", ACTIVATIONS, form), c.flag("is_gated_act", gated)
    ffn = Ffn(width=c.size("d_ff"), activation=activation, gated=gated, dropout=drop)
    buckets = c.size("relative_attention_num_buckets", 32)
    distance = c.size("relative_attention_max_distance", 128)

    def attention(kind: Literal["full", "causal", "memory"]) -> Attention:
        # T5 does not scale its scores
        return Attention(heads=heads, groups=heads, head_dim=c.size("d_kv"), mask=Mask(kind), scale=1.0, dropout=drop)

    def stack(block: Block, layers: int, direction: Literal["both", "past"]) -> Stack:
        relative = Relative(buckets=buckets, distance=distance, heads=heads, direction=direction)
        return Stack(width=width, blocks=(block,) * layers, final_norm=norm, dropout=drop, relative=relative)

    what, layers = read_architecture(c, HEADS), c.layers("num_layers")
    encoder = stack(Block(attention("full"), ffn, norm_in=norm, dropout=drop), layers, "both")
    block = Block(attention("causal"), ffn, cross=attention("memory"), norm_in=norm, dropout=drop)
    decoder = stack(block, c.layers("num_decoder_layers", None) or layers, "past")
    # 1.0 ties and scales its head, 1.1 does neither; new files call both tied and give the scale separately
    tied = c.flag("scale_decoder_outputs", c.flag("tie_word_embeddings", True)) and not multilingual
    head = Head("tied", scale=width**-0.5) if tied else Head("untied")
    vocabulary = c.size("vocab_size")
    if what == "encoder":
        return Spec(vocabulary, encoder=encoder, head=None)
    return Spec(vocabulary, decoder=decoder, encoder=encoder, head=head if what == "head" else None)


def config(s: Spec) -> dict[str, Any]:
    """The T5 config of a spec; reading it back shows what T5 cannot express."""
    block: Any = s.encoder.blocks[0]
    activation = {v: k for k, v in ACTIVATIONS.items()}[block.ffn.activation]
    feed = f"gated-{activation}".replace("gelu_new", "gelu") if block.ffn.gated else activation
    return {
        "architectures": [f"T5{'ForConditionalGeneration' if s.head else 'Model' if s.decoder else 'EncoderModel'}"],
        "model_type": "t5", "is_encoder_decoder": s.decoder is not None, "vocab_size": s.vocabulary,
        "d_model": s.encoder.width, "d_kv": block.attn.head_dim, "d_ff": block.ffn.width,
        "num_layers": len(s.encoder.blocks), "num_decoder_layers": len((s.decoder or s.encoder).blocks),
        "num_heads": block.attn.heads, "relative_attention_num_buckets": s.encoder.relative.buckets,
        "relative_attention_max_distance": s.encoder.relative.distance, "feed_forward_proj": feed,
        "dropout_rate": block.dropout, "layer_norm_epsilon": block.norm_in.eps,
        "tie_word_embeddings": s.head is None or s.head.kind == "tied",
    }


def size(width: int, heads: int, dim: int, ffn: int, layers: int, **more: Any) -> dict[str, Any]:
    """One of the released models (Raffel et al. 2020, section 3.7; the model cards of 1.1)."""
    common = {"vocab_size": 32_128, "d_model": width, "num_heads": heads, "d_kv": dim, "d_ff": ffn}
    return {**common, "num_layers": layers, **more}


NEWER = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
SIZES = {
    "small": size(512, 8, 64, 2048, 6), "base": size(768, 12, 64, 3072, 12), "large": size(1024, 16, 64, 4096, 24),
    "3b": size(1024, 32, 128, 16_384, 24), "11b": size(1024, 128, 128, 65_536, 24),
    "v1.1-small": size(512, 6, 64, 1024, 8, **NEWER),
    "v1.1-base": size(768, 12, 64, 2048, 12, **NEWER),
    "v1.1-large": size(1024, 16, 64, 2816, 24, **NEWER),
    "v1.1-xl": size(2048, 32, 64, 5120, 24, **NEWER),
    "v1.1-xxl": size(4096, 64, 64, 10_240, 24, **NEWER),
}

ENCODER = """
@relative                 encoder.block.0.layer.0.SelfAttention.relative_attention_bias
@layers.*.attn_in         encoder.block.*.layer.0.layer_norm
@layers.*.attn.{q,k,v,out}   encoder.block.*.layer.0.SelfAttention.{q,k,v,o}
@layers.*.ffn_in          encoder.block.*.layer.1.layer_norm
@layers.*.ffn.{gate,up}   encoder.block.*.layer.1.DenseReluDense.{wi_0,wi_1}   with:@layers.0.ffn.gate
@layers.*.ffn.up          encoder.block.*.layer.1.DenseReluDense.wi            without:@layers.0.ffn.gate
@layers.*.ffn.down        encoder.block.*.layer.1.DenseReluDense.wo
@final_norm               encoder.final_layer_norm
"""
BOTH = ENCODER.replace("@", "encoder.")  # the paths of an encoder alone have no prefix
NAMES = f"""
embed                     shared|encoder.embed_tokens|decoder.embed_tokens
{ENCODER.replace("@", "")}{BOTH}{BOTH.replace("encoder.", "decoder.").replace("layer.1.", "layer.2.")}
decoder.layers.*.cross_in               decoder.block.*.layer.1.layer_norm
decoder.layers.*.cross.{{q,k,v,out}}    decoder.block.*.layer.1.EncDecAttention.{{q,k,v,o}}
head                      lm_head|shared
"""

IGNORE = {
    "initializer_factor": "first weights only",
    "n_positions": "the length of texts in training; relative distances have no limit",
    "(en|de)coder.embed_tokens.weight": "the shared embedding once more",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "never used, transformers skips it too",
}
