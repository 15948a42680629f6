"""Keys read at their whole capacity, as a captured step reads them, against keys read as far as they are written.

The capture itself needs a GPU: tests/families/test_cuda.py.
"""

from dataclasses import replace

import pytest
import torch
from support.rounding import EXACT

from qkv.generation.decoder import Decoder
from qkv.generation.graphs import Slots, can_capture, is_capturable, note_written
from qkv.spec import Experts, Mask, Stack

from .test_batch import PROMPTS, SPECS, feed, model

NAMES = ("causal", "learned", "prefix", "translator")  # without distances between slots


@torch.inference_mode()
def compare(name: str, prompts: list[list[int]]) -> float:
    core = model(name).double()
    plain, other = Decoder(core, feed(name)), Decoder(core, feed(name))
    tokens = plain.prefill(prompts, 24).argmax(-1)
    other.prefill(prompts, 24)
    assert other.cache is not None
    for buffer in (b for pair in other.cache.buffers if pair for b in pair):
        buffer[:, :, other.cache.length :] = torch.nan  # as memory may be
    slots, worst = Slots(other.cache), 0.0
    if other.cache.padding_mask is not None:
        slots.real[:, : other.cache.length] = other.cache.padding_mask
    for _ in range(20):
        want = plain.decode(tokens)
        slots.at.fill_(other.cache.length)
        got = core(tokens[:, None], other.inputs, slots, mode="decode", logits_to_keep=1).logits[:, 0]
        note_written(other.cache)
        worst = max(worst, float((want - got).abs().max() / want.std()))
        tokens = want.argmax(-1)
    return worst


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["padded", "one"])
def test_the_whole_capacity_gives_what_the_written_part_gives(name, prompts):
    assert compare(name, prompts) <= EXACT


def test_a_mask_of_distances_would_be_wrong_there():
    assert compare("window", PROMPTS[:1]) > EXACT


@pytest.mark.parametrize("name", SPECS)
def test_nothing_is_captured_on_the_host(name):
    assert not can_capture(model(name))
    assert Decoder(model(name), feed(name)).replay is None


def test_what_depends_on_distances_is_not_captured():
    assert [name for name in SPECS if is_capturable(SPECS[name])] == list(NAMES)
    block = SPECS["causal"].stack.blocks[0]
    for other in (replace(block, attn=replace(block.attn, mask=Mask("causal", alibi_heads=4))),
                  replace(block, ffn=None, moe=Experts(4, 2, block.ffn))):
        assert not is_capturable(replace(SPECS["causal"], decoder=Stack(64, (block, other))))
