"""Labels are read off one state of each text, whatever its padding."""


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
        return made(ids, prefix=torch.tensor([len(row)]) if made.spec.decoder else None).hidden[0]


@pytest.mark.parametrize("name", ["cloze", "blanks"])
def test_classification_reads_one_state_of_each_text_whatever_its_padding(name):
    made, rows = model(name), [[5, 6, 7, 8, 9], [3, 4], [11, 12, 13]]
    for row, verdict in zip(rows, made.classify(rows), strict=True):
        alone = made.classify(row)
        assert verdict.label == alone.label
        assert verdict.probability == pytest.approx(alone.probability, abs=1e-5)
        assert sum(verdict.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
        state, labels = states(made, row)[0 if name == "cloze" else -1], made.core.labels
        if name == "cloze":
            state = (labels.dense.linear.weight @ state + labels.dense.linear.bias).tanh()
        want = (labels.out.weight @ state + (labels.out.bias if name == "cloze" else 0.0)).softmax(-1)
        assert list(verdict.probabilities.values()) == pytest.approx(want.tolist(), abs=1e-5)
