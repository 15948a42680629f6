"""A batch against the model itself, read whole for every token, one row at a time."""

import functools
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounding import EXACT, ROOM

from qkv import sampling
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs, active_tracer
from qkv.errors import QkvError
from qkv.generation import decoder as decoder_module
from qkv.generation.decoder import Decoder, batch_by_length
from qkv.generation.engine import Engine, Settings, generate
from qkv.generation.sequence import DecodeOptions
from qkv.sampling import Sampling
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table

PROMPTS = [[5, 9, 11], [7], [3, 4, 8, 12, 13, 2, 90], [61, 62, 63, 64]]
START = DecodeOptions(start=(1,))


def lm(mask: str = "causal", window: int | None = None, positions: Table | None = None) -> Spec:
    attn = Attention(4, 2, 32, Mask(mask, window), rotary=None if positions else Rotary(32))
    block = Block(attn, Ffn(96, "silu", gated=True), norm_in=Norm("rms", 1e-6))
    decoder = Stack(64, (block,) * 3, positions, final_norm=Norm("rms", 1e-6))
    return Spec(97, decoder=decoder, head=Head("untied"), init=Init("normal", 0.2))


def translator() -> Spec:
    n, ff = Norm("layer"), Ffn(128, "relu", bias=True)
    enc = Block(Attention(2, 2, 32, Mask("full"), True, True), ff, norm_sum=n)
    cross = Attention(2, 2, 32, Mask("memory"), True, True)
    dec = Block(Attention(2, 2, 32, Mask("causal"), True, True), ff, cross=cross, norm_sum=n)
    t = Table("sinusoid", 256)
    return Spec(97, Stack(64, (dec,) * 3, t, 8.0), Stack(64, (enc,) * 3, t, 8.0), init=Init("normal", 0.2))


SPECS = {
    "causal": lm(),
    "window": lm(window=4),
    "learned": lm(positions=Table("learned", 64)),
    "prefix": lm("prefix"),
    "translator": translator(),
}


@functools.cache
def model(name: str, seed: int = 0) -> Transformer:
    core = Transformer(SPECS[name])
    initialise(core, seed)
    return core.requires_grad_(False)


def feed(name: str, **more: object) -> DecodeOptions:
    return DecodeOptions(start=(1,) if name == "translator" else (), **more)


