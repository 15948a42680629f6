"""What the panel Experts is told of a router: every number made again by plain Python from the router's logits."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.core import experts
from qkv.explore import routing
from qkv.explore.answers import answer
from qkv.explore.question import Run
from qkv.lens.routing import expert_modules

sys.path.insert(0, str(Path(__file__).parent))
from test_answers import run_of  # pyright: ignore[reportMissingImports]


def by_hand(
    logits: list[float], bias: list[float], keys: dict[str, Any]
) -> tuple[list[float], list[float], list[float]]:
    """Scores, what each group is judged by, and what is left to choose from: minus infinity in closed groups."""
    if keys["scored"] == "softmax":
        whole = sum(math.exp(x) for x in logits)
        score = [math.exp(x) / whole for x in logits]
    else:
        score = [1 / (1 + math.exp(-x)) for x in logits]
    left, size = [a + b for a, b in zip(score, bias, strict=True)], len(score) // keys["groups"]
    best = 1 if keys["group_score"] == "best" else 2
    judged = [sum(sorted(left[i : i + size])[-best:]) for i in range(0, len(score), size)]
    if keys["groups"] > 1:
        bar = sorted(judged)[-keys["open_groups"]]
        left = [x if judged[e // size] >= bar else -math.inf for e, x in enumerate(left)]
    return score, judged, left


def near(some: list[float], others: list[float]) -> bool:
    return all(a == b or math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) for a, b in zip(some, others, strict=True))


def faults(run: Run, layer: str) -> list[str]:
    """What in an answer is not what plain Python makes of the logits."""
    found = answer(run, "routes", {"layer": layer})
    keys = found.keys
    arrays: dict[str, list[Any]] = {n: x.tolist() for n, x in found.arrays.items()}
    bias, bad, count = arrays.get("bias", [0.0] * keys["experts"]), list[str](), [0] * keys["experts"]
    for t, logits in enumerate(arrays["logits"]):
        score, judged, left = by_hand(logits, bias, keys)
        took = sorted(range(len(left)), key=lambda e, left=left: -left[e])[: keys["chosen"]]
        sum_of = sum(score[e] for e in took) if keys["weights"] == "sum to one" else 1.0
        choice = [a + b for a, b in zip(score, bias, strict=True)]
        right = {"score": score, "choice": choice, "judged": judged, "left": left}
        bad += [f"{name} of {t}" for name, x in right.items() if name in arrays and not near(arrays[name][t], x)]
        bad += [f"index of {t}"] * (keys["index"][t].tolist() != took)
        weights = [score[e] / sum_of * keys["scale"] for e in took]
        bad += [f"weight of {t}"] * (not near(keys["weight"][t].tolist(), weights))
        for e in took:
            count[e] += 1
    bad += ["load"] * (keys["load"].tolist() != count)
    return bad + ["share"] * (not near(keys["share"].tolist(), [n / sum(count) for n in count]))


@pytest.mark.parametrize(("name", "layer", "told"), [
    ("demo-moe", "3", {"logits", "score"}), ("experts", "0", {"logits", "score"}),
    ("mixed", "2", {"logits", "score", "bias", "choice", "left", "judged"}),
])
def test_scores_groups_weights_and_shares_are_those_that_the_logits_give(
    name: str, layer: str, told: set[str]
) -> None:
    assert set(answer(run_of(name), "routes", {"layer": layer}).arrays) == told
    assert faults(run_of(name), layer) == []


def test_a_router_that_is_told_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("mixed")
    bias = expert_modules(run.t)["layers.2.moe"].bias
    with torch.no_grad():
        bias.neg_()  # told: another bias than the one that chose
        assert faults(run, "2")
        bias.neg_()
    monkeypatch.setattr(routing, "mask_closed_groups", lambda choice, s: experts.mask_closed_groups(-choice, s))
    assert any(one.startswith("left") for one in faults(run, "2"))
