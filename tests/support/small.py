"""Small models whose readouts are computed by hand: an encoder-decoder, a decoder, an encoder, and what they read."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.data.packing import fill_rows, lay_documents
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table


def seq2seq() -> Spec:
    n, ff = Norm("layer"), Ffn(80, "relu", bias=True)
    enc = Block(Attention(4, 4, 8, Mask("full"), True, True), ff, norm_sum=n)
    dec = Block(Attention(4, 4, 8, Mask("causal")), ff, cross=Attention(4, 2, 8, Mask("memory")), norm_sum=n)
    t = Table("sinusoid", 64)
    return Spec(53, encoder=Stack(32, (enc,) * 3, t, 6.0), decoder=Stack(32, (dec,) * 2, t, 6.0), init=Init("xavier"))


def lm(*, parallel: bool = False) -> Spec:
    b = Block(
        Attention(4, 2, 8, Mask("causal"), rotary=Rotary(8)), Ffn(48, "silu", gated=True), norm_in=Norm("rms", 1e-6),
        residual="parallel" if parallel else "serial",
    )
    return Spec(53, decoder=Stack(32, (b,) * 3, final_norm=Norm("rms", 1e-6), context=64), head=Head("untied"))


def encoder() -> Spec:
    b = Block(Attention(2, 2, 16, Mask("full")), Ffn(48, "gelu"), norm_sum=Norm("layer"))
    return Spec(53, encoder=Stack(32, (b,) * 2, Table("learned", 64)), head=Head(bias=True))


def made(spec: Spec) -> Transformer:
    core = Transformer(spec).eval()
    initialise(core, 0)
    with torch.no_grad():
        for p in core.parameters():
            p.mul_(3.0 if p.dim() > 1 and spec.init.kind == "normal" else 1.0)
    return core


def run(core: Transformer, ids: Tensor, source: Tensor) -> Tensor:
    given = Inputs()
    if core.spec.encoder and core.spec.decoder:
        given = Inputs(memory=core.encode(source))
    return core(ids, given).logits


SOURCE, IDS = torch.tensor([[3, 4, 5, 6, 7]]), torch.tensor([[1, 8, 9, 10]])


def pack_documents(documents: Sequence[Sequence[int]], length: int, *, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Documents side by side in rows, as training packs them: ids and numbers (-1: padding), both [rows, length]."""
    return fill_rows(lay_documents([len(d) for d in documents], length), documents, length, pad=pad)
