"""The norm lab: the task, states that grow without norms, and the rule."""

import torch

from qkv.labs import lab, norm_ablation
from qkv.labs.lab import Runs
from qkv.labs.tiny import Tiny

RATES = {f"{kind}_{rate}": 0.5 for kind in norm_ablation.KINDS for rate in ("fast", "slow")}


def word(pre, post, none, **fast):
    numbers = {**RATES, **fast, "pre": pre, "post": post, "none": none}
    return norm_ablation.judge(Runs((numbers,) * 3)).word


def test_the_second_eight_are_the_first():
    read, asked = norm_ablation.draw_batch(0)
    n = norm_ablation.LENGTH
    assert bool((asked[:, n:] == read[:, :n]).all())
    assert bool((asked[:, :n] == -100).all())
    assert bool((read[:, n + 1 :] == read[:, : n - 1]).all())


def test_states_grow_without_norms_and_not_after_post_norm():
    grown = {
        kind: norm_ablation.growth(
            Tiny(norm=kind, layers=norm_ablation.LAYERS, vocabulary=17, context=16).model(0, torch.float32), 0
        )
        for kind in norm_ablation.KINDS
    }
    after = Tiny(norm="post", layers=norm_ablation.LAYERS, vocabulary=17, context=16).model(0, torch.float32)
    with after.trace(save=[f"layers.{norm_ablation.LAYERS - 1}.resid_out"]) as t, torch.no_grad():
        after(norm_ablation.draw_batch(0)[0])
    assert torch.allclose(
        t[f"layers.{norm_ablation.LAYERS - 1}.resid_out"].norm(dim=-1), torch.tensor(32**0.5), rtol=1e-3
    )
    assert grown["none"] > 1.5


def test_the_rule():
    assert word(1.0, 1.0, 0.3) == "shown"
    assert word(1.0, 0.5, 0.5) == "true only when"
    assert word(1.0, 1.0, 1.0, pre_fast=1.0, none_fast=0.1) == "true only when"
    assert word(1.0, 1.0, 1.0) == "not shown"
    made = {**RATES, "pre": 1.0, "post": 1.0, "none": 0.1}
    assert lab.judge_runs(norm_ablation.LAB, Runs((made,) * 3), 10).word == "inconclusive"
