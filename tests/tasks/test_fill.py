"""Each mask has a distribution over the vocabulary."""


import pytest
import torch
from support import zoo

import qkv
from qkv.tasks.fill import fill_ids


def model(name: str) -> qkv.Model:
    core = zoo.made(zoo.ALL[name]())
    return qkv.Model(core)


def test_fill_gives_the_distribution_at_each_mask():
    made = model("cloze")
    ids = [5, 60, 7, 60]
    found = fill_ids(made.core, ids, 60)
    with torch.no_grad():
        want = made(torch.tensor([ids])).logits[0, [1, 3]].softmax(-1)
    assert torch.allclose(found, want, atol=1e-6)
    assert found.sum(-1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
