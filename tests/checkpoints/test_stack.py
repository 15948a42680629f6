"""The `stack` of a table: their matrix for each expert `#` is one slice of ours, there and back."""

import pytest
import torch
from torch import Tensor, nn

from qkv.checkpoints import name_table
from qkv.errors import QkvError

NAMES = """
layers.*.moe.{gate,up}      [model.]layers.*.experts.#.{w1,w3}    stack
layers.*.moe.bias           [model.]layers.*.router.correction
"""


class Part(nn.Module):
    """Something with a weight."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(sizes))


def core() -> nn.Module:
    """Two layers with three experts each, and a stored number for each expert."""
    found = nn.Module()
    found.layers = nn.ModuleList(nn.Module() for _ in range(2))
    for layer in found.layers:
        layer.moe = nn.Module()
        layer.moe.gate, layer.moe.up = Part(3, 5, 4), Part(3, 5, 4)
        layer.moe.register_buffer("bias", torch.zeros(3))
    return found


def theirs() -> dict[str, Tensor]:
    torch.manual_seed(0)
    names = [f"model.layers.{i}.experts.{e}.{w}.weight" for i in range(2) for e in range(3) for w in ("w1", "w3")]
    bias = {f"model.layers.{i}.router.correction": torch.randn(3) for i in range(2)}
    return {n: torch.randn(5, 4) for n in names} | bias


def filled(tensors: dict[str, Tensor]) -> nn.Module:
    ours = core()
    name_table.load_tensors(ours, NAMES, {n: lambda t=t: t for n, t in tensors.items()}, [])
    return ours


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_each_expert_fills_its_slice_and_comes_back(prefix: str) -> None:
    given = theirs()
    ours = filled({n.replace("model.", prefix): t for n, t in given.items()})
    for i, e in ((0, 0), (0, 2), (1, 1)):
        assert torch.equal(ours.layers[i].moe.gate.weight[e], given[f"model.layers.{i}.experts.{e}.w1.weight"])
        assert torch.equal(ours.layers[i].moe.up.weight[e], given[f"model.layers.{i}.experts.{e}.w3.weight"])
    back = name_table.export_tensors(ours, NAMES)
    assert back.keys() == given.keys()
    assert all(torch.equal(back[n], given[n]) for n in given)
    assert all(t.is_contiguous() for t in back.values())


def test_an_expert_that_is_missing_too_many_or_of_another_shape_is_named() -> None:
    lost = theirs()
    del lost["model.layers.1.experts.2.w3.weight"]
    with pytest.raises(QkvError, match=r"Missing \(1\): model.layers.1.experts.2.w3.weight"):
        filled(lost)
    more = theirs() | {"model.layers.0.experts.3.w1.weight": torch.zeros(5, 4)}
    with pytest.raises(QkvError, match=r"Never read \(1\): model.layers.0.experts.3.w1.weight"):
        filled(more)
    wide = theirs() | {"model.layers.0.experts.1.w1.weight": torch.zeros(5, 3)}
    with pytest.raises(QkvError, match=r"experts.1.w1.weight: found the shape \[5, 3\], expected \[5, 4\]"):
        filled(wide)


def test_slices_in_the_wrong_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = name_table.expert_names
    monkeypatch.setattr(name_table, "expert_names", lambda name, ours: right(name, ours)[::-1])
    with pytest.raises(AssertionError):
        test_each_expert_fills_its_slice_and_comes_back("model.")
