"""Each number of a walk is what its own Python line gives, and the steps add up to what the model did."""

import math
import random

import pytest
import torch
from support import zoo

from qkv.core.positions import sinusoid
from qkv.errors import QkvError
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import step_by_step
from qkv.lens.step_by_step import STEPS, Strip, Walk
from qkv.lens.trace import Trace


def walked(name: str, path: str | None = None, **how: int) -> tuple[Trace, Walk]:
    core = zoo.made(zoo.ALL[name]())
    with torch.no_grad(), Trace(core, save=["walk"]) as t:
        zoo.run(core, zoo.words(2, 9))
    path = path or list(t.attentions)[-1]
    return t, t.walk(path, **{"head": 1, "query": 5, "key": 2, "row": 1, **how})


@torch.no_grad()
def evaluated(t: Trace, line: str) -> float:
    return float(eval(line, {"t": t, "core": t.core, "torch": torch, "sinusoid": sinusoid}))  # noqa: S307


def test_a_hundred_random_numbers_are_what_their_own_lines_give() -> None:
    draw, seen = random.Random(0), 0
    for name in zoo.ALL:
        t, w = walked(name)
        strips = [s for step in w.steps.values() for s in step]
        for s in draw.sample(strips, 8):
            index = [draw.randrange(n) for n in s.values.shape]
            value, line = s.number_at(*index)
            assert evaluated(t, line) == pytest.approx(value, rel=1e-5, abs=1e-6), (name, s.name, line)
            seen += 1
    assert seen >= 100


def test_a_line_that_points_elsewhere_is_found() -> None:
    t, w = walked("gqa")
    wrong = Strip("q", w["q"].line.replace("[1, 1, 5]", "[1, 1, 4]"), w["q"].values)
    value, line = wrong.number_at(3)
    assert evaluated(t, line) != pytest.approx(value, rel=1e-3)


def mistakes(w: Walk, t: Trace) -> float:
    """How far the steps are from one another, each computed the slow way from the ones before."""
    module = t.attentions[w.path]
    product = sum(a * b for a, b in zip(w["q"].values.tolist(), w["k"].values.tolist(), strict=True))
    row = torch.stack([w["score"].values[i] + w["mask"].values[i] for i in range(len(w["mask"].values))]).softmax(0)
    whole = t.get(f"{w.path}.v")[1]
    v = whole[w.head // (module.spec.heads // whole.shape[0])]  # S W
    z = sum(p * one for p, one in zip(row, v, strict=True))
    joined, score, cap = module.out(w["joined"].values), product * module.scale, module.spec.cap
    score = cap * math.tanh(score / cap) if cap else score
    with torch.no_grad():
        gaps = [
            w["sum"].values - product, w["running"].values[-1] - product,
            w["scaled sum"].values - product * module.scale,
            w["score"].values[w.key] - score, row - w["pattern"].values,
            w["weight"].values - row[w.key], w["given"].values - row[w.key] * v[w.key], z - w["z"].values,
            w["all heads"].values[w.head] - w["z"].values, joined - w["out"].values,
            w["head weights"].values[w.head] - w["weight"].values,
        ]
    return max(float(torch.as_tensor(g).abs().max()) for g in gaps)


@pytest.mark.parametrize("name", zoo.ALL)
def test_the_steps_follow_from_one_another_in_every_kind_of_model(name: str) -> None:
    t, w = walked(name)
    assert tuple(w.steps) == STEPS
    assert mistakes(w, t) < 2e-5
    for path in t.attentions:
        one = t.walk(path, head=0, query=3, key=0, row=1)
        assert mistakes(one, t) < 2e-5, path


def test_a_head_that_reads_anothers_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    t, w = walked("gqa", head=4)
    assert mistakes(w, t) < 2e-5
    monkeypatch.setattr(step_by_step, "group_of_head", lambda module, head: 0)
    assert mistakes(t.walk(w.path, head=4, query=5, key=2, row=1), t) > 1e-2


def test_in_half_precision_the_scores_are_still_those_of_the_pattern() -> None:
    core = zoo.made(zoo.gqa()).bfloat16()
    with torch.no_grad(), Trace(core, save=["walk"]) as t:
        zoo.run(core, zoo.words(2, 9))
    w = t.walk("layers.2.attn", head=3, query=7, key=2)
    row = (w["score"].values + w["mask"].values).softmax(0)
    assert (row - w["pattern"].values).abs().max() < 1e-6
    for name in ("product", "score", "weight", "given"):
        value, line = w[name].number_at(*[0] * w[name].values.dim())
        assert evaluated(t, line) == value


def test_the_first_and_the_last_step_are_the_text_and_the_next_word() -> None:
    core = zoo.made(zoo.learned())
    with Trace(core, save=["walk"]) as t:
        written = generate(core, [[1, 8, 9]], options=DecodeOptions(4))[0].tokens
    w = t.walk("layers.2.attn", head=2, query=-1, key=1)
    assert w["ids"].values.tolist() == [1, 8, 9, *written[:3]]
    assert w["row"].values.equal(core.embed.weight[written[2]])
    assert (w["row"].values + w["position"].values - w["embed"].values).abs().max() < 1e-6
    assert int(w["next ids"].values[0]) == written[3]
    assert w["chances"].values[0] == pytest.approx(float(t["logits"][0, -1].softmax(-1).max()), rel=1e-5)
    assert (w["before"].values + w["said"].values - w["after"].values).abs().max() < 1e-5
    assert w["read spread"].values == pytest.approx(float(w["read"].values.std(correction=0)))
    assert w["q"].whole == (1, 3, 6, 16)
    early = t.walk("layers.0.attn", query=1, key=3)
    assert early.reason == "future"
    assert early["weight"].values == 0
    assert w.reason == "seen"
    assert len(early["chances"].values) == 10, "a guess inside the prompt is shown as well"


def test_mistakes_are_named() -> None:
    t, w = walked("seq2seq", "decoder.layers.1.cross")
    assert w.key == 2
    with pytest.raises(QkvError, match=r"decoder\.layers\.1\.cross"):
        t.walk("decoder.layers.1.cros")
    with pytest.raises(QkvError, match="heads 0 to 1"):
        t.walk("decoder.layers.1.cross", head=2)
    with pytest.raises(QkvError, match="position 7"):
        t.walk("decoder.layers.1.cross", key=7)
    with pytest.raises(QkvError, match="has no 'scores'"):
        w["scores"]
    with torch.no_grad(), Trace(t.core, save=["lens"]) as bare:
        zoo.run(t.core, zoo.words(2, 9))
    with pytest.raises(QkvError, match=r'save=\["walk"\]'):
        bare.walk("decoder.layers.1.cross")
