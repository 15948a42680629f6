"""What a text must obey, against a brute-force search through every sentence of a tiny vocabulary."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation import candidates, constraints
from qkv.generation.beam import Search, beam
from qkv.generation.constraints import Avoiding, Beginning, Guide, Holding, join_guides
from qkv.generation.engine import Engine, generate
from qkv.generation.sequence import DecodeOptions
from qkv.sampling import Sampling
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table

V, LONGEST, EOS, START = 5, 4, (0,), (1,)
LETTERS = ("", "a", "ab", "b", "c")  # what the ids say: ab is spelt in two ways
PROMPTS = [[3, 2], [4], [2, 2, 1]]


def read(tokens) -> str:
    return "".join(LETTERS[t] for t in tokens)


@functools.cache
def model(kind: str, seed: int = 0) -> Transformer:
    if kind == "decoder":
        block = Block(Attention(2, 1, 16, Mask("causal"), rotary=Rotary(16)), Ffn(48, "silu", gated=True),
                      norm_in=Norm("rms", 1e-6))
        spec = Spec(V, Stack(32, (block,) * 2, None, final_norm=Norm("rms")), head=Head("untied"),
                    init=Init("normal", 0.2))
    else:
        n, ff, t = Norm("layer"), Ffn(48, "relu", bias=True), Table("sinusoid", 64)
        enc = Block(Attention(2, 2, 16, Mask("full"), True, True), ff, norm_sum=n)
        dec = Block(Attention(2, 2, 16, Mask("causal"), True, True), ff,
                    cross=Attention(2, 2, 16, Mask("memory"), True, True), norm_sum=n)
        spec = Spec(V, Stack(32, (dec,) * 2, t), Stack(32, (enc,) * 2, t), Head(), init=Init("normal", 0.2))
    core = Transformer(spec)
    initialise(core, seed)
    return core.requires_grad_(False).double()


@functools.cache
def followers(core: Transformer, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> list[float]:
    if core.spec.encoder:
        out = core(torch.tensor([[*START, *tokens]]), Inputs(source=torch.tensor([prompt])))
    else:
        out = core(torch.tensor([[*prompt, *tokens]]))
    return out.logits[0, -1].log_softmax(-1).tolist()


def list_sentences(core, prompt, s: Search, obeys) -> list[tuple[float, tuple[int, ...]]]:
    """Every ended sentence that obeys, best first."""
    found = []
    for length in range(1, LONGEST + 1):
        for words in itertools.product(range(1, V), repeat=length - 1):
            tokens = (*words, 0)
            if obeys(words):
                total = sum(followers(core, prompt, tokens[:n])[t] for n, t in enumerate(tokens))
                found.append((total / s.divisor(length), tokens))
    return sorted(found, reverse=True)


def words_of(found) -> list[list[int]]:
    return [h.tokens for h in found]


def holds(words, phrase) -> bool:
    return any(words[n : n + len(phrase)] == phrase for n in range(len(words)))


def holding(*phrases) -> Holding:
    return Holding.from_spellings([[phrase] if isinstance(phrase[0], int) else phrase for phrase in phrases], EOS)


def avoiding(*texts: str, ids=()) -> Avoiding:
    return Avoiding(texts, ids, read)


RULES = {  # the guide, and what it means
    "beginning": (Beginning((2, 3)), lambda w: w[:2] == (2, 3)),
    "one": (holding((4,)), lambda w: 4 in w),
    "phrase": (holding((2, 3)), lambda w: holds(w, (2, 3))),
    "again": (holding((2, 2, 4)), lambda w: holds(w, (2, 2, 4))),
    "both": (holding((4,), (2,)), lambda w: 4 in w and 2 in w),
    "overlap": (holding((2, 3), (3, 1)), lambda w: holds(w, (2, 3)) and holds(w, (3, 1))),
    "spelt": (holding([(2,), (1, 3)]), lambda w: 2 in w or holds(w, (1, 3))),
    "text": (avoiding("ab"), lambda w: "ab" not in read(w)),
    "ids": (avoiding(ids=((3,), (1, 4))), lambda w: 3 not in w and not holds(w, (1, 4))),
    "all": (join_guides([Beginning((3,)), holding((1,)), avoiding("ba")]),
            lambda w: w[:1] == (3,) and 1 in w and "ba" not in read(w)),
    "begun": (join_guides([Beginning((3, 1)), holding((1, 4))]), lambda w: w[:2] == (3, 1) and holds(w, (1, 4))),
}


@pytest.mark.parametrize("kind", ["decoder", "translator"])
@pytest.mark.parametrize("name", RULES)
def test_a_wide_beam_finds_the_best_of_all_sentences_that_obey(kind, name):
    guide, obeys = RULES[name]
    core, s = model(kind), Search(330, 9, 1.0, "power", "bound")  # as many beams as there are candidates
    options = DecodeOptions(LONGEST, eos=EOS, start=START if kind == "translator" else (), guides=(guide,))
    found = beam(core, PROMPTS, search=s, options=options)
    for prompt, hypotheses in zip(PROMPTS, found, strict=True):
        best = list_sentences(core, tuple(prompt), s, obeys)[:9]
        assert best
        ended = [h for h in hypotheses if h.finish_reason == "stop"]
        assert [tuple(h.tokens) for h in ended] == [tokens for _, tokens in best]
        assert [h.score for h in ended] == pytest.approx([score for score, _ in best], abs=1e-9)


@pytest.mark.parametrize("beams", [1, 2, 4])
@pytest.mark.parametrize("name", RULES)
def test_a_narrow_beam_obeys_alone_in_a_batch_and_in_the_engine(name, beams):
    guide, obeys = RULES[name]
    core, s = model("translator", 3), Search(beams, beams)
    options = DecodeOptions(9, eos=EOS, start=START, guides=(guide,))
    together = beam(core, PROMPTS, search=s, options=options)
    for prompt, hypotheses in zip(PROMPTS, together, strict=True):
        for h in hypotheses:
            words = tuple(t for t in h.tokens if t not in EOS)
            assert obeys(words)
            own = [followers(core, tuple(prompt), tuple(h.tokens[:n]))[t] for n, t in enumerate(h.tokens)]
            assert h.logprobs == pytest.approx(own, abs=1e-9)
        assert words_of(beam(core, [prompt], search=s, options=options)[0]) == words_of(hypotheses)
        handle = Engine(core).submit(prompt, options, search=s)
        handle.result()
        assert words_of(handle.hypotheses) == words_of(hypotheses)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, V - 1), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3),
       st.integers(1, 5), st.integers(0, 2), st.integers(0, 9))
def test_phrases_find_room_wherever_there_is_some(phrases, beams, spare, seed):
    core, guide = model("translator", seed % 3), holding(*phrases)
    options = DecodeOptions(guide.remaining + spare, eos=EOS, start=START, guides=(guide,))
    for h in beam(core, [PROMPTS[seed % 3]], search=Search(beams, 1), options=options)[0]:
        assert all(holds(tuple(h.tokens), phrase) for phrase in phrases)


def test_each_source_has_its_own_rule_or_none():
    core, free = model("translator", 1), DecodeOptions(6, eos=EOS, start=START)
    s = Search(3, 3)
    guides = (RULES["beginning"][0], Guide(), RULES["phrase"][0])
    found = beam(core, PROMPTS, search=s, options=DecodeOptions(6, eos=EOS, start=START, guides=guides))
    plain = beam(core, PROMPTS, search=s, options=free)
    assert words_of(found[1]) == words_of(plain[1])
    assert words_of(found[0]) != words_of(plain[0])
    assert all(RULES["phrase"][1](tuple(h.tokens)) for h in found[2])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["beginning", "one", "spelt", "text", "ids"])
def test_a_text_that_is_drawn_obeys_too(name, temperature):
    guide, obeys = RULES[name]
    options = DecodeOptions(40, eos=EOS, guides=(guide,))
    for row in generate(model("decoder", 1), PROMPTS, sampling=Sampling(temperature, seed=2), options=options):
        assert (row.finish_reason == "length" and name in ("one", "spelt")) or obeys(tuple(row.tokens))
    with pytest.raises(QkvError) as caught:
        generate(model("decoder", 1), PROMPTS, options=DecodeOptions(9, eos=EOS, guides=(guide, guide, guide)))
    assert caught.value.code == "guides"
    handle = Engine(model("decoder", 1)).submit(PROMPTS[0], options, sampling=Sampling(temperature, seed=2))
    alone = generate(model("decoder", 1), PROMPTS[:1], sampling=Sampling(temperature, seed=2), options=options)
    assert handle.result().tokens == alone[0].tokens


def test_groups_obey_one_by_one():
    s = Search(4, 4, groups=2, diversity_penalty=0.5)
    guides = (RULES["one"][0], RULES["beginning"][0], Guide())
    options = DecodeOptions(6, eos=EOS, start=START, guides=guides)
    found = beam(model("translator", 1), PROMPTS, search=s, options=options)
    assert all(4 in h.tokens for h in found[0])
    assert all(h.tokens[:2] == [2, 3] for h in found[1])


def test_what_finds_no_room_is_said_before_anything_is_written():
    core = model("translator")
    both = join_guides([Beginning((2, 3)), holding((4, 4, 4))])
    for guide in (Beginning((2,) * 5), holding((2, 3), (4, 4, 4)), both):
        with pytest.raises(QkvError) as caught:
            beam(core, PROMPTS, options=DecodeOptions(4, eos=EOS, start=START, guides=(Guide(), guide, Guide())))
        assert caught.value.code == "constraint-length"
        assert caught.value.message.fields["number"] == 2
    begun = join_guides([Beginning((2, 3, 4)), holding((3, 4, 4))])
    ((best,),) = beam(core, PROMPTS[:1], options=DecodeOptions(4, eos=EOS, start=START, guides=(begun,)))
    assert best.tokens == [2, 3, 4, 4]


def test_what_contradicts_itself_is_an_error_of_its_request_alone():
    core, engine = model("translator"), Engine(model("translator"))
    wrong = join_guides([Beginning((2,)), avoiding("ab")])
    options = DecodeOptions(4, eos=EOS, start=START, guides=(wrong,))
    with pytest.raises(QkvError) as caught:
        beam(core, PROMPTS[:1], options=options)
    assert caught.value.code == "no-token"
    bad = engine.submit(PROMPTS[0], options, search=Search(2))
    good = engine.submit(PROMPTS[1], DecodeOptions(4, eos=EOS, start=START), search=Search(2))
    with pytest.raises(QkvError) as caught:
        bad.result()
    assert caught.value.code == "no-token"
    assert good.result().tokens


def test_numbers_that_are_none_are_noticed_where_banks_share_the_beams():
    core = Transformer(model("translator").spec)
    initialise(core, 0)
    core.requires_grad_(False).embed.weight[2] = math.nan
    with pytest.raises(QkvError, match="finite"):
        beam(core, PROMPTS, options=DecodeOptions(4, eos=EOS, start=START, guides=(holding((3,)),)))


@pytest.mark.parametrize(("where", "name", "wrong", "rule"), [
    (Holding, "bar", lambda self, barred: None, "phrase"),
    (Holding, "list_wanted", lambda self: (), "again"),
    (Avoiding, "refuses", lambda self, token: False, "text"),
    (Beginning, "follow", lambda self, token: self, "beginning"),
    (constraints, "match_end", lambda text, ids: len(text) if text == ids[: len(text)] else 0, "phrase"),
    (candidates, "fill_banks", lambda lacks, places: list(lacks)[:places], "again"),
])  # fmt: skip
def test_a_fault_is_noticed(where, name, wrong, rule, monkeypatch):
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, QkvError)):  # noqa: PT012
        test_a_narrow_beam_obeys_alone_in_a_batch_and_in_the_engine(rule, 2)
        test_a_wide_beam_finds_the_best_of_all_sentences_that_obey("translator", rule)
