"""An embedding is the mean of the states of a text, whatever else is in its batch."""


import pytest
import torch
from support import zoo

import qkv


def model(name: str) -> qkv.Model:
    core = zoo.made(zoo.ALL[name]())
    return qkv.Model(core)


def states(made: qkv.Model, row: list[int]) -> torch.Tensor:
    """The last states of one text alone [T, D], by the plainest call there is."""
    ids, core = torch.tensor([row]), made.core
    with torch.no_grad():
        if made.encoder_decoder:
            return core.encode(ids)[0]
        prefix = torch.tensor([len(row)]) if made.spec.architecture == "prefix decoder" else None
        return made(ids, prefix=prefix).hidden[0]


@pytest.mark.parametrize("name", ["encoder", "cloze", "gqa", "seq2seq", "relative", "blanks"])
def test_an_embedding_is_the_mean_of_the_real_states_made_length_one(name):
    made, rows = model(name), [[5, 6, 7, 8, 9], [3], [11, 12, 13]]
    both = made.embed(rows)
    for row, vector in zip(rows, both, strict=True):
        state = states(made, row).mean(0)
        assert torch.allclose(vector, state / state.norm(), atol=1e-5)
        assert torch.allclose(made.embed(row), vector, atol=1e-5)
