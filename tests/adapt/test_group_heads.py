"""Pooled key/value heads are the mean of their group, and nothing else changes."""


import pytest
import torch
from support import zoo

from qkv.adapt.group_heads import group_heads
from qkv.errors import QkvError


def test_each_new_head_is_the_mean_of_its_group():
    core = zoo.made(zoo.ALL["stretched"]())  # 4 heads, 2 groups of 32
    new = group_heads(core, 1)
    old = core.decoder.layers[3].attn.v.weight
    assert torch.allclose(new.decoder.layers[3].attn.v.weight, (old[:32] + old[32:]) / 2)
    assert torch.equal(new.decoder.layers[3].attn.q.weight, core.decoder.layers[3].attn.q.weight)
    assert new.decoder.layers[3].attn.k.out_features == 32


def test_alike_heads_lose_nothing():
    core = zoo.made(zoo.ALL["seq2seq"]())
    with torch.no_grad():
        for layer in core.decoder.layers:
            for part in (layer.attn.k, layer.attn.v, layer.cross.k, layer.cross.v):
                part.weight[32:] = part.weight[:32]
                part.bias[32:] = part.bias[:32]
    ids = zoo.words(3, 9)
    with torch.no_grad():
        assert (zoo.run(group_heads(core, 1), ids) - zoo.run(core, ids)).abs().max() <= 1e-5


def test_as_many_groups_as_before_is_the_same_model():
    core = zoo.made(zoo.ALL["gqa"]())
    ids = zoo.words(3, 9)
    with torch.no_grad():
        assert torch.equal(zoo.run(group_heads(core, 2), ids), zoo.run(core, ids))


@pytest.mark.parametrize(("name", "groups", "says"), [
    ("gqa", 3, "possible are 1, 2"), ("gqa", 0, "possible are 1, 2"), ("encoder", 1, "no decoder"),
])  # fmt: skip
def test_what_cannot_be_pooled_is_said(name, groups, says):
    with pytest.raises(QkvError, match=says):
        group_heads(zoo.made(zoo.ALL[name]()), groups)
