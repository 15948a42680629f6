"""Penalties, bias and least lengths against transformers' own and a slow loop, alone, in company and with beams."""

import functools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from qkv import sampling
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation.beam import Search, beam
from qkv.generation.engine import Engine, generate
from qkv.generation.sequence import DecodeOptions
from qkv.sampling import Adjustments, Sampling, adjust
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table

V = 17
PROMPTS = [[5, 9, 5, 11], [7], [3, 4, 8, 3, 4, 2, 3], [1, 2]]
EOS, START = (0, 6), (1,)
HOW = {
    "bias": {"logit_bias": ((3, 2.5), (0, -4.0), (9, 1.0))},
    "repetition": {"repetition_penalty": 1.7},
    "reward": {"repetition_penalty": 0.6},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.9},
    "one": {"no_repeat_ngram": 1, "min_new_tokens": 1},
    "two": {"no_repeat_ngram": 2},
    "three": {"no_repeat_ngram": 3},
    "long": {"min_new_tokens": 5},
    "all": {"logit_bias": ((3, 2.5),), "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3,
            "no_repeat_ngram": 2, "min_new_tokens": 3},
}


def plainly(scores: torch.Tensor, how: Adjustments, text: list[int], before: int, ends=EOS) -> torch.Tensor:
    """One row [V] by transformers' processors, in their order, and OpenAI's two penalties by their formula."""
    ids, x = torch.tensor([text], dtype=torch.long), scores[None].clone()
    if how.logit_bias:
        x = hf.SequenceBiasLogitsProcessor([[[token], value] for token, value in how.logit_bias])(ids, x)
    if how.repetition_penalty != 1:
        x = hf.RepetitionPenaltyLogitsProcessor(how.repetition_penalty)(ids, x)
    for token in set(text[before:]):
        x[0, token] -= how.presence_penalty + how.frequency_penalty * text[before:].count(token)
    if how.no_repeat_ngram:
        x = hf.NoRepeatNGramLogitsProcessor(how.no_repeat_ngram)(ids, x)
    if how.min_new_tokens:
        x = hf.MinNewTokensLengthLogitsProcessor(before, how.min_new_tokens, list(ends))(ids, x)
    return x[0]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(0, 9)), min_size=1,
                max_size=4),
       st.sampled_from(sorted(HOW)), st.integers(0, 999))
def test_each_adjustment_equals_transformers_own(rows, name, seed):
    how, size = Adjustments(**HOW[name]), max(len(text) for text, _ in rows)
    logits = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed)) * 3
    padded = torch.tensor([[V] * (size - len(text)) + text for text, _ in rows])
    written = torch.tensor([min(new, len(text)) for text, new in rows])
    found = adjust(logits, how, padded, written, torch.tensor([EOS] * len(rows)))
    for (text, _), row, new, got in zip(rows, logits, written.tolist(), found, strict=True):
        assert torch.allclose(got, plainly(row, how, text, len(text) - new), atol=1e-6)


def spec(kind: str) -> Spec:
    if kind == "decoder":
        attn = Attention(2, 1, 16, Mask("causal"), rotary=Rotary(16))
        block = Block(attn, Ffn(48, "silu", gated=True), norm_in=Norm("rms", 1e-6))
        return Spec(V, Stack(32, (block,) * 2, None, final_norm=Norm("rms")), head=Head("untied"),
                    init=Init("normal", 0.25))  # fmt: skip
    n, ff, t = Norm("layer"), Ffn(48, "relu", bias=True), Table("sinusoid", 64)
    enc = Block(Attention(2, 2, 16, Mask("full"), True, True), ff, norm_sum=n)
    cross = Attention(2, 2, 16, Mask("memory"), True, True)
    dec = Block(Attention(2, 2, 16, Mask("causal"), True, True), ff, cross=cross, norm_sum=n)
    return Spec(V, Stack(32, (dec,) * 2, t), Stack(32, (enc,) * 2, t), Head(), init=Init("normal", 0.12))


@functools.cache
def model(kind: str, seed: int = 0) -> Transformer:
    core = Transformer(spec(kind))
    initialise(core, seed)
    return core.requires_grad_(False).double()


def options_of(kind: str, **more: object) -> DecodeOptions:
    start = {"start": START, "continues": "start"} if kind == "translator" else {}
    return DecodeOptions(**{"max_new_tokens": 12, "eos": EOS, **start, **more})


