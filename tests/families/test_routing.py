"""Routing: the experts that our routers choose, and their weights, are those of transformers, layer by layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import oracles
from torch import Tensor

from qkv import hub
from qkv.checkpoints import model_dir
from qkv.core import experts
from qkv.families import Config

transformers = pytest.importorskip("transformers")


def mixes(family: str) -> bool:
    """Has the family a size with experts?"""
    module = model_dir.modules()[family]
    sizes = (module.spec(Config(config, size)) for size, config in module.SIZES.items())
    return any(b.moe for s in sizes for b in s.stack.blocks)


FAMILIES = [f for f in sorted(model_dir.modules()) if mixes(f) and oracles.draw(f, 0) is not None]
every = pytest.mark.parametrize("family", FAMILIES)


def recorded(oracle: Any, at: dict[str, Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
    """What transformers' routers give back: by layer, the chosen experts and their weights, both [B, T, J]."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    hooks = []
    for name, module in oracle.named_modules():
        if type(module).__name__.lower().endswith("topkrouter"):
            layer = int(name.split(".")[2])

            def hear(_: Any, __: Any, out: tuple[Tensor, ...], layer: int = layer) -> None:
                found[layer] = tuple(x.unflatten(0, at["ids"].shape) for x in (out[2], out[1]))  # type: ignore[assignment]

            hooks.append(module.register_forward_hook(hear))
    oracles.logits(oracle, at)
    for hook in hooks:
        hook.remove()
    return found


def spread(index: Tensor, weight: Tensor, count: int) -> Tensor:
    """The weight of every expert, zero where it was not chosen."""
    return torch.zeros(*index.shape[:-1], count).scatter(-1, index, weight.float())


def gaps(family: str, number: int, folder: Path) -> list[float]:
    """The largest difference of weights over all experts, for each layer with a router."""
    oracle = oracles.draw(family, number)
    oracle.save_pretrained(folder)
    oracle.set_attn_implementation("eager")
    at, model = oracles.batch(oracle, number), hub.load(folder)
    theirs = recorded(oracle, at)
    with model.trace(save=["*.moe.index", "*.moe.weight"]) as trace, torch.no_grad():
        model(at["ids"], padding=at["real"])
    ours = {i for i, b in enumerate(model.spec.stack.blocks) if b.moe}
    assert ours == set(theirs)
    assert ours
    found = []
    for layer, (index, weight) in theirs.items():
        count = model.spec.stack.blocks[layer].moe.num_experts
        mine, mine_weight = (trace[f"layers.{layer}.moe.{n}"][at["real"]] for n in ("index", "weight"))
        index, weight = index[at["real"]], weight[at["real"]]
        assert torch.equal(mine.sort(-1).values, index.sort(-1).values), f"layer {layer} chooses other experts"
        found.append(float((spread(mine, mine_weight, count) - spread(index, weight, count)).abs().max()))
    return found


@every
@pytest.mark.parametrize("number", [0, 1, 3, 5])  # among DeepSeek's are V3, V2 with groups, and V2 without
def test_chosen_experts_and_their_weights_equal_transformers(family: str, number: int, tmp_path: Path) -> None:
    assert max(gaps(family, number, tmp_path)) < 1e-4


def test_every_kind_of_router_is_among_those_drawn() -> None:
    drawn = [oracles.draw(f, n).config.to_dict() for f in FAMILIES for n in (0, 1, 3, 5)]
    ways = {(c["model_type"], c.get("topk_method"), bool(c.get("norm_topk_prob"))) for c in drawn}
    assert {way[:2] for way in ways} == {
        ("deepseek_v2", "greedy"), ("deepseek_v2", "group_limited_greedy"), ("deepseek_v3", None), ("glm4_moe", None),
        ("mixtral", None), ("qwen2_moe", None), ("qwen3_moe", None),
    }  # fmt: skip
    assert {summed for _, _, summed in ways} == {True, False}


@every
def test_a_router_that_forgets_its_scale_is_found(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = experts.route

    def wrong(*given: Any) -> tuple[Tensor, Tensor]:
        index, weight = right(*given)
        return index, weight * 1.01

    monkeypatch.setattr(experts, "route", wrong)
    with pytest.raises(AssertionError):
        test_chosen_experts_and_their_weights_equal_transformers(family, 1, tmp_path)
