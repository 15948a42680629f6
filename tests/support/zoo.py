"""Small models of every kind that the spec describes, with sizes that differ from one another so that mistakes show."""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.core.cache import Cache
from qkv.core.dropout import Drop, no_dropout
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs, Mode
from qkv.spec import (
    Attention,
    Block,
    Dense,
    Experts,
    Ffn,
    Head,
    Init,
    Labels,
    Latent,
    Mask,
    Norm,
    Relative,
    Rotary,
    Scaling,
    Spec,
    Stack,
    Table,
)  # fmt: skip


def seq2seq(*, dropout: float = 0.0, gated: bool = False) -> Spec:
    """The encoder-decoder of 2017: post-norm, sinusoids, biases, tied head."""
    norm, ffn = Norm("layer"), Ffn(96, "relu", gated, bias=True, dropout=dropout)

    def at(kind: str) -> Attention:
        return Attention(2, 2, 32, Mask(kind), True, True, dropout=dropout)  # type: ignore[arg-type]

    enc = Block(at("full"), ffn, norm_sum=norm, dropout=dropout)
    dec = Block(at("causal"), ffn, cross=at("memory"), norm_sum=norm, dropout=dropout)
    table = Table("sinusoid", 128)
    decoder = Stack(48, (dec,) * 2, table, 48**0.5, dropout=dropout)
    return Spec(97, decoder, Stack(48, (enc,) * 3, table, 48**0.5), init=Init("xavier"))


def gqa(*, window: int | None = None) -> Spec:
    """A decoder with grouped keys, rotary positions, gated SiLU, RMSNorm; every second layer may have a window."""
    def block(mask: Mask) -> Block:
        attn = Attention(6, 2, 32, mask, rotary=Rotary(32))
        return Block(attn, Ffn(80, "silu", gated=True), norm_in=Norm("rms", 1e-6))

    masks = (Mask("causal"), Mask("causal", window))
    blocks = tuple(block(masks[i % 2]) for i in range(3))
    return Spec(97, Stack(48, blocks, final_norm=Norm("rms", 1e-6)), head=Head("untied"))


def learned() -> Spec:
    """A pre-norm decoder with learned positions, the tanh GELU, biases everywhere, depth-scaled first weights."""
    attn = Attention(3, 3, 16, Mask("causal"), True, True)
    block = Block(attn, Ffn(80, "gelu_tanh", bias=True), norm_in=Norm("layer"))
    stack = Stack(48, (block,) * 3, Table("learned", 64), final_norm=Norm("layer"))
    return Spec(97, stack, init=Init(depth_scaled=True))


def parallel() -> Spec:
    """A parallel residual, one key/value head, neighbouring rotary pairs on half of each head, a biased head."""
    attn = Attention(4, 1, 32, Mask("prefix"), rotary=Rotary(16, pairs="interleaved"), scale=1.0)
    block = Block(attn, Ffn(80, "gelu"), norm_in=Norm("layer"), residual="parallel")
    return Spec(97, Stack(48, (block,) * 2, final_norm=Norm("layer")), head=Head("untied", bias=True))


def bare() -> Spec:
    """No residual, no norm, no positions: what the classic ablations switch off; sandwich-norm in its last layer."""
    attn = Attention(2, 1, 16, Mask("causal"))
    plain = Block(attn, Ffn(80, "relu"), residual="none")
    sandwich = Block(attn, Ffn(80, "relu"), norm_in=Norm(), norm_out=Norm())
    return Spec(97, Stack(48, (plain, sandwich), context=64))


def encoder() -> Spec:
    """An encoder alone, with the norm of its embeddings and a head over its states."""
    attn = Attention(2, 2, 32, Mask("full"), True, True)
    block = Block(attn, Ffn(80, "gelu", bias=True), norm_sum=Norm("layer", 1e-12))
    stack = Stack(48, (block,) * 2, Table("learned", 64), embed_norm=Norm("layer", 1e-12))
    return Spec(97, encoder=stack, head=Head(bias=True))


def relative() -> Spec:
    """Encoder and decoder with buckets of distances, unscaled scores, gated GELU, a head that scales its states."""
    def stack(kind: str, direction: str, cross: bool) -> Stack:
        def at(mask: str) -> Attention:
            return Attention(2, 2, 32, Mask(mask), scale=1.0)  # type: ignore[arg-type]

        block = Block(at(kind), Ffn(80, "gelu_tanh", gated=True), at("memory") if cross else None, norm_in=Norm("rms"))
        near = Relative(8, 20, 2, direction)  # type: ignore[arg-type]
        return Stack(48, (block,) * 2, final_norm=Norm("rms"), relative=near)

    return Spec(97, stack("causal", "past", True), stack("full", "both", False), Head(scale=48**-0.5))


