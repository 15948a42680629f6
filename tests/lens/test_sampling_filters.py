"""Each filter's distribution equals a loop over the sorted vocabulary."""

import math
import random

import pytest
import torch
from support import zoo

from qkv.errors import QkvError
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import sampling_filters
from qkv.lens.trace import Trace
from qkv.sampling import Sampling


def slow(logits: list[float], temperature: float, k: int | None, p: float | None, m: float | None) -> list[float]:
    """The same by hand, in Python floats, filter after filter."""
    top = max(logits)
    weight = [math.exp((x - top) / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    keep = set(order[:k] if k else order)
    total = sum(weight[i] for i in keep)
    chance = {i: weight[i] / total for i in keep}
    if p is not None:
        heap, some = 0.0, set()
        for i in (i for i in order if i in keep):
            if heap >= p:
                break
            some.add(i)
            heap += chance[i]
        keep = some
    if m is not None:
        best = max(chance[i] for i in keep)
        keep = {i for i in keep if chance[i] >= m * best}
    total = sum(chance[i] for i in keep)
    return [chance[i] / total if i in keep else 0.0 for i in range(len(logits))]


@pytest.mark.parametrize("seed", range(5))
def test_every_stage_is_the_distribution_so_far(seed: int) -> None:
    draw = random.Random(seed)
    logits = [draw.gauss(0, 3) for _ in range(200)]
    how = Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05)
    found = sampling_filters.apply_filters(torch.tensor(logits), how)
    assert [s.name for s in found] == ["model", "temperature 0.7", "top_k 40", "top_p 0.9", "min_p 0.05"]
    for stage, filters in zip(found, [(1.0, None, None, None), (0.7, None, None, None), (0.7, 40, None, None),
                                      (0.7, 40, 0.9, None), (0.7, 40, 0.9, 0.05)], strict=True):
        wanted = slow(logits, *filters)
        assert stage.chances.tolist() == pytest.approx(wanted, abs=1e-6)
        assert stage.kept == sum(x > 0 for x in wanted)
        assert stage.entropy == pytest.approx(-sum(x * math.log(x) for x in wanted if x), abs=1e-4)
    lost = sum(a for a, b in zip(slow(logits, 0.7, None, None, None), slow(logits, 0.7, 40, None, None), strict=True)
               if not b)
    assert found[2].gone == pytest.approx(lost, abs=1e-5)
    ids, chances = found[-1].top_tokens(300)
    assert ids == sorted(range(200), key=lambda i: -logits[i])[: found[-1].kept]
    assert chances == sorted(chances, reverse=True)


def test_filters_that_are_off_are_hidden_and_temperature_zero_is_certain() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])
    assert [s.name for s in sampling_filters.apply_filters(logits, Sampling(temperature=1.0))] == ["model"]
    sure = sampling_filters.apply_filters(logits, Sampling())[-1]
    assert (sure.name, sure.kept, sure.entropy) == ("temperature 0", 1, 0.0)
    assert sure.chances.tolist() == [0.0, 1.0, 0.0]


def test_filters_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sampling_filters.distribution

    def wrong(logits: torch.Tensor, how: Sampling) -> torch.Tensor:
        hot = how if how.top_p is None else Sampling(1.0, how.top_k, how.top_p)
        return right(logits, hot)

    monkeypatch.setattr(sampling_filters, "distribution", wrong)
    with pytest.raises(AssertionError):
        test_every_stage_is_the_distribution_so_far(0)


def test_a_run_offers_only_the_words_that_it_asked_for() -> None:
    core = zoo.made(zoo.gqa())
    with Trace(core, save=["choices"]) as t:
        written = generate(core, [[1, 8, 9]], options=DecodeOptions(3))[0].tokens
    assert [t.choices(i)[0].top_tokens(1)[0][0] for i in (2, 3, 4)] == written
    assert t.choices()[0].top_tokens(1)[0][0] == written[-1]
    with pytest.raises(QkvError, match="generation asks from 2 on"):
        t.choices(0)
    with Trace(core, save=["choices"]) as t:
        ways = [generate(core, [prompt], options=DecodeOptions(3))[0].tokens for prompt in ([1, 8, 9], [5, 2])]
    assert [[t.choices(i, run=run)[0].top_tokens(1)[0][0] for i in range(-3, 0)] for run in (0, 1)] == ways
    with Trace(core) as t:
        generate(core, [[1, 8, 9]], options=DecodeOptions(2))
    with pytest.raises(QkvError, match=r'save=\["choices"\]'):
        t.choices()
