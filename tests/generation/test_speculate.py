"""Guesses change how a text is written and never what it is; where they do not pay they stop."""

import functools
import random

import pytest
import torch
from support import zoo

import qkv
from qkv import sampling
from qkv.core.cache import Static
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.generation import speculate
from qkv.generation.constraints import Holding
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions, Sequence
from qkv.generation.speculate import MOST, TRIAL, Draft, Gain, Lookup, Speculation
from qkv.sampling import Sampling

PROMPTS = [[7, 5, 9, 7, 5], [4], [8, 8, 3, 8, 8, 3, 8]]
NAMES = ["gqa", "latent", "window", "seq2seq", "alibi", "relative", "experts", "learned"]
HOW = {"greedy": Sampling(), "drawn": Sampling(0.8, top_k=20, seed=3),
       "penalised": Sampling(0.5, seed=1, repetition_penalty=1.3, no_repeat_ngram=3, min_new_tokens=4)}


@functools.cache
def model(name: str, seed: int = 0) -> Transformer:
    return zoo.made(zoo.ALL[name](), seed).requires_grad_(False).double()


def options_of(name: str, most: int = 20, **more: object) -> DecodeOptions:
    source = {"start": (1,), "continues": "start"} if name in ("seq2seq", "relative") else {}
    return DecodeOptions(**{"max_new_tokens": most, "eos": (3,), **source, **more})


class Oracle:
    """Guesses the text itself, and now and then something else."""

    worth = 0.0

    def __init__(self, text: list[int], wrong: float) -> None:
        self.text, self.wrong, self.draw = text, wrong, random.Random(1)

    def guess(self, text, count):
        return [1 if self.draw.random() < self.wrong else t for t in self.text[len(text) : len(text) + count]]


def write(name: str, prompt, guesser, how: Sampling, options: DecodeOptions) -> Speculation:
    seed = sampling.seeds(how.seed, [prompt])[0] if how.temperature else 0
    writing = Speculation(model(name), Sequence(tuple(prompt), seed), guesser, sampling=how, options=options)
    told = list(writing)
    assert [event.token for event in told] == writing.sequence.tokens
    return writing


@pytest.mark.parametrize(("name", "how"), [
    *((name, HOW["greedy"]) for name in NAMES), ("gqa", HOW["drawn"]), ("seq2seq", HOW["penalised"]),
])  # fmt: skip
def test_a_text_is_the_one_without_guesses(name, how):
    options, accepted = options_of(name), 0
    for prompt in PROMPTS[::2]:
        plain = generate(model(name), [prompt], sampling=how, options=options)[0]
        whole = [*options.list_before(prompt), *plain.tokens]
        drafts = [Draft(model(name), prompt, options), Draft(model(name, 1), prompt, options)]
        for guesser in (Lookup(), *drafts, *(Oracle(whole, wrong) for wrong in (0.0, 0.3, 1.0))):
            found = write(name, prompt, guesser, how, options)
            assert found.sequence.tokens == plain.tokens
            assert found.sequence.finish_reason == plain.finish_reason
            assert found.sequence.logprobs == pytest.approx(plain.logprobs, abs=1e-9)
            accepted += found.gain.accepted
    assert accepted, "no guess came true: a poor test"


def test_a_model_that_drafts_for_itself_is_always_right():
    options, prompt = options_of("gqa", 40, eos=()), PROMPTS[0]
    found = write("gqa", prompt, Draft(model("gqa"), prompt, options), Sampling(), options)
    assert found.gain.accepted == found.gain.guessed
    assert found.gain.count == MOST
    assert len(found.sequence.tokens) == 40
    assert found.gain.passes <= 2 + 40 // MOST


def test_guesses_that_do_not_come_true_stop_after_a_trial_that_is_counted():
    options, prompt = options_of("gqa", 60, eos=()), PROMPTS[0]
    plain = generate(model("gqa"), [prompt], options=options)[0]

    class Wrong(Oracle):
        worth = 0.25

    found = write("gqa", prompt, Wrong([0] * 99, 1.0), Sampling(), options)
    assert found.sequence.tokens == plain.tokens
    assert (found.gain.passes, found.gain.accepted, found.gain.count) == (TRIAL, 0, 0)
    assert found.gain.guessed < 2 * TRIAL + 4, "few are guessed where none comes true"
    again = write("gqa", prompt, Wrong([0] * 99, 1.0), Sampling(), options)
    assert vars(again.gain) == vars(found.gain), "a clock has no say"


def test_gain_counts():
    gain = Gain()
    gain.count_pass(4, 4, 1.0)
    assert gain.count == 8
    gain.count_pass(8, 2, 1.0)
    assert gain.count == 3
    for _ in range(TRIAL):
        gain.count_pass(3, 1, 1.0)
    assert gain.count == 2
    assert (gain.passes, gain.accepted) == (TRIAL + 2, 6 + TRIAL)