def cloze(token: Literal["first", "mean"] = "first") -> Spec:
    """An encoder that fills in masked words and names a label, with segments and positions that begin later."""
    attn = Attention(2, 2, 32, Mask("full"), True, True)
    block = Block(attn, Ffn(80, "gelu", bias=True), norm_sum=Norm("layer", 1e-12))
    table = Table("learned", 64, offset=2)
    stack = Stack(48, (block,) * 2, table, embed_norm=Norm("layer", 1e-12), segments=2)
    head = Head(bias=True, dense=Dense("gelu", Norm("layer", 1e-12)))
    return Spec(97, encoder=stack, head=head, labels=Labels(3, token, Dense("tanh")))


def nearby() -> Spec:
    """An encoder whose second layer sees a few words on both sides, adds less than it computes, and turns otherwise."""
    def block(window: int | None, base: float, scale: float) -> Block:
        attn = Attention(2, 2, 32, Mask("full", window), rotary=Rotary(32, base))
        return Block(attn, Ffn(80, "gelu", True), norm_in=Norm("unbiased"), residual="scaled", residual_scale=scale)

    blocks = (block(None, 1e5, 1.0), block(3, 1e4, 0.3))
    head = Head(bias=True, dense=Dense("gelu", Norm("unbiased"), bias=False))
    return Spec(97, encoder=Stack(48, blocks, final_norm=Norm("unbiased")), head=head)


def narrow() -> Spec:
    """An encoder with embeddings narrower than its states, a head that goes back, one norm less in its first layer."""
    attn = Attention(2, 2, 32, Mask("full"), True, True)
    block = Block(attn, Ffn(80, "gelu", bias=True), norm_in=Norm("layer"))
    stack = Stack(48, (replace(block, norms="second"), block), Table("learned", 64), embed_norm=Norm("layer"),
                  final_norm=Norm("layer"), embed_width=24)
    return Spec(97, encoder=stack, head=Head(bias=True, dense=Dense("gelu", Norm("layer"))))


def blanks() -> Spec:
    """A prefix decoder that fills a blank, with two tables of positions."""
    attn = Attention(2, 2, 32, Mask("prefix"), True, True)
    block = Block(attn, Ffn(80, "gelu_tanh", bias=True), norm_in=Norm("layer"))
    table = Table("learned", 64, blanks="counted")
    return Spec(97, Stack(48, (block,) * 2, table, final_norm=Norm("layer")), labels=Labels(2, "last", bias=False))


def carried() -> Spec:
    """A prefix decoder that fills a blank by rotary positions on two axes, and carries on what its parts read."""
    attn = Attention(2, 2, 32, Mask("prefix"), True, True, rotary=Rotary(16, axes=2))
    block = Block(attn, Ffn(80, "gelu_tanh", bias=True), norm_in=Norm("layer"), residual="deepnorm", residual_scale=2.0)
    return Spec(97, Stack(48, (block,) * 2, final_norm=Norm("layer"), context=64), head=Head("untied"))


def stretched() -> Spec:
    """A decoder whose rotary angles are slowed in a way of its own in every layer, q and k normed by head."""
    def block(scaling: Scaling) -> Block:
        attn = Attention(4, 2, 32, Mask("causal"), rotary=Rotary(2 * len(scaling.short) or 32, scaling=scaling),
                         qk_norm=Norm("rms", 1e-6))
        return Block(attn, Ffn(80, "silu", gated=True), norm_in=Norm("rms", 1e-6), norm_out=Norm("rms", 1e-6))

    kinds = (
        Scaling("linear", 4.0), Scaling("dynamic", 4.0, 64), Scaling("wavelength", 8.0, 8, 1.0, 4.0),
        Scaling("yarn", 4.0, 16, gain=1.1), Scaling("yarn", 4.0, 16, 1.0, 2.0, whole="exact"),
        Scaling("longrope", trained=4096, gain=1.1, short=(1.0, 2.0), long=(2.0, 3.0)),
    )  # fmt: skip
    return Spec(97, Stack(48, tuple(map(block, kinds)), final_norm=Norm("rms", 1e-6)), head=Head("untied"))


def capped() -> Spec:
    """A decoder with capped scores and logits, norms whose weights lie around 0, a norm before and after each part."""
    norm = Norm("rms", 1e-6, offset=1.0)
    attn = Attention(4, 2, 16, Mask("causal"), scale=0.3, rotary=Rotary(16), qk_norm=norm, cap=2.0)
    block = Block(attn, Ffn(80, "gelu_tanh", gated=True), norm_in=norm, norm_out=norm)
    return Spec(97, Stack(48, (block,) * 2, embed_scale=48**0.5, final_norm=norm), head=Head(cap=3.0))


def together() -> Spec:
    """A decoder whose q and k are normed over all heads; a parallel residual of which both parts read one norm."""
    attn = Attention(6, 2, 16, Mask("causal"), qk_norm=Norm("rms", 1e-6), qk_normed="together", rotary=Rotary(16))
    post = Block(attn, Ffn(80, "silu", gated=True), norm_out=Norm("rms", 1e-6))
    beside = Block(attn, Ffn(80, "gelu", bias=True), norm_in=Norm("layer"), residual="parallel", norms="one")
    return Spec(97, Stack(48, (post, beside, post), final_norm=Norm("rms", 1e-6)), head=Head("untied", bias=True))


