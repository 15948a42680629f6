"""GPT-4 as the press reported it in 2023, a spec alone: 16 experts of which 2 answer, one key/value head. Unpublished.

Reported: 120 layers, 1.8 trillion parameters, 111 billion in each expert, 55 billion in attention, 280 billion at work
for a token, 8192 positions. Width, heads and ffn width were not; those below are chosen so that these counts come out.
"""

from dataclasses import replace
from typing import Any

from qkv.families import Config, gpt3
from qkv.spec import Experts, Mask, Spec

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
    moe = Experts(num_experts=c.size("experts"), top_k=c.size("chosen"), expert=replace(first.ffn, bias=False))
    block = replace(first, attn=attn, ffn=None, moe=moe)
    return replace(s, decoder=replace(stack, blocks=(block,) * len(stack.blocks)))


SIZES = {"as-reported": gpt3.size(120, 10_752, 168, 128) | {
    "experts": 16, "chosen": 2, "n_ctx": 8192, "vocab_size": 100_277}}
NAMES, IGNORE = gpt3.NAMES, gpt3.IGNORE