def followers(core: Transformer, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """The logits [V] of what follows, everything read again."""
    if core.spec.encoder:
        return core(torch.tensor([[*START, *tokens]]), Inputs(source=torch.tensor([prompt]))).logits[0, -1]
    return core(torch.tensor([[*prompt, *tokens]])).logits[0, -1]


def write_slowly(core, prompt, how: Sampling, seed: int, forbid: tuple[int, ...]) -> tuple[list[int], list[float]]:
    before = list(START) if core.spec.encoder else list(prompt)
    tokens, logprobs = [], []
    while len(tokens) < 12 and not set(tokens) & set(EOS):
        logits = followers(core, prompt, tokens)
        x = plainly(logits, how, [*before, *tokens], len(before))
        x[list(forbid)] = -math.inf
        token = int(x.argmax())
        if how.temperature:
            token = int(sampling.draw(sampling.distribution(x[None], how), [seed], [len(tokens)]))
        tokens.append(token)
        logprobs.append(float(logits.log_softmax(-1)[token]))
    return tokens, logprobs


@pytest.mark.parametrize("kind", ["decoder", "translator"])
@pytest.mark.parametrize("name", HOW)
def test_a_batch_writes_what_a_slow_loop_writes(kind, name):
    core, changed = model(kind), 0
    for temperature in (0.0, 1.3):
        how = Sampling(temperature, top_k=9, seed=4, **HOW[name])
        forbid = (2,)
        rows = generate(core, PROMPTS, sampling=how, options=options_of(kind, forbid=forbid))
        plain = generate(core, PROMPTS, sampling=Sampling(temperature, top_k=9, seed=4),
                         options=options_of(kind, forbid=forbid))
        seeds = sampling.seeds(4, PROMPTS) if temperature else [0] * 4
        for prompt, row, seed in zip(PROMPTS, rows, seeds, strict=True):
            tokens, logprobs = write_slowly(core, prompt, how, seed, forbid)
            assert row.tokens == tokens
            assert row.logprobs == pytest.approx(logprobs, abs=1e-9), "the model's own, not the adjusted ones"
        changed += [r.tokens for r in rows] != [r.tokens for r in plain]
    assert changed, "the penalty changes nothing here: a poor test"


@pytest.mark.parametrize("kind", ["decoder", "translator"])
def test_the_engine_writes_the_same_beside_others_that_choose_otherwise(kind):
    core, engine = model(kind), Engine(model(kind))
    asked = [Sampling(0.9 * (n % 2), seed=4, **HOW[name]) for n, name in enumerate(HOW)] + [Sampling()]
    handles = [engine.submit(PROMPTS[2], options_of(kind), sampling=how) for how in asked]
    for how, handle in zip(asked, handles, strict=True):
        seed = sampling.seeds(4, [PROMPTS[2]])[0]
        assert handle.result().tokens == write_slowly(core, PROMPTS[2], how, seed, ())[0]


def search_slowly(core, prompt, s: Search, longest: int) -> list[tuple[float, list[int]]]:
    """Beams that are ranked by adjusted log probabilities, as transformers ranks them."""
    before = list(START) if core.spec.encoder else list(prompt)
    live, ended = [(0.0, [])], []
    for n in range(1, longest + 1):
        grown = []
        for total, tokens in live:
            logprobs = plainly(followers(core, prompt, tokens).log_softmax(-1), s, [*before, *tokens], len(before))
            grown += [(total + p, [*tokens, t]) for t, p in enumerate(logprobs.tolist()) if p > -math.inf]
        grown.sort(key=lambda c: -c[0])
        ended += [(c[0] / s.divisor(n), c[1]) for c in grown[: s.beams] if c[1][-1] in EOS]
        ended = sorted(ended, key=lambda c: -c[0])[: s.beams]
        live = [c for c in grown[: s.beams * 3] if c[1][-1] not in EOS][: s.beams]
        if len(ended) >= s.beams or not live:
            break
    rest = [(total / s.divisor(len(tokens)), tokens) for total, tokens in live]
    return (ended if len(ended) >= s.nbest else ended + rest)[: s.nbest]


@pytest.mark.parametrize("kind", ["decoder", "translator"])
@pytest.mark.parametrize("name", HOW)
def test_beams_equal_a_slow_search(kind, name):
    core = model(kind, 1)
    s = Search(3, 2, 1.0, "power", "first", **HOW[name])
    found = beam(core, PROMPTS, search=s, options=options_of(kind, max_new_tokens=8))
    engine = Engine(core)
    handles = [engine.submit(p, options_of(kind, max_new_tokens=8), search=s) for p in PROMPTS]
    for prompt, hypotheses, handle in zip(PROMPTS, found, handles, strict=True):
        expected = search_slowly(core, prompt, s, 8)
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-9)
        best = hypotheses[0]
        own = [float(followers(core, prompt, best.tokens[:n]).log_softmax(-1)[t]) for n, t in enumerate(best.tokens)]
        assert best.logprobs == pytest.approx(own, abs=1e-9), "the model's own, not the adjusted ones"
        handle.result()
        assert [h.tokens for h in handle.hypotheses] == [h.tokens for h in hypotheses]


def test_a_penalty_of_nothing_changes_not_a_bit():
    core = model("decoder").float()
    off = Sampling(0.8, seed=3)
    on = replace(off, logit_bias=((3, 0.0),))
    assert on.adjusts
    assert not off.adjusts
    a, b = (generate(core, PROMPTS, sampling=how, options=options_of("decoder")) for how in (off, on))
    assert [(r.tokens, r.logprobs) for r in a] == [(r.tokens, r.logprobs) for r in b]
    model.cache_clear()