def test_a_lookup_finds_what_followed_the_last_time():
    draw = random.Random(5)
    for _ in range(200):
        text, lookup = [draw.randrange(3) for _ in range(draw.randint(1, 30))], Lookup()
        for end in range(1, len(text) + 1):  # as it grows
            part, expected = text[:end], []
            for n in (2, 3):  # the longer counts more
                places = [at for at in range(n, end) if part[at - n : at] == part[-n:]]
                expected = part[places[-1] : places[-1] + 4] if places else expected
            assert list(lookup.guess(part, 4)) == expected


def test_a_limit_a_context_and_a_guide_hold():
    for most in (1, 2, 3, 7):
        options = options_of("gqa", most, eos=())
        whole = [*PROMPTS[0], *generate(model("gqa"), PROMPTS[:1], options=options)[0].tokens]
        found = write("gqa", PROMPTS[0], Oracle(whole, 0.0), Sampling(), options)
        assert found.sequence.tokens == whole[len(PROMPTS[0]) :]
    short = options_of("gqa", 50, eos=(), context=12)
    found = write("gqa", PROMPTS[0], Lookup(), Sampling(), short)
    assert found.sequence.tokens == generate(model("gqa"), PROMPTS[:1], options=short)[0].tokens
    full = write("gqa", [7] * 12, Lookup(), Sampling(), short)
    last = generate(model("gqa"), [[7] * 12], options=short)[0]
    assert (full.sequence.tokens, full.sequence.finish_reason) == (last.tokens, "length")
    guide = Holding.from_spellings([[(11, 12)]], (3,))
    held = options_of("gqa", 30, guides=(guide,))
    alone = generate(model("gqa"), PROMPTS[:1], options=held)[0]
    assert write("gqa", PROMPTS[0], Lookup(), Sampling(), held).sequence.tokens == alone.tokens


def test_what_cannot_be_guessed_is_said():
    for options in (options_of("gqa", cache=False), options_of("gqa", chunk=2)):
        with pytest.raises(QkvError) as caught:
            write("gqa", PROMPTS[0], Lookup(), Sampling(), options)
        assert caught.value.code == "speculation"
    broken = zoo.made(zoo.ALL["gqa"]())
    with torch.no_grad():
        next(broken.parameters())[:] = torch.nan
    with pytest.raises(QkvError, match="finite"):
        list(Speculation(broken, Sequence((7,)), Lookup(), sampling=Sampling(), options=options_of("gqa")))


@pytest.mark.parametrize(("where", "name", "wrong"), [
    (Static, "truncate", lambda self, length: None),
    (speculate, "forget_after", lambda decoder, length: decoder.cache.truncate(length + 1)),
    (Speculation, "take_tokens",
     lambda self, logits, guesses, usual=Speculation.take_tokens: usual(self, logits.flip(0), guesses)),
])  # fmt: skip
def test_a_fault_is_noticed(where, name, wrong, monkeypatch):
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, RuntimeError)):
        test_a_text_is_the_one_without_guesses("gqa", HOW["drawn"])


def test_generate_takes_a_draft_and_a_lookup():
    lm = qkv.load("demo-lm")
    prompts = ["One, two,", "Humpty Dumpty sat on a wall, Humpty Dumpty"]
    plain = lm.generate(prompts, max_new_tokens=40)
    for given in ({"speculate": "lookup"}, {"draft": lm}):
        found = lm.generate(prompts, max_new_tokens=40, **given)
        assert [r.text for r in found] == [r.text for r in plain]
        assert all(set(r.timing) >= {"passes", "guessed", "accepted"} for r in found)
        assert "".join(lm.stream(prompts[0], max_new_tokens=40, **given)) == plain[0].text
    assert lm.generate(prompts[0], max_new_tokens=40, draft=lm).timing["accepted"] > 20
    drawn = {"temperature": 0.9, "seed": 4, "n": 2, "max_new_tokens": 20}
    assert lm.generate(prompts[0], speculate="lookup", **drawn).others[0].text == lm.generate(
        prompts[0], **drawn).others[0].text
    other = qkv.Model(zoo.made(zoo.ALL["gqa"]()))
    for given, code in (({"draft": other}, "draft"), ({"draft": "demo"}, "draft"),
                        ({"draft": lm, "speculate": "lookup"}, "contradiction"),
                        ({"speculate": "lookup", "beam": 2}, "contradiction"),
                        ({"draft": lm, "beam": 2}, "contradiction"),
                        ({"speculate": "lookup", "cache": False}, "speculation")):
        with pytest.raises(QkvError) as caught:
            lm.generate("One", **given)
        assert caught.value.code == code
