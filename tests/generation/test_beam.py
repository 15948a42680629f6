"""Beam search against a slow one, written with loops and no cache."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from qkv.core.cache import Static
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation.beam import BeamSearch, Search, beam, place_children
from qkv.generation.decoder import Decoder, Ensemble
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table

PROMPTS = [[5, 9, 11], [7], [3, 4, 8, 12, 13, 2, 19], [1, 2]]
EOS = (0, 6)
START = (1,)


def spec(kind: str, vocabulary: int) -> Spec:
    if kind == "decoder":
        attn = Attention(2, 1, 16, Mask("causal"), rotary=Rotary(16))
        block = Block(attn, Ffn(48, "silu", gated=True), norm_in=Norm("rms", 1e-6))
        return Spec(vocabulary, Stack(32, (block,) * 2, None, final_norm=Norm("rms")), head=Head("untied"),
                    init=Init("normal", 0.25))  # fmt: skip
    n, ff = Norm("layer"), Ffn(48, "relu", bias=True)
    enc = Block(Attention(2, 2, 16, Mask("full"), True, True), ff, norm_sum=n)
    cross = Attention(2, 2, 16, Mask("memory"), True, True)
    dec = Block(Attention(2, 2, 16, Mask("causal"), True, True), ff, cross=cross, norm_sum=n)
    t = Table("sinusoid", 64)
    return Spec(vocabulary, Stack(32, (dec,) * 2, t), Stack(32, (enc,) * 2, t), Head(), init=Init("normal", 0.25))


@functools.cache
def model(kind: str, seed: int, vocabulary: int = 23, dtype: torch.dtype = torch.float32) -> Transformer:
    core = Transformer(spec(kind, vocabulary))
    initialise(core, seed)
    return core.requires_grad_(False).to(dtype)


@functools.cache
def followers(core: Transformer | tuple[Transformer, ...], prompt: tuple[int, ...], tokens: tuple[int, ...]):
    """Log probabilities of what follows, everything read again alone; of several cores that of their mean."""
    if isinstance(core, tuple):
        each = [followers(one, prompt, tokens) for one in core]
        return [math.log(sum(map(math.exp, told)) / len(core)) for told in zip(*each, strict=True)]
    if core.spec.encoder:
        source, ids = torch.tensor([prompt]), torch.tensor([[*START, *tokens]])
        memory = core.encode(source)
        return core(ids, Inputs(memory=memory)).logits[0, -1].log_softmax(-1).tolist()
    ids = torch.tensor([[*prompt, *tokens]])
    return core(ids).logits[0, -1].log_softmax(-1).tolist()


def divisor(n: int, s: Search) -> float:
    return ((5 + n) / 6) ** s.length_penalty if s.penalty == "gnmt" else n**s.length_penalty


def over(ended, live, n: int, longest: int, s: Search) -> bool:
    if n == longest or not live:
        return True
    if s.stop == "first":
        return len(ended) >= s.beams
    if s.stop == "never" or len(ended) < (s.beams if s.stop == "settled" else s.nbest):
        return False
    lengths = [n] if s.stop in ("heuristic", "settled") else range(n + 1, longest + 1)
    return ended[s.nbest - 1][0] >= max(live[0][0] / divisor(m, s) for m in lengths)


def slowly(core, prompt, s: Search, longest: int, options: DecodeOptions, eos=EOS):
    """One source: (score, tokens, sum), best first."""
    forbid = options.forbid
    live, ended = [(0.0, ())], []
    for n in range(1, longest + 1):
        grown = []
        for total, tokens in live:
            logprobs = followers(core, tuple(prompt), tokens)
            allowed = sum(math.exp(p) for token, p in enumerate(logprobs) if token not in forbid)
            lost = math.log(allowed) if options.renormalize else 0.0
            for token, logprob in enumerate(logprobs):
                if token not in forbid:
                    grown.append((total + logprob - lost, (*tokens, token)))
        grown.sort(key=lambda c: -c[0])
        for total, tokens in grown[: s.beams]:
            if tokens[-1] in eos:
                ended.append((total / divisor(n, s), tokens, total))
        ended = sorted(ended, key=lambda c: -c[0])[: s.beams]
        live = [c for c in grown[: s.beams * (1 + len(eos))] if c[1][-1] not in eos][: s.beams]
        if over(ended, live, n, longest, s):
            break
    rest = [(total / divisor(len(tokens), s), tokens, total) for total, tokens in live]
    return (ended + rest)[: s.nbest] if len(ended) < s.nbest else ended[: s.nbest]


def compare(core, s: Search, limits: DecodeOptions = DecodeOptions(9), eos=EOS, ensemble=()):  # noqa: B008  frozen
    options = replace(limits, eos=eos, start=START if core.spec.encoder else ())
    found = beam(core, PROMPTS, search=s, options=options, ensemble=ensemble)
    for prompt, hypotheses in zip(PROMPTS, found, strict=True):
        longest = limits.max_new_tokens or 2 * len(prompt) + 50
        expected = slowly((core, *ensemble) if ensemble else core, prompt, s, longest, limits, eos)
        assert [tuple(h.tokens) for h in hypotheses] == [e[1] for e in expected]
        for h, (score, tokens, total) in zip(hypotheses, expected, strict=True):
            near = 1e-5 * max(1.0, -score) if core.embed.weight.dtype == torch.float32 else 1e-9
            assert h.score == pytest.approx(score, abs=near)
            assert sum(h.logprobs) == pytest.approx(total, abs=max(near, 1e-9 * -total))
            assert len(h.logprobs) == len(h.tokens)
            assert h.finish_reason == ("stop" if tokens[-1] in eos else "length")
    return found


@pytest.mark.parametrize("stop", ["first", "settled", "bound", "heuristic", "never"])
@pytest.mark.parametrize("beams", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["decoder", "translator"])
def test_beams_equal_a_brute_force_search(kind, beams, stop):
    for seed, (penalty, a) in enumerate(
        [("gnmt", 0.6), ("power", 1.0), ("gnmt", 0.0), ("power", -0.5), ("power", 2.0)]
    ):
        s = Search(beams, min(beams, 1 + seed % 3), a, penalty, stop)
        compare(model(kind, seed, dtype=torch.float64), s)
        compare(model(kind, seed), s)


def test_the_trials_hold_both_ends_and_sources_that_leave_at_other_times():
    found = [h for seed in range(5) for kind in ("decoder", "translator")
             for hs in compare(model(kind, seed), Search(3, 3)) for h in hs]  # fmt: skip
    assert {h.finish_reason for h in found} == {"stop", "length"}
    assert len({len(h.tokens) for h in found}) > 5


@pytest.mark.parametrize("kind", ["decoder", "translator"])
def test_one_beam_is_greedy(kind):
    core, options = model(kind, 3), DecodeOptions(20, eos=EOS, start=START if kind == "translator" else ())
    found = beam(core, PROMPTS, search=Search(1), options=options)
    greedy = generate(core, PROMPTS, options=options)
    for (h,), row in zip(found, greedy, strict=True):
        assert h.tokens == row.tokens
        assert h.logprobs == pytest.approx(row.logprobs, abs=1e-5)
        assert h.finish_reason == row.finish_reason


def test_a_wide_beam_finds_the_best_of_all_sentences():
    core, s = model("translator", 1, 5), Search(125, 3, 0.0, stop="bound")
    found = beam(core, [[3, 2]], search=s, options=DecodeOptions(4, eos=(0,), start=START))[0]
    sentences: list[tuple[float, tuple[int, ...]]] = []

    def walk(total: float, tokens: tuple[int, ...]) -> None:
        for token, logprob in enumerate(followers(core, (3, 2), tokens)):
            if token == 0:
                sentences.append((total + logprob, (*tokens, 0)))
            elif len(tokens) < 3:
                walk(total + logprob, (*tokens, token))

    walk(0.0, ())
    best = sorted(sentences, reverse=True)[:3]
    assert [tuple(h.tokens) for h in found] == [tokens for _, tokens in best]
    assert [h.score for h in found] == pytest.approx([total for total, _ in best], abs=1e-5)


def test_more_beams_than_words_and_forbidden_ids():
    compare(model("translator", 2, 23), Search(4, 4), DecodeOptions(6, forbid=(0, 3, 9)))
    renormalized = DecodeOptions(6, forbid=(0, 3, 9), renormalize=True)
    compare(model("translator", 2, 23), Search(4, 4), renormalized)
    compare(model("decoder", 2, 23), Search(4, 4), renormalized)
    core = model("decoder", 2, 23)
    compare(core, Search(23, 5), DecodeOptions(3))
    compare(core, Search(30, 30, stop="bound"), DecodeOptions(2))
    compare(core, Search(4, 4), DecodeOptions(5), eos=())


def test_each_source_has_its_own_limit():
    core = model("translator", 4)
    found = beam(core, PROMPTS, options=DecodeOptions(eos=(), start=START))
    assert [len(h[0].tokens) for h in found] == [56, 52, 64, 54]  # the table holds 64
    assert beam(core, [], options=DecodeOptions(start=START)) == []


def test_a_long_forced_beginning_is_read_first():
    core = model("translator", 1)
    long = beam(core, PROMPTS, search=Search(3, 3), options=DecodeOptions(6, eos=EOS, start=(1, 8, 4)))
    for prompt, hypotheses in zip(PROMPTS, long, strict=True):
        for h in hypotheses:
            told = [followers(core, tuple(prompt), (8, 4, *h.tokens[:i]))[t] for i, t in enumerate(h.tokens)]
            assert h.logprobs == pytest.approx(told, abs=1e-5)


@pytest.mark.parametrize("kind", ["decoder", "translator"])
@pytest.mark.parametrize("seeds", [(1,), (1, 2)])
def test_an_ensemble_searches_by_the_mean_of_its_probabilities(kind, seeds):
    beside = [model(kind, seed, dtype=torch.float64) for seed in seeds]
    for s in (Search(3, 3), Search(5, 2, 1.0, "power", "bound")):
        together = compare(model(kind, 0, dtype=torch.float64), s, ensemble=beside)
        options = DecodeOptions(9, eos=EOS, start=START if kind == "translator" else ())
        alone = beam(model(kind, 0, dtype=torch.float64), PROMPTS, search=s, options=options)
        assert [[h.tokens for h in hs] for hs in together] != [[h.tokens for h in hs] for hs in alone]


def test_an_ensemble_of_narrow_numbers_means_in_wide_ones():
    logits = [torch.randn(4, 23, generator=torch.Generator().manual_seed(n)).bfloat16() for n in range(3)]
    found = Ensemble([Decoder(model("decoder", 0), DecodeOptions())]).mean(logits)
    slow = sum(one.double().exp() / one.double().exp().sum(-1, keepdim=True) for one in logits) / 3
    assert torch.allclose(found.double().softmax(-1), slow, rtol=1e-5)


def test_an_ensemble_writes_no_more_than_its_shortest_context_holds():
    short = Transformer(replace(spec("translator", 23), decoder=replace(spec("translator", 23).decoder,
                                                                         positions=Table("sinusoid", 8))))  # fmt: skip
    initialise(short, 1)
    core = model("translator", 0)
    for one, other in ((core, short), (short, core)):
        found = beam(one, PROMPTS, options=DecodeOptions(eos=(), start=START), ensemble=[other])
        assert {len(h[0].tokens) for h in found} == {8}


@pytest.mark.parametrize("wrong", [
    lambda self, each: sum(each) / len(each),
    lambda self, each: each[0],
])  # fmt: skip
def test_an_ensemble_with_another_mean_is_noticed(wrong, monkeypatch):
    monkeypatch.setattr(Ensemble, "mean", wrong)
    with pytest.raises(AssertionError):
        compare(model("translator", 0), Search(3, 2), ensemble=[model("translator", 1)])


def test_a_wrong_length_penalty_is_noticed(monkeypatch):
    monkeypatch.setattr(Search, "divisor", lambda self, n: ((5 + n) / 6.1) ** self.length_penalty)
    with pytest.raises(AssertionError):
        compare(model("translator", 0), Search(3, 2))


@pytest.mark.parametrize("kind", ["decoder", "translator"])
def test_a_cache_that_does_not_follow_its_beams_is_noticed(kind, monkeypatch):
    monkeypatch.setattr(Static, "reorder", lambda self, index: None)
    with pytest.raises(AssertionError):
        compare(model(kind, 2), Search(5, 5, stop="never"))


def test_what_cannot_be_searched_is_said():
    core, start = model("translator", 0), DecodeOptions(start=START)
    for bad, said in (({"beams": 0}, "beams: found 0"), ({"beams": 2, "nbest": 3}, "nbest: found 3"),
                      ({"length_penalty": math.nan}, "length_penalty")):  # fmt: skip
        with pytest.raises(QkvError, match=said):
            Search(**bad)
    with pytest.raises(QkvError, match="cache"):
        beam(core, [[1]], options=DecodeOptions(start=START, cache=False))
    with pytest.raises(QkvError, match="stop strings"):
        beam(core, [[1]], options=replace(start, stop_strings=("x",), text_stream=lambda _: None))
    assert [len(h.tokens) for h in beam(core, [[1]], options=replace(start, context=1, eos=()))[0]] == [1]
    with torch.no_grad():
        broken = Transformer(spec("decoder", 23))
        initialise(broken, 0)
        broken.head.weight[3] = float("nan")
    with pytest.raises(QkvError, match="not finite"):
        beam(broken, [[1]], options=DecodeOptions(3))


def test_a_sure_model_is_not_cut_short() -> None:
    """It gives the right next token 0.92, and the end more than the others: each step ends a poor hypothesis."""
    right, rest = [7, 8, 9, 10, 11, 12, 13, 0], 0.08 / 22

    class Sure:
        device = torch.device("cpu")

        def __init__(self) -> None:
            self.texts: list[list[int]] = [[]]

        def select_rows(self, rows: torch.Tensor, _: torch.Tensor | None = None) -> None:
            self.texts = [list(self.texts[row]) for row in rows.tolist()]

        reorder = select_rows

        def read(self, tokens: torch.Tensor | None) -> torch.Tensor:
            if tokens is not None:
                self.texts = [[*text, token] for text, token in zip(self.texts, tokens.tolist(), strict=True)]
            logits = torch.full((len(self.texts), 23), math.log(rest))
            logits[:, 0] = math.log(1.5 * rest)
            for row, text in enumerate(self.texts):
                logits[row, right[min(len(text), 7)]] = math.log(0.92)
            return logits

    def write(stop: str) -> list[int]:
        rows = Sure()
        search = BeamSearch(rows, [20], Search(4, stop=stop), DecodeOptions(20, eos=(0,)))  # type: ignore[arg-type]
        tokens = None
        while search.beams.sources:
            tokens = search.advance(rows.read(tokens))
        return search.found[0][0].tokens

    assert write("settled") == right
    assert len(write("first")) < len(right)


def test_the_bound_stops_early_and_loses_nothing():
    hasty = 0
    for seed in range(12):
        core = model("decoder", seed, 11)

        def search(stop, core=core):
            s = Search(2, 2, 2.0, "power", stop)
            found = beam(core, [[5, 3, 1], [4]], search=s, options=DecodeOptions(12, eos=(0, 6)))
            return [h.tokens for hypotheses in found for h in hypotheses]

        assert search("bound") == search("never")
        hasty += search("heuristic") != search("never")
    assert hasty  # so the trials can tell a bound from a guess


def test_children_stand_where_their_parents_stood():
    wanted = {(2, 0, 2, 1): [0, 1, 2, 2], (7, 7, 7, 7): [7, 7, 7, 7], (9, 8, 11, 10): [8, 9, 10, 11]}
    parents = np.array(list(wanted))
    children = place_children(parents, 4)
    for rows, child, stand in zip(parents, children, wanted.values(), strict=True):
        assert rows[child].tolist() == stand
        assert sorted(child) == [0, 1, 2, 3]  # nobody is lost
    assert children[0].tolist() == [1, 3, 0, 2]  # the likelier child of 2 stays, its sister moves


def test_sources_of_unequal_length_are_read_apart_and_nothing_changes(monkeypatch):
    core, draw = model("translator", 1), torch.Generator().manual_seed(0)
    sources = [torch.randint(0, 23, (n,), generator=draw).tolist() for n in (3, 30, 1, 29, 2, 2, 3, 28, 1, 1, 4, 30)]
    rows = Decoder(core, DecodeOptions(start=START))
    seen = []
    encode = core.encode
    with monkeypatch.context() as patch:
        patch.setattr(core, "encode", lambda ids, *a, **k: seen.append(tuple(ids.shape)) or encode(ids, *a, **k))
        rows.encode(sources)
    assert len(seen) > 1
    assert sum(a * b for a, b in seen) < len(sources) * 30
    for n, source in enumerate(sources):
        ids = torch.tensor([source])
        alone = core.encode(ids)
        assert (rows.inputs.memory[n, : len(source)] - alone[0]).abs().max() <= 1e-5
        assert rows.inputs.source_padding_mask[n].tolist() == [True] * len(source) + [False] * (30 - len(source))
