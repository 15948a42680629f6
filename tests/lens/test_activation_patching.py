"""A state patched into another run brings the donor's answer where it is all that counts."""

import pytest
import torch
from support import zoo

from qkv.core.step import Inputs
from qkv.lens import activation_patching
from qkv.lens.edge_ablation import Case


def test_a_patched_state_brings_the_donors_answer_an_earlier_one_does_not() -> None:
    core = zoo.made(zoo.gqa())
    donor, case = Case((), (5, 6, 7, 8, 33), 4), Case((), (20, 21, 22, 23, 33), 4)
    last = activation_patching.patch_activation(core, donor, case, name="layers.2.resid_out", source=3, pos=3)
    assert last.after == pytest.approx(last.donor, abs=1e-5), "the last layer's state at the last position is all"
    assert last.share == pytest.approx(1.0, abs=1e-4)
    none = activation_patching.patch_activation(core, donor, case, name="layers.2.resid_out", source=3, pos=1)
    assert none.after == pytest.approx(none.before, abs=1e-6), "at another position the last layer's state is unread"
    some = activation_patching.patch_activation(core, donor, case, name="layers.0.resid_out", source=3, pos=3)
    assert abs(some.after - some.before) > 1e-3
    assert abs(some.after - some.donor) > 1e-3
    with torch.no_grad():
        ids = torch.tensor([donor.target[:4]])
        real = core(ids).logits[0, -1].log_softmax(-1)
    assert last.donor == pytest.approx(float(real[33]), abs=1e-5)
    assert last.instead == int(real.argmax())


def test_the_donor_of_a_prefix_decoder_reads_its_prefix_freely() -> None:
    core = zoo.made(zoo.parallel())
    donor, case = Case((), (5, 6, 7, 8, 33), 4, free=4), Case((), (20, 21, 22, 23, 33), 4, free=4)
    last = activation_patching.patch_activation(core, donor, case, name="layers.1.resid_out", source=3, pos=3)
    ids = torch.tensor([donor.target[:4]])
    with torch.no_grad():
        seen = core(ids, Inputs(prefix_len=torch.tensor([4]))).logits[0, -1].log_softmax(-1)
        causal = core(ids).logits[0, -1].log_softmax(-1)
    assert abs(float(seen[33] - causal[33])) > 1e-3
    assert last.donor == pytest.approx(float(seen[33]), abs=1e-5)
    assert last.after == pytest.approx(last.donor, abs=1e-5)


def test_a_patch_at_the_wrong_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = activation_patching.put
    monkeypatch.setattr(activation_patching, "put", lambda name, value, pos: right(name, value, pos=0))
    with pytest.raises(AssertionError):
        test_a_patched_state_brings_the_donors_answer_an_earlier_one_does_not()