def test_a_row_that_may_say_nothing_more_fails_and_its_neighbours_go_on():
    core, engine = model("decoder"), Engine(model("decoder"))
    how = Sampling(no_repeat_ngram=1)
    stuck = engine.submit([5], options_of("decoder", max_new_tokens=40, eos=()), sampling=how)
    other = engine.submit([7], options_of("decoder", max_new_tokens=9, eos=()), sampling=how)
    with pytest.raises(QkvError) as caught:
        stuck.result()
    assert caught.value.code == "no-token"
    assert len(set(other.result().tokens) - {7}) == 9
    with pytest.raises(QkvError) as caught:
        generate(core, [[5]], sampling=how, options=options_of("decoder", max_new_tokens=40, eos=()))
    assert caught.value.code == "no-token"
    assert len(stuck.sequence.tokens) == V - 1, "what was written is there"


@pytest.mark.parametrize(("given", "code"), [
    ({"repetition_penalty": 0.0}, "repetition-penalty"), ({"repetition_penalty": math.inf}, "argument"),
    ({"presence_penalty": math.nan}, "argument"), ({"frequency_penalty": math.inf}, "argument"),
    ({"logit_bias": ((3, -math.inf),)}, "argument"), ({"no_repeat_ngram": -1}, "negative"),
    ({"min_new_tokens": -2}, "negative"),
])  # fmt: skip
def test_values_that_cannot_be_are_named(given, code):
    for made in (Sampling, Search):
        with pytest.raises(QkvError) as caught:
            made(**given)
        assert caught.value.code == code


def diverse_slowly(core, prompt, s: Search, longest: int) -> list[list[tuple[float, list[int]]]]:
    """Every group's hypotheses, best first: Vijayakumar et al. 2016, the penalty part of the sum as in fairseq."""
    live, ended = [[(0.0, [])] for _ in range(s.groups)], [[] for _ in range(s.groups)]
    done = [False] * s.groups
    for n in range(1, longest + 1):
        said: list[int] = []
        for g in range(s.groups):
            if done[g]:
                continue
            grown = []
            for total, tokens in live[g]:
                logprobs = followers(core, prompt, tokens).log_softmax(-1).tolist()
                grown += [(total + p - s.diversity_penalty * said.count(t), [*tokens, t])
                          for t, p in enumerate(logprobs)]
            grown.sort(key=lambda c: -c[0])
            ended[g] += [(c[0] / s.divisor(n), c[1]) for c in grown[: s.width] if c[1][-1] in EOS]
            ended[g] = sorted(ended[g], key=lambda c: -c[0])[: s.width]
            live[g] = [c for c in grown if c[1][-1] not in EOS][: s.width]
            said += [c[1][-1] for c in live[g]]
            done[g] = len(ended[g]) >= s.width
    return [sorted(e + [(c[0] / s.divisor(len(c[1])), c[1]) for c in w if not d][: s.width - len(e)],
                   key=lambda c: (c[1][-1] not in EOS, -c[0])) for e, w, d in zip(ended, live, done, strict=True)]


@pytest.mark.parametrize("kind", ["decoder", "translator"])
@pytest.mark.parametrize(("beams", "groups"), [(4, 2), (6, 3), (3, 3)])
def test_diverse_beams_equal_a_slow_search_group_by_group(kind, beams, groups):
    core, s = model(kind, 2), Search(beams, beams, 1.0, "power", "first", groups=groups, diversity_penalty=0.7)
    options = options_of(kind, max_new_tokens=7)
    found = beam(core, PROMPTS, search=s, options=options)
    plain = beam(core, PROMPTS, search=Search(beams, beams, 1.0, "power", "first"), options=options)
    assert found != plain
    for prompt, hypotheses in zip(PROMPTS, found, strict=True):
        each = diverse_slowly(core, prompt, s, 7)
        ranks = [sorted((one[k] for one in each), key=lambda c: -c[0]) for k in range(s.width)]
        ordered = [c for rank in ranks for c in rank]
        expected = [c for n, c in enumerate(ordered) if c[1] not in [other for _, other in ordered[:n]]]
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-9)


@pytest.mark.parametrize("given", [{"groups": 3}, {"groups": 0}, {"groups": 2}, {"diversity_penalty": 1.0}])
def test_groups_that_cannot_be_are_named(given):
    with pytest.raises(QkvError) as caught:
        Search(4, **given)
    assert caught.value.code == "groups"
    with pytest.raises(QkvError) as caught:
        Search(4, groups=2, diversity_penalty=-1.0)
    assert caught.value.code == "diversity-penalty"
    with pytest.raises(QkvError) as caught:
        Engine(model("decoder")).submit([5], options_of("decoder"), search=Search(4, groups=2, diversity_penalty=1.0))
    assert caught.value.code == "groups"
