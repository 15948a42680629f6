"""GPT-3 as in its paper: GPT-2 whose layers alternate between dense and locally banded attention.

No checkpoint exists, so what we train of it is saved under our own type. Source: Brown et al. 2020, section 2.1.
"""

from dataclasses import replace
from typing import Any

from qkv.families import Config
from qkv.spec import Attention, Block, Ffn, Init, Mask, Norm, Spec, Stack, Table, as_json

TYPES = ("gpt3",)
BAND = 256
UNPUBLISHED = f"GPT-3's paper does not tell how wide its local bands are; {BAND} keys stand in, as in GPT-Neo."


def spec(c: Config) -> Spec:
    """The spec of a row of table 2.1; layers 1, 3, 5… see only the newest `band` keys."""
    width, heads, dim = c.size("d_model"), c.size("n_heads"), c.size("d_head")
    dense = Attention(heads=heads, groups=heads, head_dim=dim, mask=Mask("causal"), bias=True, out_bias=True)
    banded = replace(dense, mask=Mask("causal", window=c.size("band", BAND)))
    norm, ffn = Norm("layer"), Ffn(width=c.size("d_ff", 4 * width), activation="gelu_tanh", bias=True)
    blocks = tuple(Block(banded if i % 2 else dense, ffn, norm_in=norm) for i in range(c.layers("n_layers")))
    stack = Stack(width=width, blocks=blocks, positions=Table("learned", size=c.size("n_ctx", 2048)), final_norm=norm)
    init = Init("normal", std=0.02, depth_scaled=True)
    return Spec(vocabulary=c.size("vocab_size", 50_257), decoder=stack, init=init)


def config(s: Spec) -> dict[str, Any]:
    """Our own format: the spec, and the paper's numbers, by which a GPT-3 is recognised."""
    blocks: Any = s.decoder.blocks
    return {
        "model_type": "qkv", "spec": as_json(s), "n_layers": len(blocks), "d_model": s.decoder.width,
        "n_heads": blocks[0].attn.heads, "d_head": blocks[0].attn.head_dim, "d_ff": blocks[0].ffn.width,
        "n_ctx": s.decoder.longest, "vocab_size": s.vocabulary, "band": blocks[-1].attn.mask.window or BAND,
    }


def size(layers: int, width: int, heads: int, dim: int) -> dict[str, Any]:
    """A row of Brown et al. 2020, table 2.1."""
    return {"n_layers": layers, "d_model": width, "n_heads": heads, "d_head": dim}


# Two rows are odd. The table prints 24 heads of 128 for 1.3b, which would make 1.5 billion parameters; 16 heads make
# the 1.3 billion that it states. For 13b it prints a width of 5140 beside 40 heads of 128, and we keep that.
SIZES = {
    "175b": size(96, 12_288, 96, 128), "125m": size(12, 768, 12, 64), "350m": size(24, 1024, 16, 64),
    "760m": size(24, 1536, 16, 96), "1.3b": size(24, 2048, 16, 128), "2.7b": size(32, 2560, 32, 80),
    "6.7b": size(32, 4096, 32, 128), "13b": size(40, 5140, 40, 128),
}

NAMES = ""  # there is no checkpoint to name tensors of
IGNORE: dict[str, str] = {}
