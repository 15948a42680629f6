"""GPT-4 as the press reported it in 2023: 120 layers, 16 experts of which 2 answer, one key/value head. Unpublished.

Reported: 1.8 trillion parameters, 111 billion in each expert, 55 billion in attention, 280 billion at work for a token,
8192 positions. Width, heads and ffn width were not; those below are chosen so that these counts come out.
"""

from dataclasses import replace
from typing import Any

from qkv.families import Config, gpt3
from qkv.spec import Experts, Mask, Spec, as_json

TYPES = ("gpt4",)
UNPUBLISHED = (
    "GPT-4's architecture is unpublished: these are press reports of 2023, and sizes chosen so that they come out."
)


def spec(c: Config) -> Spec:
    """The spec of the report: GPT-3's block, dense everywhere, with one key/value head, experts and no bias inside."""
    s = gpt3.spec(c)
    stack: Any = s.decoder
    first = stack.blocks[0]
    attn = replace(first.attn, groups=1, mask=Mask("causal"), bias=False, out_bias=False)
    moe = Experts(c["experts"], c["chosen"], replace(first.ffn, bias=False))
    block = replace(first, attn=attn, ffn=None, moe=moe)
    return replace(s, decoder=replace(stack, blocks=(block,) * len(stack.blocks)))


def config(s: Spec) -> dict[str, Any]:
    """Our own type with the spec in it, and beside it the numbers by which a spec is known as this one."""
    stack: Any = s.decoder
    moe = stack.blocks[0].moe
    dense = replace(stack.blocks[0], ffn=moe.expert, moe=None)
    said = gpt3.config(replace(s, decoder=replace(stack, blocks=(dense,) * len(stack.blocks))))
    return {**said, "spec": as_json(s), "experts": moe.num_experts, "chosen": moe.top_k}


SIZES = {
    "as-reported": {
        "n_layers": 120,
        "d_model": 10_752,
        "n_heads": 168,
        "d_head": 128,
        "experts": 16,
        "chosen": 2,
        "n_ctx": 8192,
        "vocab_size": 100_277,
    }
}

NAMES = ""  # there is no checkpoint to name tensors of
IGNORE: dict[str, str] = {}
