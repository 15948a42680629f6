"""Paths and the alignment are what a computation by hand says."""

import pytest
import torch
from support.small import IDS, SOURCE, lm, made, run, seq2seq

from qkv.errors import QkvError
from qkv.lens import attention_maps
from qkv.lens.trace import Trace


def test_paths_are_those_of_a_part_and_a_missing_part_is_named() -> None:
    assert attention_maps.attention_paths(seq2seq(), "cross") == [f"decoder.layers.{i}.cross" for i in range(2)]
    assert attention_maps.attention_paths(lm(), "decoder") == [f"layers.{i}.attn" for i in range(3)]
    with pytest.raises(QkvError, match="no cross"):
        attention_maps.attention_paths(lm(), "cross")


@torch.no_grad()
def test_alignment_is_the_mean_of_heads_of_the_layer_that_covers_most() -> None:
    core = made(seq2seq())
    core.decoder.layers[0].cross.q.weight.mul_(0)  # looks everywhere alike: covers every word badly
    core.decoder.layers[1].cross.q.weight.mul_(20)
    with Trace(core, save=["alignment"]) as t:
        run(core, IDS, SOURCE)
    found = attention_maps.align_words(t)
    assert found.layer == 1
    assert torch.equal(found.weight, t["decoder.layers.1.cross.pattern"][0].mean(0))
    assert (attention_maps.align_words(t, layer=0).weight - 0.2).abs().max() < 1e-6
    assert (found.weight.sum(-1) - 1).abs().max() < 1e-5


@torch.no_grad()
def test_a_layer_that_rests_on_the_end_token_covers_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    core, tokens, size = made(seq2seq()), IDS.shape[1], SOURCE.shape[1]
    with Trace(core, save=["alignment"]) as t:
        run(core, IDS, SOURCE)
    rests = torch.full((1, 4, tokens, size), 0.1 / (size - 1))
    rests[..., -1] = 0.9
    rests[:, :, 0, 0], rests[:, :, 0, -1] = 0.6, 0.4
    maps = {"decoder.layers.0.cross.pattern": torch.full_like(rests, 1 / size), "decoder.layers.1.cross.pattern": rests}
    monkeypatch.setattr(Trace, "__getitem__", lambda t, name: maps[name])
    assert attention_maps.align_words(t).layer == 1
    assert attention_maps.align_words(t, source=size - 1).layer == 0
