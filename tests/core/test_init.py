"""First weights: the spread that the papers say, the same for the same seed, smaller where a matrix writes."""

import math
from dataclasses import replace

import pytest
import torch
from support import zoo

from qkv.core import init
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.spec import Init, Spec


def fresh(spec: Spec, seed: int = 0) -> dict[str, torch.Tensor]:
    core = Transformer(spec)
    with torch.no_grad():
        for p in core.parameters():
            p.fill_(float("nan"))
    initialise(core, seed)
    return dict(core.named_parameters())


@pytest.mark.parametrize("name", zoo.ALL)
def test_everything_is_drawn_and_biases_and_norms_are_plain(name: str) -> None:
    for path, p in fresh(zoo.ALL[name]()).items():
        assert p.isfinite().all(), path
        if p.dim() == 1:
            around = 0.0 if path.endswith("bias") or name == "capped" else 1.0
            assert torch.equal(p, torch.full_like(p, around)), path


def test_xavier_is_uniform_within_its_bound() -> None:
    weights = fresh(zoo.seq2seq())
    for path, p in weights.items():
        if p.dim() == 2 and "embed" not in path:
            bound = math.sqrt(6 / sum(p.shape))
            assert 0.95 * bound < p.abs().max() <= bound, path
            assert p.std().item() == pytest.approx(bound / 3**0.5, rel=0.06)
    assert weights["embed.weight"].std().item() == pytest.approx(48**-0.5, rel=0.06)


def test_normal_has_its_std_and_depth_scales_what_writes_to_the_residual() -> None:
    weights = fresh(replace(zoo.learned(), init=Init("normal", 0.05, depth_scaled=True)))
    for path, p in weights.items():
        if p.dim() == 2:
            writes = path.endswith((".out.weight", ".down.weight"))
            assert p.std().item() == pytest.approx(0.05 / math.sqrt(6) if writes else 0.05, rel=0.06), path


def test_a_seed_is_a_model() -> None:
    a, b, c = (fresh(zoo.gqa(), seed) for seed in (1, 1, 2))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["embed.weight"], c["embed.weight"])


def test_drawing_leaves_the_global_generator_alone() -> None:
    core = Transformer(zoo.gqa())
    state = torch.get_rng_state()
    initialise(core, 4)
    assert torch.equal(state, torch.get_rng_state())


def test_a_bound_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = init.linear
    monkeypatch.setattr(init, "linear", lambda w, kind, std, g: right(w, kind, std * 1.2, g) or w.data.mul_(0.8))
    with pytest.raises(AssertionError):
        test_xavier_is_uniform_within_its_bound()
