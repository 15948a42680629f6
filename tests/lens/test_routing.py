"""Routing as a loop over tokens and experts finds it, for soft and for sigmoid routers with a bias and groups."""

import math

import pytest
import torch
from support import zoo

from qkv.errors import QkvError
from qkv.lens import routing
from qkv.lens.edge_ablation import Case
from qkv.lens.trace import Trace


@pytest.mark.parametrize("name", ["experts", "mixed"])
@torch.no_grad()
def test_every_layer_of_experts_tells_who_read_which_token(name: str) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(2, 9)
    with Trace(core, save=["routes", "*.moe.norm"]) as t:
        zoo.run(core, ids)
    found = t.routes(row=1)
    layers = [i for i, b in enumerate(core.spec.stack.blocks) if b.moe]
    assert [r.path for r in found] == [f"layers.{i}.moe" for i in layers]
    for r, i in zip(found, layers, strict=True):
        moe = core.decoder.layers[i].moe
        s, states = moe.spec, t[f"{r.path}.norm"][1]
        load = [0] * s.num_experts
        for token in range(9):
            logits = (moe.router.weight @ states[token]).tolist()
            if s.score == "softmax":
                total = sum(math.exp(x) for x in logits)
                score = [math.exp(x) / total for x in logits]
            else:
                score = [1 / (1 + math.exp(-x)) for x in logits]
            choice = [x + float(b) for x, b in zip(score, moe.bias, strict=True)] if s.balance == "bias" else score
            size = s.num_experts // s.groups
            rank = sorted(range(s.groups), key=lambda g: -sum(sorted(choice[g * size : (g + 1) * size])[-2:]))
            allowed = [e for e in range(s.num_experts) if e // size in rank[: s.topk_groups]]
            best = sorted(allowed, key=lambda e: -choice[e])[: s.top_k]
            weight = [score[e] for e in best]
            if s.weights == "sum to one":
                weight = [w / sum(weight) for w in weight]
            assert r.index[token].tolist() == best
            assert r.weight[token].tolist() == pytest.approx([w * s.scale for w in weight], abs=1e-5)
            assert r.score[token].tolist() == pytest.approx(score, abs=1e-5)
            assert r.choice[token].tolist() == pytest.approx(choice, abs=1e-5)
            for e in best:
                load[e] += 1
        assert r.load.tolist() == load
        assert sum(load) == 9 * s.top_k


@torch.no_grad()
def test_a_route_read_off_another_row_is_found_and_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    core = zoo.made(zoo.mixed())
    with Trace(core, save=["routes"]) as t:
        zoo.run(core, zoo.words(2, 9))
    assert not torch.equal(t.routes(row=0)[0].index, t.routes(row=1)[0].index)
    with monkeypatch.context() as patch:
        patch.setattr(routing.torch, "bincount", lambda index, minlength: torch.zeros(minlength))
        with pytest.raises(AssertionError):
            test_every_layer_of_experts_tells_who_read_which_token("mixed")
    with pytest.raises(QkvError, match="no experts"):
        Trace(zoo.made(zoo.gqa())).routes()
    with Trace(core) as t:
        zoo.run(core, zoo.words(2, 9))
    with pytest.raises(QkvError, match=r'save=\["routes"\]'):
        t.routes()


@torch.no_grad()
def test_tokens_of_an_expert_are_those_that_it_reads_more_than_its_share() -> None:
    core, ids = zoo.made(zoo.ALL["experts"]()), zoo.words(3, 9).tolist()
    found = routing.count_expert_tokens(core, [Case((), tuple(row), 8) for row in ids], top=99)
    reads = {}
    for row in ids:
        with Trace(core, save=["routes"]) as t:
            core(torch.tensor([row]))
        for r in t.routes():
            for token, chosen in zip(row, r.index.tolist(), strict=True):
                for e in chosen:
                    reads[r.path, e, token] = reads.get((r.path, e, token), 0) + 1
    seen = [token for row in ids for token in row]
    for one in found:
        total = sum(n for (path, _, _), n in reads.items() if path == one.path)
        for e, (share, tokens) in enumerate(zip(one.share, one.tokens, strict=True)):
            assert share == pytest.approx(sum(n for (p, i, _), n in reads.items() if (p, i) == (one.path, e)) / total)
            each = total / len(seen)
            assert {(t, n, seen.count(t)) for (p, i, t), n in reads.items() if (p, i) == (one.path, e)
                    and n / (each * seen.count(t)) > share} == set(tokens)
    with pytest.raises(QkvError, match="no text"):
        routing.count_expert_tokens(core, [])