def alibi() -> Spec:
    """A decoder with ALiBi for positions, grouped keys and normed embeddings."""
    attn = Attention(6, 3, 16, Mask("causal", alibi_heads=6), True, True)
    block = Block(attn, Ffn(80, "gelu_tanh", bias=True), norm_in=Norm("layer"))
    return Spec(97, Stack(48, (block,) * 2, embed_norm=Norm("layer"), final_norm=Norm("layer")))


def experts() -> Spec:
    """A decoder of experts: soft scores over eight, two of them chosen, and a shared one behind a gate."""
    attn = Attention(4, 2, 16, Mask("causal"), True, rotary=Rotary(16))
    shared = Ffn(56, "silu", gated=True)
    moe = Experts(8, 2, Ffn(24, "silu", gated=True), weights="as scored", shared=shared, shared_gate=True)
    block = Block(attn, None, norm_in=Norm("rms", 1e-6), moe=moe)
    return Spec(97, Stack(48, (block,) * 2, final_norm=Norm("rms", 1e-6)), head=Head("untied"))


def latent() -> Spec:
    """A decoder whose keys and values come from one small latent, queries straight from the state."""
    attn = Latent(3, None, 24, 16, 20, Mask("causal"), Rotary(8, pairs="interleaved"), Norm("rms", 1e-6), bias=True)
    block = Block(attn, Ffn(80, "gelu"), norm_in=Norm("layer"))
    return Spec(97, Stack(48, (block,) * 2, final_norm=Norm("layer")))


def mixed() -> Spec:
    """Latents throughout; the first layer dense, then experts in groups, chosen with a bias, and a shared one."""
    attn = Latent(2, 28, 24, 16, 16, Mask("causal"), Rotary(16), Norm("rms", 1e-6), scale=0.3)
    moe = Experts(
        8, 3, Ffn(24, "gelu_tanh"), "sigmoid", scale=2.5, balance="bias", groups=4, topk_groups=2,
        group_score="best two", shared=Ffn(56, "silu", gated=True),
    )  # fmt: skip
    dense = Block(attn, Ffn(80, "silu", gated=True), norm_in=Norm("rms", 1e-6))
    sparse = Block(attn, None, norm_in=Norm("rms", 1e-6), moe=moe)
    return Spec(97, Stack(48, (dense, sparse, sparse), final_norm=Norm("rms", 1e-6)), head=Head("untied"))


def two_words(layout: Any = "half", offset: int = 0) -> Spec:
    """An encoder with a vocabulary of its own, sinusoids in two halves."""
    base = seq2seq(gated=True)
    assert base.encoder
    table = Table("sinusoid", 128, layout, offset)
    enc, dec = Stack(48, base.encoder.blocks, table), Stack(48, base.stack.blocks, table)
    return Spec(97, dec, enc, sources=61)


ALL = {
    "seq2seq": seq2seq, "gqa": gqa, "window": lambda: gqa(window=3), "learned": learned, "parallel": parallel,
    "bare": bare, "encoder": encoder, "relative": relative, "cloze": cloze, "mean": lambda: cloze("mean"),
    "blanks": blanks, "stretched": stretched, "capped": capped, "together": together, "nearby": nearby,
    "narrow": narrow,
    "alibi": alibi, "two_words": two_words, "carried": carried, "experts": experts, "latent": latent, "mixed": mixed,
    "dropout": lambda: seq2seq(dropout=0.1), "spanning": lambda: two_words("spanning", 1),
}  # fmt: skip


def made(spec: Spec, seed: int = 0) -> Transformer:
    """The core with weights large enough that logits spread, and biases and norms unlike what they start as."""
    core = Transformer(spec).eval()
    initialise(core, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in core.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn(p.shape, generator=generator) * 0.1)
            elif spec.init.kind == "normal":
                p.mul_(4.0 if "layers" in name else 10.0)
        for b in core.buffers():
            b.add_(torch.randn(b.shape, generator=generator) * 0.1)
    return core


def words(rows: int, tokens: int, *, seed: int = 0, of: int = 61) -> Tensor:
    return torch.randint(0, of, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def run(
    core: Transformer, ids: Tensor, source: Tensor | None = None, *, cache: Cache | None = None, mode: Mode = "train",
    drop: Drop = no_dropout,
) -> Tensor:  # fmt: skip
    """Logits of any of them; `source` (three rows of seven words by default) goes to an encoder-decoder only."""
    given = Inputs()
    if hasattr(core, "encoder") and hasattr(core, "decoder"):
        source = words(len(ids), 7, seed=9) if source is None else source
        given = Inputs(source=source)
    elif any(m.kind == "prefix" for m in core.decoder.masks) if hasattr(core, "decoder") else False:
        given = Inputs(prefix_len=torch.full((len(ids),), 3), blank_pos=torch.full((len(ids),), 1))
    elif hasattr(core, "encoder") and hasattr(core.encoder, "segments"):
        given = Inputs(segments=(torch.arange(ids.shape[1]) > 4).long().expand(len(ids), -1))
    return core(ids, given, cache, mode=mode, drop=drop).logits