def followers(core: Transformer, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Log probabilities [V] of what follows, everything read again in one pass, no cache, no padding, no batch."""
    if core.spec.encoder:
        source = torch.tensor([prompt])
        memory = core.encode(source)
        ids = torch.tensor([[1, *tokens]])
        return core(ids, Inputs(memory=memory)).logits[0, -1].log_softmax(-1)
    ids = torch.tensor([[*prompt, *tokens]])
    return core(ids, Inputs(prefix_len=torch.tensor([len(prompt)]))).logits[0, -1].log_softmax(-1)


def plainly(core: Transformer, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    logprobs: list[float] = []
    for _ in range(n):
        best = followers(core, prompt, tokens).max(-1)
        tokens.append(int(best.indices))
        logprobs.append(float(best.values))
    return tokens, logprobs


def stream_tokens(core, prompts, *, sampling=Sampling(), options=DecodeOptions()):  # noqa: B008  frozen
    """As `generate`, but each token comes as an Event when it is chosen."""
    engine = Engine(core)
    handles = engine.submit_batch(prompts, options, sampling=sampling)

    def events():
        while engine.busy:
            engine.step()
            for n, handle in enumerate(handles):
                while handle.events:
                    yield handle.events.popleft()._replace(row=n)
        for handle in handles:
            handle.result()

    return events()


@pytest.mark.parity
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("how", [{}, {"cache": False}, {"chunk": 1}, {"chunk": 3}])
def test_a_batch_of_unequal_prompts_writes_what_each_writes_alone(name, how):
    if name == "prefix" and "chunk" in how:
        return
    core, wide = model(name), deepcopy(model(name)).double()
    options = feed(name, max_new_tokens=12, **how)
    found, exact = (generate(c, PROMPTS, options=options) for c in (core, wide))
    alone, truth = ([plainly(c, prompt, 12) for prompt in PROMPTS] for c in (core, wide))
    rounding = max(abs(a - b) for one, other in zip(alone, truth, strict=True)
                   for a, b in zip(one[1], other[1], strict=True))  # fmt: skip
    for n, prompt in enumerate(PROMPTS):
        assert found[n].tokens == exact[n].tokens == alone[n][0]
        assert found[n].logprobs == pytest.approx(alone[n][1], abs=ROOM * rounding)
        assert exact[n].logprobs == pytest.approx(truth[n][1], abs=EXACT)
        assert (found[n].finish_reason, found[n].prompt) == ("length", tuple(prompt))


def test_padding_that_is_not_masked_is_noticed(monkeypatch):
    right = decoder_module.pad_rows
    monkeypatch.setattr(decoder_module, "pad_rows", lambda *a: (right(*a)[0], None))
    with pytest.raises(AssertionError):
        test_a_batch_of_unequal_prompts_writes_what_each_writes_alone("causal", {})


@pytest.mark.parametrize("name", ["causal", "translator"])
def test_finished_rows_leave_and_the_others_go_on(name, monkeypatch):
    core = model(name)
    free = [plainly(core, p, 12)[0] for p in PROMPTS]
    eos = (free[0][3], free[2][6])
    found = generate(core, PROMPTS, options=feed(name, max_new_tokens=12, eos=eos))
    for row, tokens in zip(found, free, strict=True):
        end = next((i + 1 for i, t in enumerate(tokens) if t in eos), None)
        assert row.tokens == tokens[:end]
        assert row.finish_reason == ("stop" if end else "length")
    assert len({len(r.tokens) for r in found}) > 1
    # deliberate fault: rows leave, but the cache forgets who is who
    keep = Decoder.select_rows
    monkeypatch.setattr(Decoder, "select_rows", lambda self, rows, sources=None: keep(self, rows.flip(0), rows.flip(0)))
    assert [r.tokens for r in generate(core, PROMPTS, options=feed(name, max_new_tokens=12, eos=eos))] != [
        r.tokens for r in found
    ]


@pytest.mark.parametrize("name", ["causal", "translator"])
def test_the_same_seed_writes_the_same_whoever_stands_beside(name):
    core, warm = model(name), Sampling(1.0, top_p=0.95, seed=3)
    together = generate(core, PROMPTS, sampling=warm, options=feed(name, max_new_tokens=12))
    backwards = generate(core, PROMPTS[::-1], sampling=warm, options=feed(name, max_new_tokens=12))[::-1]
    for i, row in enumerate(together):
        alone = generate(core, PROMPTS[i : i + 1], sampling=warm, options=feed(name, max_new_tokens=12))[0]
        assert row.tokens == alone.tokens == backwards[i].tokens
    other = generate(core, PROMPTS, sampling=Sampling(1.0, top_p=0.95, seed=4), options=feed(name, max_new_tokens=12))
    assert [r.tokens for r in other] != [r.tokens for r in together]
    first, second = generate(core, [PROMPTS[0]] * 2, sampling=warm, options=feed(name, max_new_tokens=12))
    assert first.tokens == together[0].tokens != second.tokens


def test_samples_follow_the_model():
    core, n = model("causal"), 3000
    found = generate(core, [PROMPTS[0]] * n, sampling=Sampling(1.0), options=DecodeOptions(1))
    probs = followers(core, PROMPTS[0], []).exp().double()
    counts = torch.bincount(torch.tensor([r.tokens[0] for r in found]), minlength=97).double()
    common = probs * n >= 5
    seen = torch.cat((counts[common], counts[~common].sum()[None]))
    expected = torch.cat((probs[common], probs[~common].sum()[None])) * n
    freedom = len(seen) - 1
    assert ((seen - expected) ** 2 / expected).sum() < freedom + 4 * (2 * freedom) ** 0.5


class Letters:
    """Ids as letters; every fifth id is the first half of a character that the next id ends."""

    def __init__(self) -> None:
        self.half = ""

    def push(self, token: int) -> str:
        if token % 5 == 0:
            self.half += "<"
            return ""
        text, self.half = self.half + chr(97 + token % 26), ""
        return text

    def end(self) -> str:
        text, self.half = self.half, ""
        return text


@pytest.mark.parametrize("strings", [(), ("xy",), ("a", "bc")])
def test_streamed_texts_join_to_the_final_text(strings):
    core, warm = model("causal"), Sampling(1.5, seed=1)
    options = DecodeOptions(30, text_stream=lambda _: Letters())
    text = "".join(generate(core, [PROMPTS[0]], sampling=warm, options=options)[0].text)
    strings = strings and (*strings, text[5:8])
    options = DecodeOptions(30, eos=(9,), stop_strings=strings, text_stream=lambda _: Letters())
    events = list(stream_tokens(core, PROMPTS, sampling=warm, options=options))
    found = generate(core, PROMPTS, sampling=warm, options=options)
    for i, row in enumerate(found):
        mine = [e for e in events if e.row == i]
        assert "".join(e.text for e in mine) == row.text
        assert [e.token for e in mine] == row.tokens
        assert [e.finish_reason for e in mine] == [None] * (len(mine) - 1) + [row.finish_reason]
        assert not any(s in row.text for s in strings)
    if strings:
        assert found[0].finish_reason == "stop_string"
        assert len(found[0].text) <= 8


def test_forbidden_ids_are_never_written():
    core = model("causal")
    free = generate(core, PROMPTS, options=DecodeOptions(8))
    ban = tuple({t for r in free for t in r.tokens})
    for warm in (Sampling(), Sampling(2.0)):
        found = generate(core, PROMPTS, sampling=warm, options=DecodeOptions(8, forbid=ban))
        assert not {t for r in found for t in r.tokens} & set(ban)


def test_the_context_end_stops_a_row_with_length():
    core = model("learned")
    prompt = list(range(60))
    (row,) = generate(core, [prompt])
    assert (row.tokens, row.finish_reason) == (plainly(core, prompt, 5)[0], "length")
    full, short = generate(core, [list(range(64)), prompt])
    assert (full.tokens, full.finish_reason) == (plainly(core, list(range(64)), 1)[0], "length")
    assert short.tokens == row.tokens
    assert len(generate(core, [prompt], options=DecodeOptions(context=62))[0].tokens) == 3
    assert len(generate(core, [list(range(6))], options=DecodeOptions(context=11))[0].tokens) == 6
    assert generate(core, []) == []


@pytest.mark.parametrize("size", [4, 16])
def test_the_token_behind_the_last_position_is_written_from_pages_too(size):
    core, prompt = model("learned"), list(range(60))
    handle = Engine(core, Settings(tokens=64, page_size=size)).submit(prompt)
    assert handle.result().tokens == plainly(core, prompt, 5)[0]


@pytest.mark.parametrize(
    ("prompts", "said"),
    [([[1], list(range(65))], "prompt 1: it has 65 tokens, and the context holds 64"), ([[]], "prompt 0: it is empty"),
     ([[3, 97]], "token id 97 has no embedding, ids go from 0 to 96"), ([[-1]], "token id -1")],
)  # fmt: skip
def test_prompts_that_cannot_be_read_are_named_at_the_call(prompts, said):
    for write in (generate, stream_tokens):
        with pytest.raises(QkvError, match=said):
            write(model("learned"), prompts)


def test_what_cannot_be_asked_is_said():
    with pytest.raises(QkvError, match="max_new_tokens or context"):
        generate(model("causal"), [[1]])
    with pytest.raises(QkvError, match="begins with a start id"):
        generate(model("translator"), [[1]])
    with pytest.raises(QkvError, match="chunks"):
        generate(model("prefix"), [[1]], options=DecodeOptions(2, chunk=2))
    with pytest.raises(QkvError, match="no decoder"):
        generate(Transformer(Spec(97, encoder=translator().encoder)), [[1]])
    with pytest.raises(QkvError, match="chunk: found 0"):
        DecodeOptions(chunk=0)


def test_logits_that_are_not_finite_stop_with_the_row_named():
    core = Transformer(lm())
    initialise(core, 0)
    with torch.no_grad():
        core.head.weight[3] = float("nan")
    with pytest.raises(QkvError) as error:
        generate(core, [[5]], options=DecodeOptions(3))
    assert (error.value.code, error.value.message.fields) == ("logits-not-finite", {"number": 0, "tokens": 0})


def test_only_the_last_position_of_a_prompt_goes_through_the_head():
    core, shapes = model("causal"), []
    handle = core.head.register_forward_hook(lambda m, a, out: shapes.append(tuple(out.shape)))
    try:
        generate(core, [list(range(50))], options=DecodeOptions(2, chunk=20))
    finally:
        handle.remove()
    assert shapes == [(1, 1, 97)] * 2


def test_a_stream_keeps_the_listener_of_its_call_and_leaves_inference_mode():
    class Ear:
        needs_eager_attention = False
        heard = 0

        def tap(self, module, name, x):
            self.heard += name == "logits"
            return x

    ear, other = Ear(), Ear()
    token = active_tracer.set(ear)
    events = stream_tokens(model("causal"), [[5]], options=DecodeOptions(3))
    active_tracer.set(other)
    try:
        for _ in events:
            assert not torch.is_inference_mode_enabled()
    finally:
        active_tracer.reset(token)
    assert (ear.heard, other.heard) == (3, 0)


def test_timing_counts_the_batch():
    found = generate(model("causal"), PROMPTS, options=DecodeOptions(5))
    timing = found[0].timing
    assert timing is found[3].timing
    assert (timing.tokens, timing.decoded) == (20, 16)
    assert timing.prefill > 0
    assert timing.tokens_per_second == pytest.approx(16 / timing.decode)


prompts_of_any_length = st.lists(st.lists(st.integers(0, 96), min_size=1, max_size=9), min_size=1, max_size=5)


@settings(max_examples=12, deadline=None)
@given(prompts_of_any_length, st.sets(st.integers(0, 96), max_size=25), st.none() | st.integers(1, 9))
def test_any_batch_equals_its_rows_alone(prompts, eos, chunk):
    core, options = deepcopy(model("causal")).double(), DecodeOptions(6, eos=tuple(eos))
    found = generate(core, prompts, options=replace(options, chunk=chunk))
    for row, prompt in zip(found, prompts, strict=True):
        (alone,) = generate(core, [prompt], options=options)
        assert (row.tokens, row.finish_reason) == (alone.tokens, alone.finish_reason)
        assert row.logprobs == pytest.approx(alone.logprobs, abs=EXACT)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.just(1), max_size=12), max_size=20), st.integers(1, 40))
def test_batches_by_length_hold_every_prompt_once_within_their_bound(prompts, tokens):
    batches = batch_by_length(prompts, tokens)
    assert sorted(i for b in batches for i in b) == list(range(len(prompts)))
    for b in batches:
        assert len(b) == 1 or len(b) * max(len(prompts[i]) for i in b) <= tokens


def test_a_stopped_stream_has_shown_what_was_written():
    events = stream_tokens(model("causal"), [PROMPTS[0]], options=DecodeOptions(9))
    first = [next(events) for _ in range(3)]
    events.close()
    assert [e.token for e in first] == plainly(model("causal"), PROMPTS[0], 3)[0]


def test_each_token_is_drawn_from_the_model_at_its_own_position():
    core, warm = model("causal"), Sampling(0.8, top_k=20, seed=5)
    (row,) = generate(core, [PROMPTS[0]], sampling=warm, options=DecodeOptions(10))
    for n, token in enumerate(row.tokens):
        probs = sampling.distribution(followers(core, PROMPTS[0], row.tokens[:n])[None], warm)
        assert sampling.draw(probs, [row.seed], [n]).item() == token
