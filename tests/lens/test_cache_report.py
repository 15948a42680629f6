"""Bytes of the cache are those that were allocated; other attentions cost what their formulas say."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support import zoo

from qkv.core.cache import Static
from qkv.core.step import Inputs
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import cache_report
from qkv.lens.trace import Trace


@pytest.mark.parametrize("name", ["gqa", "learned", "latent", "mixed", "parallel"])
@torch.no_grad()
def test_every_step_counts_what_the_cache_really_holds(name: str) -> None:
    core, ids, cache = zoo.made(zoo.ALL[name]()), zoo.words(2, 9), Static(3)
    held: list[int] = []
    with Trace(core) as t:
        for a, b in ((0, 5), (5, 6), (6, 7), (7, 9)):
            core(ids[:, a:b], cache=cache, mode="decode" if a else "prefill")
            held.append(cache.bytes)
    found = t.cache()
    assert [s.bytes for s in found.steps] == held
    assert found.real == held[-1]
    assert [s.length for s in found.steps] == [5, 6, 7, 9]
    assert sum(s.fresh for s in found.steps) == 9
    assert sum(s.again for s in found.steps) == 5 + 6 + 7 + 9
    assert found.saved == pytest.approx(3.0)
    assert found.kinds["own"] * 2 * 9 == held[-1]


def test_other_attentions_cost_what_their_formulas_say(monkeypatch: pytest.MonkeyPatch) -> None:
    core = zoo.made(zoo.gqa())  # 3 layers, 6 heads of 32, 2 groups
    with Trace(core) as t:
        generate(core, [[1, 8]], options=DecodeOptions(2))
    layers, heads, dim = 3, 6, 32
    assert t.cache().kinds == {
        "own": 2 * 2 * dim * layers * 4, "MHA": 2 * heads * dim * layers * 4, "MQA": 2 * dim * layers * 4,
        "GQA": 2 * 3 * dim * layers * 4, "MLA": (4 * dim + dim // 2) * layers * 4,
    }
    monkeypatch.setattr(cache_report.cost, "count", lambda spec: SimpleNamespace(kv_per_token=7, memory_per_token=0))
    assert t.cache().steps[-1].bytes != t.cache().real
    big = replace(zoo.learned(), decoder=replace(zoo.learned().stack, blocks=zoo.learned().stack.blocks[:1]))
    assert set(cache_report.attention_variants(big)) == {"own", "MHA", "GQA", "MQA", "MLA"}


@torch.no_grad()
def test_a_memory_is_kept_once_and_a_plain_pass_keeps_nothing() -> None:
    core, ids, source, cache = zoo.made(zoo.seq2seq()), zoo.words(2, 3), zoo.words(2, 7), Static(2)
    with Trace(core) as t:
        memory = core.encode(source)
        for i in range(3):
            core(ids[:, i : i + 1], Inputs(memory=memory), cache=cache)
    found = t.cache()
    assert found.real == found.steps[-1].bytes + found.memory
    assert found.memory == 2 * 7 * 2 * 64 * 2 * 4
    with Trace(core) as t:
        zoo.run(core, ids)
    assert t.cache().real is None
