"""PaLM as in its paper: one key/value head, attention beside SwiGLU, rotary positions, no bias anywhere.

No checkpoint exists, so what we train of it is saved under our own type. Source: Chowdhery et al. 2022, section 2.
"""

from typing import Any

from qkv.families import Config
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Rotary, Spec, Stack, as_json

TYPES = ("palm",)


def spec(c: Config) -> Spec:
    """The spec of a row of table 1. The two norms of the parallel formula have a weight each."""
    width, dim = c.size("d_model"), c.size("d_head", 256)
    turn = Rotary(dim, pairs="interleaved")
    attn = Attention(heads=c.size("n_heads"), groups=1, head_dim=dim, mask=Mask("causal"), rotary=turn)
    norm = Norm("unbiased", 1e-6)
    ffn = Ffn(width=c.size("d_ff", 4 * width), activation="silu", gated=True)
    block = Block(attn, ffn, norm_in=norm, residual="parallel")
    stack = Stack(width=width, blocks=(block,) * c.layers("n_layers"), final_norm=norm, context=c.size("n_ctx", 2048))
    head = Head("tied", scale=width**-0.5)  # section 5 scales logits
    return Spec(vocabulary=c.size("vocab_size", 256_000), decoder=stack, head=head)


def config(s: Spec) -> dict[str, Any]:
    """Our own format: the spec, and the paper's numbers, by which a PaLM is recognised."""
    block: Any = s.decoder.blocks[0]
    return {
        "model_type": "qkv", "spec": as_json(s), "n_layers": len(s.decoder.blocks), "d_model": s.decoder.width,
        "n_heads": block.attn.heads, "d_head": block.attn.head_dim, "d_ff": block.ffn.width,
        "n_ctx": s.decoder.longest, "vocab_size": s.vocabulary,
    }


def size(layers: int, heads: int, width: int) -> dict[str, Any]:
    """A row of Chowdhery et al. 2022, table 1."""
    return {"n_layers": layers, "n_heads": heads, "d_model": width}


SIZES = {"540b": size(118, 48, 18_432), "62b": size(64, 32, 8192), "8b": size(32, 16, 4096)}

NAMES = ""  # there is no checkpoint to name tensors of
IGNORE: dict[str, str] = {}
