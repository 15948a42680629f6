"""Texts by `Model` on an engine that goes on: what is equal, what is left behind, what is read again."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from support import zoo
from torch import Tensor

import qkv
from qkv.cli import generate
from qkv.cli.common import Common
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation import engine as engine_module
from qkv.generation.engine import Engine
from qkv.generation.request import Batch, Handle
from qkv.generation.runner import Runner
from qkv.generation.sequence import DecodeOptions
from qkv.tasks.types import SpecialTokens
from qkv.tokenizers.vocabulary import train_vocabulary

PROMPTS = [[7, 9, 11], [7], [7, *range(20, 44)], [7, 52, 4, 60]]
NAMES = ["gqa", "latent", "parallel", "seq2seq"]


@functools.cache
def model(name: str) -> qkv.Model:
    core = zoo.made(zoo.ALL[name]()).double().requires_grad_(False)
    return qkv.Model(core, special=SpecialTokens(eos=(3,), start=1))


def free_of_all(engine: Engine) -> bool:
    return engine.pages.free == engine.pages.count - 1 and not engine.busy and not engine.batches


def says(name: str) -> Callable[[list[int], list[int]], Tensor]:
    """Log probabilities [V] after a prompt and what was written, all of it read in one pass without a cache."""
    def read(prompt: list[int], written: list[int]) -> Tensor:
        core = model(name).core
        if core.spec.encoder:
            target, source = torch.tensor([[1, *written]]), torch.tensor([prompt])
            return core(target, Inputs(source=source)).logits[0, -1].log_softmax(-1)
        start = [1] if core.spec.architecture == "prefix decoder" else []
        given = Inputs(prefix_len=torch.tensor([len(prompt)]))
        return core(torch.tensor([[*prompt, *start, *written]]), given).logits[0, -1].log_softmax(-1)
    return read


@pytest.mark.parity
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beam", [1, 3])
def test_a_shared_engine_writes_what_a_call_by_itself_writes(name, beam):
    made, how = model(name), {"max_new_tokens": 9, "beam": beam}
    engine = made.engine(tokens=512, page_size=4)
    alone = made.generate(PROMPTS, **how)
    together = made.generate(PROMPTS, engine=engine, **how)
    for found in (together, [made.generate(p, engine=engine, **how) for p in PROMPTS]):
        assert [r.tokens for r in found] == [r.tokens for r in alone]
        assert [r.finish_reason for r in found] == [r.finish_reason for r in alone]
        assert [r.logprobs for r in found] == [pytest.approx(r.logprobs, abs=1e-9) for r in alone]
    assert free_of_all(engine)


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("name", ["gqa", "seq2seq"])
def test_each_token_lists_the_likeliest_ids(name, engine):
    made, read = model(name), says(name)
    given = {"engine": made.engine(tokens=256)} if engine else {}
    for prompt, found in zip(PROMPTS, made.generate(PROMPTS, max_new_tokens=5, top_logprobs=4, **given), strict=True):
        assert len(found.top_logprobs) == len(found.tokens)
        for n, listed in enumerate(found.top_logprobs):
            best = read(prompt, found.tokens[:n]).topk(4)
            assert [token for token, _ in listed] == best.indices.tolist()
            assert [value for _, value in listed] == pytest.approx(best.values.tolist(), abs=1e-9)
            assert listed[0][0] == found.tokens[n]
    assert made.generate(PROMPTS[0], max_new_tokens=2, **given).top_logprobs == []
    assert len(made.generate(PROMPTS[0], max_new_tokens=1, top_logprobs=500, **given).top_logprobs[0]) == 97
    for wrong in ({"top_logprobs": -1}, {"top_logprobs": 2, "beam": 2}):
        with pytest.raises(QkvError):
            made.generate(PROMPTS[0], **wrong, **given)


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("beam", [1, 3])
def test_of_several_prompts_one_with_broken_logits_ends_and_others_go_on(engine, beam):
    core = zoo.made(zoo.gqa()).double().requires_grad_(False)
    core.embed.weight[50] = float("nan")
    made = qkv.Model(core)
    given = {"engine": made.engine(tokens=256)} if engine else {}
    first, broken, last = made.generate([[5, 6], [5, 50, 6], [8]], max_new_tokens=6, beam=beam, **given)
    assert (broken.finish_reason, broken.tokens) == ("error", [])
    assert broken.error
    assert broken.error.code == "logits-not-finite"
    for row, prompt in ((first, [5, 6]), (last, [8])):
        assert row.error is None
        assert row.tokens == made.generate(prompt, max_new_tokens=6, beam=beam).tokens
    for all_broken in ([5, 50], [[5, 50], [50]]):
        with pytest.raises(QkvError) as error:
            made.generate(all_broken, max_new_tokens=6, beam=beam, **given)
        assert error.value.code == "logits-not-finite"
    if engine:
        assert free_of_all(given["engine"])


def test_lines_beside_one_with_broken_logits_are_written(monkeypatch):
    tokenizer = train_vocabulary(["one two three", "four five six"], kind="bpe", size=280)
    core = zoo.made(replace(zoo.ALL["gqa"](), vocabulary=len(tokenizer))).requires_grad_(False)
    broken = set(tokenizer.encode("six")) - set(tokenizer.encode("one two"))
    core.embed.weight[sorted(broken)] = float("nan")
    monkeypatch.setattr(Common, "load_model", lambda self, name: qkv.Model(core, tokenizer))
    words = ["m", "-", "-n", "3", "--json"]
    done = CliRunner().invoke(generate.command, words, input="six\none two\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["finish_reason"] for row in rows] == ["error", "length"]
    assert isinstance(done.exception, QkvError)
    assert done.exception.code == "logits-not-finite"


def test_a_stream_that_is_closed_frees_its_pages_at_once():
    tokenizer = train_vocabulary(["one two three", "four five six"], kind="bpe", size=280)
    made = qkv.Model(zoo.made(zoo.ALL["gqa"]()), tokenizer)
    engine = made.engine(tokens=256, page_size=4, keep_prefixes=False)
    events = made.stream([5, 6], max_new_tokens=9, engine=engine)
    next(events)
    assert engine.busy
    events.close()
    assert free_of_all(engine)
    handle = engine.submit([5, 6], DecodeOptions(9))
    tokens = iter(handle)
    next(tokens)
    tokens.close()
    assert (handle.sequence.finish_reason, free_of_all(engine)) == ("cancelled", True)


@pytest.mark.parametrize("how", [{}, {"beam": 2}])
def test_an_interrupt_leaves_nothing_behind_and_the_engine_goes_on(how, monkeypatch):
    made = model("gqa")
    engine = made.engine(tokens=512, page_size=4)
    other = engine.submit([8, 9, 10], DecodeOptions(20))
    engine.step()
    calls = []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    hook = made.core.head.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.generate(PROMPTS, engine=engine, max_new_tokens=9, **how)
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        made.generate(PROMPTS, max_new_tokens=9, **how)
    hook.remove()
    assert list(engine.requests) == [other.group]
    assert other.result().tokens == made.generate([8, 9, 10], max_new_tokens=20).tokens
    assert free_of_all(engine)
    # deliberate fault: a handle that is left is not taken back
    monkeypatch.setattr(Handle, "cancel", lambda self: None)
    calls.clear()
    hook = made.core.head.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.generate(PROMPTS, engine=engine, max_new_tokens=9, **how)
    hook.remove()
    assert engine.busy


def test_a_trace_of_one_request_costs_only_its_own_passes():
    made = model("gqa")
    plain = made.generate(PROMPTS, max_new_tokens=6)
    engine = made.engine(tokens=512)
    others = [engine.submit(p, DecodeOptions(6, eos=(3,))) for p in PROMPTS[1:]]
    trace = made.trace(save=["logits", "layers.0.attn.pattern"])
    found = made.generate(PROMPTS[0], max_new_tokens=6, engine=engine, trace=trace)
    assert found.tokens == plain[0].tokens
    assert [h.result().tokens for h in others] == [r.tokens for r in plain[1:]]
    (run,) = trace.runs
    assert run.ids[0].tolist() == [*PROMPTS[0], *found.tokens[:-1]]  # nobody else's
    told = trace["logits"][0].log_softmax(-1)[-len(found.tokens) :]
    assert [float(row[t]) for row, t in zip(told, found.tokens, strict=True)] == pytest.approx(found.logprobs, abs=1e-9)
    with made.trace(save=["logits"]) as outside:
        engine.submit([5, 6], DecodeOptions(2)).result()
    assert outside.runs == []  # who listens to the caller does not hear an engine that others use
    for wrong in ({"trace": trace}, {"trace": trace, "engine": engine}):
        with pytest.raises(QkvError):
            made.generate(PROMPTS, **wrong)
    assert free_of_all(engine)


def test_prompts_that_do_not_fit_leave_nothing_behind():
    made = model("gqa")
    engine = made.engine(tokens=32, page_size=4)
    with pytest.raises(QkvError) as error:
        made.generate([[5], list(range(40))], engine=engine, max_new_tokens=4)
    assert error.value.code == "pages"
    assert free_of_all(engine)
    with pytest.raises(QkvError):
        model("latent").generate([5], engine=engine, max_new_tokens=4)


def test_memory_that_is_not_there_is_named_before(monkeypatch):
    made = model("gqa")
    each = 3 * 2 * 2 * 32 * 8  # layers, keys and values, groups, head width, bytes
    monkeypatch.setattr(engine_module, "SMALL", 0)
    monkeypatch.setattr(engine_module, "read_free_memory", lambda name: 1000 * each)
    with pytest.raises(QkvError) as error:
        made.engine(tokens=1001)
    fields = error.value.message.fields
    assert (error.value.code, fields["fits"], fields["needed"]) == ("memory", 1000, 1001 * each / (1 << 30))
    assert made.engine(tokens=1000).settings.tokens == 1000
    assert made.engine().settings.tokens == 500
    with pytest.raises(QkvError):
        Engine(made.core).submit([5], DecodeOptions(3))
    with pytest.raises(QkvError):
        made.generate([[5] * 90] * 10, max_new_tokens=20)
    assert len(made.generate([[5] * 90] * 9, max_new_tokens=20)) == 9


@pytest.mark.parametrize("name", ["gqa", "seq2seq"])
def test_a_batch_invariant_call_gives_the_bits_of_each_prompt_alone(name):
    made = qkv.Model(zoo.made(zoo.ALL[name]()).requires_grad_(False), special=SpecialTokens(start=1))
    together = made.generate(PROMPTS, max_new_tokens=7, batch_invariant=True)
    for prompt, found in zip(PROMPTS, together, strict=True):
        alone = made.generate(prompt, max_new_tokens=7, batch_invariant=True)
        assert (found.tokens, found.logprobs) == (alone.tokens, alone.logprobs)


def test_equal_prompts_draw_apart_wherever_they_are_written():
    made, how = model("gqa"), {"max_new_tokens": 8, "temperature": 1.0, "seed": 5}
    first, second = made.generate([PROMPTS[0]] * 2, **how)
    assert first.tokens != second.tokens
    for more in ({"batch_invariant": True}, {"engine": made.engine(tokens=256)}):
        found = made.generate([PROMPTS[0]] * 2, **how, **more)
        assert [r.tokens for r in found] == [first.tokens, second.tokens]


def test_a_runner_serves_the_same_calls():
    made = model("gqa")
    runner = Runner(made.engine(tokens=256))
    try:
        assert made.generate(PROMPTS[0], max_new_tokens=6, engine=runner).tokens == made.generate(
            PROMPTS[0], max_new_tokens=6).tokens
        assert list(made.stream(PROMPTS[0], max_new_tokens=6, engine=runner)) == [""] * 6
    finally:
        runner.close()


def test_rows_that_ended_leave_a_batch(monkeypatch):
    made: qkv.Model = model("gqa")
    free = [r.tokens for r in made.generate(PROMPTS, max_new_tokens=9)]
    sizes: list[int] = []
    read = Batch.read_next

    def note(self: Batch) -> Tensor:
        logits = read(self)
        sizes.append(len(logits))
        return logits

    monkeypatch.setattr(Batch, "read_next", note)
    special = SpecialTokens(eos=(free[0][-1],), start=1)
    found = qkv.Model(made.core, special=special).generate(PROMPTS, max_new_tokens=9)
    ends = [len(r.tokens) for r in found]
    assert len(set(ends)) > 1
    assert sizes == [sum(n >= step for n in ends) for step in range(1, max(ends) + 1)]


def test_an_engine_is_of_a_core_that_writes():
    assert isinstance(model("gqa").core, Transformer)
    with pytest.raises(QkvError):
        qkv.load("demo-bert", device="cpu").engine().submit([5])
