"""The experts lab: what each arm holds and computes, that the facts are all asked, and the rule."""

import pytest
import torch

import qkv
from qkv.cost import count
from qkv.labs import lab, moe_capacity
from qkv.labs.lab import Runs

GOOD = {
    "small": 0.1,
    "experts": 0.5,
    "learned": 0.5,
    "large": 0.8,
    "free_small": 0.4,
    "free_experts": 0.9,
    "busiest_learned": 0.2,
}


def word(**numbers):
    return moe_capacity.judge(Runs(({**GOOD, **numbers},) * 3)).word


def test_experts_hold_as_much_as_the_large_and_compute_like_the_small():
    small, experts, large = (count(moe_capacity.spec(arm)) for arm in ("small", "experts", "large"))
    router = 64 * moe_capacity.COUNT
    assert experts.active_parameters == small.parameters + router
    assert experts.parameters == large.parameters + router
    ffn = 2 * 64 * moe_capacity.HIDDEN
    assert large.parameters - small.parameters == 7 * ffn


def test_every_fact_is_asked_once_and_answered_by_the_table():
    pairs, table = moe_capacity.everything(), moe_capacity.facts(0)
    assert len({tuple(p) for p in pairs.tolist()}) == 4096
    ids, asked = moe_capacity.draw_batch(table, 1)
    assert bool((asked[:, 0] == -100).all())
    assert all(answer == table[a, b] for (a, b), answer in zip(ids.tolist(), asked[:, 1].tolist(), strict=True))


def test_the_frozen_arms_move_the_feed_forward_part_alone(monkeypatch):
    made = dict[str, tuple[qkv.Model, dict[str, torch.Tensor]]]()

    def build(spec, *, seed, whole=qkv.build):
        model = whole(spec, seed=seed)
        made[moe_capacity.ARMS[len(made)]] = model, {n: p.detach().clone() for n, p in model.core.named_parameters()}
        return model

    monkeypatch.setattr(moe_capacity.qkv, "build", build, raising=False)
    found = moe_capacity.run(0, steps=2)
    for arm, (model, before) in made.items():
        moved = {n for n, p in model.core.named_parameters() if not torch.equal(p, before[n])}
        if arm.startswith("free"):
            assert any("embed" in n for n in moved)
        else:
            assert moved
            assert all(".ffn." in n or ".moe." in n for n in moved)
        assert any(".router." in n for n in moved) == (arm in ("learned", "free_experts"))
    assert found["busiest_experts"] < 0.6


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, "shown"),
        ({"learned": 0.15}, "true only when"),
        ({"free_experts": 0.45}, "true only when"),
        ({"experts": 0.15}, "not shown"),
    ],
)
def test_the_rule(numbers, expected):
    assert word(**numbers) == expected


def test_too_few_steps_say_nothing():
    assert lab.judge_runs(moe_capacity.LAB, Runs((GOOD,) * 3), 10).word == "inconclusive"
