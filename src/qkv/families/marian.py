"""The Transformer of 2017 as Marian stores it: post-norm, sinusoids, ReLU or swish, one embedding for both sides."""

from typing import Any, Literal

from qkv.families import Config
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Spec, Stack, Table

TYPES = ("marian",)
TOKENS = {"marian": "pair"}
ALSO = ("transformer",)  # another name for it
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}


def spec(c: Config) -> Spec:
    """The spec that a Marian config describes."""
    width, norm, drop = c.size("d_model"), Norm("layer", 1e-5), c.share("dropout", 0.1)
    positions = Table("sinusoid", size=c.size("max_position_embeddings", 1024), layout="half")
    scale = width**0.5 if c.flag("scale_embedding", False) else 1.0

    def attention(heads: int, kind: Literal["full", "causal", "memory"]) -> Attention:
        return Attention(
            heads=heads, groups=heads, head_dim=width // heads, mask=Mask(kind), bias=True, out_bias=True,
            dropout=c.share("attention_dropout", 0.0),
        )

    def stack(side: str, mask: Literal["full", "causal"], cross: bool) -> Stack:
        heads = c.size(f"{side}_attention_heads")
        activation = c.choice("activation_function", ACTIVATIONS)
        inner_drop = c.share("activation_dropout", 0.0)
        ffn = Ffn(width=c.size(f"{side}_ffn_dim"), activation=activation, bias=True, dropout=inner_drop)
        memory = attention(heads, "memory") if cross else None
        block = Block(attention(heads, mask), ffn, cross=memory, norm_sum=norm, dropout=drop)
        blocks = (block,) * c.layers(f"{side}_layers")
        return Stack(width=width, blocks=blocks, positions=positions, embed_scale=scale, dropout=drop)

    shared = c.flag("share_encoder_decoder_embeddings", True)
    sources = c.size("vocab_size")
    target = c.size("decoder_vocab_size", None) or sources
    head = Head("tied" if c.flag("tie_word_embeddings", True) else "untied", bias=True)
    decoder, encoder = stack("decoder", "causal", True), stack("encoder", "full", False)
    own = None if shared else sources
    return Spec(vocabulary=target, decoder=decoder, encoder=encoder, head=head, sources=own, init=Init("xavier"))


def config(s: Spec) -> dict[str, Any]:
    """The Marian config of a spec; reading it back shows what Marian cannot express."""
    decoder, encoder = s.decoder.blocks[0], s.encoder.blocks[0]
    activation = {v: k for k, v in reversed(ACTIVATIONS.items())}[decoder.ffn.activation]
    return {
        "architectures": ["MarianMTModel"], "model_type": "marian", "is_encoder_decoder": True,
        "vocab_size": s.sources or s.vocabulary, "decoder_vocab_size": s.vocabulary, "d_model": s.decoder.width,
        "encoder_layers": len(s.encoder.blocks), "encoder_attention_heads": encoder.attn.heads,
        "encoder_ffn_dim": encoder.ffn.width, "decoder_layers": len(s.decoder.blocks),
        "decoder_attention_heads": decoder.attn.heads, "decoder_ffn_dim": decoder.ffn.width,
        "activation_function": activation, "dropout": decoder.dropout,
        "attention_dropout": decoder.attn.dropout, "activation_dropout": decoder.ffn.dropout,
        "max_position_embeddings": s.decoder.longest, "scale_embedding": s.decoder.embed_scale != 1.0,
        "share_encoder_decoder_embeddings": s.sources is None, "tie_word_embeddings": s.head.kind == "tied",
    }


def both_sides(layers: int, heads: int, ffn: int) -> dict[str, Any]:
    """The sizes of encoder and decoder alike."""
    return {f"{side}_{key}": value for side in ("encoder", "decoder")
            for key, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", ffn))}


def size(width: int, heads: int, ffn: int) -> dict[str, Any]:
    """One of the paper's models (Vaswani et al. 2017, table 3), with its shared vocabulary of 37,000."""
    return {**both_sides(6, heads, ffn), "d_model": width, "vocab_size": 37_000, "activation_function": "relu",
            "scale_embedding": True, "max_position_embeddings": 512}


SIZES = {"base": size(512, 8, 2048), "big": size(1024, 16, 4096)}

NAMES = """
embed                                    model.shared|model.decoder.embed_tokens
source_embed                             model.encoder.embed_tokens
head.weight                              lm_head.weight
head.bias                                final_logits_bias                            row
{encoder,decoder}.layers.*.attn.{q,k,v}  model.{encoder,decoder}.layers.*.self_attn.{q_proj,k_proj,v_proj}
{encoder,decoder}.layers.*.attn.out      model.{encoder,decoder}.layers.*.self_attn.out_proj
{encoder,decoder}.layers.*.attn_sum      model.{encoder,decoder}.layers.*.self_attn_layer_norm
decoder.layers.*.cross.{q,k,v,out}       model.decoder.layers.*.encoder_attn.{q_proj,k_proj,v_proj,out_proj}
decoder.layers.*.cross_sum               model.decoder.layers.*.encoder_attn_layer_norm
{encoder,decoder}.layers.*.ffn.{up,down}     model.{encoder,decoder}.layers.*.{fc1,fc2}
{encoder,decoder}.layers.*.ffn_sum       model.{encoder,decoder}.layers.*.final_layer_norm
"""

IGNORE = {
    "(en|de)coder_layerdrop": "a way of training, not a part of the model",
    "init_std": "first weights only",
    "static_position_embeddings": "sinusoids are the only positions that Marian has",
    "num_hidden_layers": "repeats encoder_layers",
    "model.(en|de)coder.embed_positions.weight": "sinusoids, computed",
    "model.(en|de)coder.embed_tokens.weight": "the shared embedding once more",
}
