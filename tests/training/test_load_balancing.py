"""The balance of experts: transformers' loss, the numbers of the paper, and a bias that evens a skewed router out."""

import pytest
import torch
from torch import Tensor

from qkv import spec
from qkv.core.experts import route
from qkv.training import load_balancing as module
from qkv.training.load_balancing import balance_loss, count_tokens, move_bias


def drawn(tokens: int = 40, experts: int = 6, chosen: int = 2, layers: int = 3) -> tuple[Tensor, Tensor]:
    logits = torch.randn(layers, tokens, experts, generator=torch.Generator().manual_seed(0)) * 2
    return logits, logits.topk(chosen, -1).indices


def test_the_loss_is_that_of_transformers() -> None:
    moe = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    logits, index = drawn()
    want = moe.load_balancing_loss_func(tuple(logits), 6, 2)
    assert balance_loss(logits, index, 6).item() == pytest.approx(want.item(), rel=1e-6)
    real = torch.rand(4, 10, generator=torch.Generator().manual_seed(1)) < 0.6
    want = moe.load_balancing_loss_func(tuple(logits), 6, 2, real.long())
    flat = real.flatten()
    assert balance_loss(logits[:, flat], index[:, flat], 6).item() == pytest.approx(want.item(), rel=1e-6)


def test_the_gradient_is_that_of_transformers() -> None:
    moe = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    logits, index = drawn()
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    balance_loss(mine, index, 6).backward()
    moe.load_balancing_loss_func(tuple(theirs), 6, 2).backward()
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-8)


def test_an_even_router_costs_the_chosen_and_a_collapsed_one_all_experts() -> None:
    index = torch.arange(8).reshape(4, 2) % 4
    assert balance_loss(torch.zeros(4, 4), index, 4).item() == pytest.approx(2)
    one = torch.tensor([50.0, 0, 0, 0]).expand(4, 4)
    assert balance_loss(one, torch.zeros(4, 1, dtype=torch.int64), 4).item() == pytest.approx(4)


def test_the_bias_moves_toward_the_mean_load() -> None:
    index = torch.tensor([[0, 1], [0, 1], [0, 2]])  # loads 3, 2, 1, 0 with the mean 1.5
    bias = torch.tensor([0.5, 0.0, 0.0, -0.5])
    assert torch.allclose(move_bias(bias, count_tokens(index, 4), rate=0.1), torch.tensor([0.4, -0.1, 0.1, -0.4]))
    even = torch.arange(4).reshape(2, 2)
    assert torch.equal(move_bias(bias, count_tokens(even, 4), rate=0.1), bias), "an even load moves nothing"
    assert bias.tolist() == [0.5, 0.0, 0.0, -0.5], "what is given stays as it is"


def evened(steps: int = 300) -> float:
    """The largest load over the mean of a skewed router after some steps of the bias."""
    s = spec.Experts(6, 2, spec.Ffn(8, "silu"), score="sigmoid", balance="bias")
    skew = torch.linspace(-2, 2, 6)
    logits = torch.randn(400, 6, generator=torch.Generator().manual_seed(2)) + skew
    bias = torch.zeros(6)
    for _ in range(steps):
        bias = module.move_bias(bias, count_tokens(route(logits, bias, s)[0], 6), rate=0.005)
    counts = count_tokens(route(logits, bias, s)[0], 6)
    return (counts.max() / counts.mean()).item()


def test_a_skewed_router_is_evened_out() -> None:
    assert evened(0) > 2
    assert evened() < 1.1


def test_a_bias_that_moves_the_wrong_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "move_bias", lambda bias, counts, rate: move_bias(bias, counts, rate=-rate))
    with pytest.raises(AssertionError):
        test_a_skewed_router_is_evened_out()
