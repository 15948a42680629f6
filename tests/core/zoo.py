"""Small models of every kind that the spec describes, with sizes that differ from one another so that mistakes show."""

import torch
from torch import Tensor

from qkv.core.cache import Cache
from qkv.core.dropout import Drop, keep
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Given, Mode, begin
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table


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
    attn = Attention(4, 1, 32, Mask("prefix"), rotary=Rotary(16, pairs="neighbours"), scale=1.0)
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


def two_words() -> Spec:
    """An encoder with a vocabulary of its own, sinusoids in two halves."""
    base = seq2seq(gated=True)
    assert base.encoder
    table = Table("sinusoid", 128, "halves")
    enc, dec = Stack(48, base.encoder.blocks, table), Stack(48, base.stack.blocks, table)
    return Spec(97, dec, enc, sources=61)


ALL = {
    "seq2seq": seq2seq, "gqa": gqa, "window": lambda: gqa(window=3), "learned": learned, "parallel": parallel,
    "bare": bare, "encoder": encoder, "two_words": two_words, "dropout": lambda: seq2seq(dropout=0.1),
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
    return core


def words(rows: int, tokens: int, *, seed: int = 0, of: int = 61) -> Tensor:
    return torch.randint(0, of, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def run(
    core: Transformer, ids: Tensor, source: Tensor | None = None, *, cache: Cache | None = None, mode: Mode = "train",
    drop: Drop = keep,
) -> Tensor:  # fmt: skip
    """Logits of any of them; `source` (three rows of seven words by default) goes to an encoder-decoder only."""
    given = Given()
    if hasattr(core, "encoder") and hasattr(core, "decoder"):
        source = words(len(ids), 7, seed=9) if source is None else source
        given = Given(memory=core.encode(source, begin(core.encoder, source, mode=mode, drop=drop)))
    stack = core.decoder if hasattr(core, "decoder") else core.encoder
    return core(ids, begin(stack, ids, given, cache=cache, mode=mode, drop=drop))
