"""Drawn schedules of requests: under batch_invariant each writes, bit for bit, what it writes in its own engine."""

import functools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import zoo

from qkv.adapt import native, row_ops
from qkv.core.model import Transformer
from qkv.generation import pages, passes, scheduler
from qkv.generation.beam import Search
from qkv.generation.engine import BeamTables, Engine, Settings
from qkv.generation.pages import Paged
from qkv.generation.scheduler import Limits, Scheduler
from qkv.generation.sequence import DecodeOptions
from qkv.sampling import Sampling

SHARED = list(range(10, 29))
PROMPTS = [[7], [7, 5, 9], [7, *SHARED], [7, *SHARED, 4], [7, *SHARED[:9], 30, 31], [7, *range(40, 58)]]
HOW = [Sampling(), Sampling(1.0, seed=3), Sampling(0.7, top_k=5), Search(2), Search(3, stop="bound")]
NAMES = ["gqa", "latent", "window", "seq2seq", "alibi", "relative", "parallel", "experts"]
NIGHTLY = 10_000


@functools.cache
def model(name: str) -> Transformer:
    return zoo.made(zoo.ALL[name]()).requires_grad_(False)


@functools.cache
def sizes(core: Transformer) -> tuple[int, ...]:
    return passes.find_sizes(core)


@pytest.fixture(autouse=True)
def try_each_core_once(monkeypatch):
    monkeypatch.setattr(passes, "find_sizes", functools.cache(passes.find_sizes))
    for module in (pages, passes, scheduler):
        monkeypatch.setattr(module, "BLOCK", 8)  # most prompts have two
    monkeypatch.setattr(passes, "LEAST", 4)


def options(name: str, most: int) -> DecodeOptions:
    return DecodeOptions(most, start=(1,) if name in ("seq2seq", "relative") else (), eos=(3, 12))


def submit(engine: Engine, name: str, request: tuple[int, int, int]):
    prompt, how, most = request
    search = HOW[how] if isinstance(HOW[how], Search) else None
    sampling = Sampling() if search else HOW[how]
    return engine.submit(PROMPTS[prompt], options(name, most), sampling=sampling, search=search)


@functools.cache
def alone(name: str, request: tuple[int, int, int]) -> list[tuple[list[int], list[float]]]:
    """What a request writes with an engine of its own, in which all is read in one piece."""
    handle = submit(Engine(model(name), Settings(batch_invariant=True, keep_prefixes=False)), name, request)
    return written(handle, handle.result())


def written(handle, sequence) -> list[tuple[list[int], list[float]]]:
    return [(h.tokens, h.logprobs) for h in handle.hypotheses] or [(sequence.tokens, sequence.logprobs)]


requests = st.tuples(st.integers(0, len(PROMPTS) - 1), st.integers(0, len(HOW) - 1), st.sampled_from([1, 4, 9]))
arrivals = st.lists(st.tuples(requests, st.integers(0, 4), st.none() | st.integers(0, 8)), min_size=1, max_size=7)
engines = st.builds(
    lambda tokens, size, rows, budget, beside, keep: Settings(
        tokens, size, Limits(rows, max(rows, budget), beside), keep, batch_invariant=True),
    st.sampled_from([150, 180, 400]), st.sampled_from([1, 3, 4, 16]), st.integers(1, 9), st.integers(1, 40),
    st.integers(1, 20), st.booleans(),
)  # fmt: skip


def play(name: str, schedule, how: Settings) -> None:
    """Run a schedule of (request, steps since the last one, steps until it is cancelled) and hold it to `alone`."""
    engine, handles, ends = Engine(model(name), how), [], {}
    bound = sum(len(PROMPTS[p]) + most + 2 for (p, _, most), _, _ in schedule) + sum(wait for _, wait, _ in schedule)
    arrive, at = [], 0
    for request, wait, cancel in schedule:
        at += wait
        arrive.append((at, request, cancel))
    for step in range(2 * bound):
        for _, request, cancel in [a for a in arrive if a[0] == step]:
            handles.append((submit(engine, name, request), request))
            if cancel is not None:
                ends[step + cancel] = [*ends.get(step + cancel, []), handles[-1][0]]
        for handle in ends.get(step, []):
            handle.cancel()
        engine.step()
        held = sorted(page for g in engine.scheduler.running for r in g.rows for page in r.table.pages if page)
        assert sorted(page for page, n in enumerate(engine.pages.readers) for _ in range(n)) == held
        if len(handles) == len(arrive) and not engine.busy:
            break
    assert not engine.busy, "somebody starves"
    assert engine.pages.free == engine.pages.count - 1
    for handle, request in handles:
        found, wanted = written(handle, handle.result()), alone(name, request)
        if handle.cancelled:
            assert all(tokens == w[: len(tokens)] for (tokens, _), (w, _) in zip(found, wanted, strict=False))
            assert all(logprobs == w[: len(logprobs)] for (_, logprobs), (_, w) in zip(found, wanted, strict=False))
        else:
            assert found == wanted


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), arrivals, engines)
def test_any_schedule_writes_what_each_request_writes_alone(name, schedule, how):
    play(name, schedule, how)


@pytest.mark.nightly
@settings(max_examples=int(os.environ.get("QKV_SCHEDULES", NIGHTLY)), deadline=None)
@given(st.sampled_from(NAMES), arrivals, engines)
def test_ten_thousand_schedules_write_what_each_request_writes_alone(name, schedule, how):
    play(name, schedule, how)


CROWD = [((n % len(PROMPTS), 4 if n == 5 else 0, 9), n % 2, None) for n in range(7)]
PRESSED = Settings(110, 4, Limits(8, 40, 20), True, batch_invariant=True)


def test_a_crowd_under_page_pressure_preempts_and_stays_equal():
    counts = []
    preempt = Scheduler.preempt
    try:
        Scheduler.preempt = lambda self, group: counts.append(group) or preempt(self, group)
        play("gqa", CROWD, PRESSED)
    finally:
        Scheduler.preempt = preempt
    assert counts


FAULTS = {
    "rows alone are read as a batch": lambda m: m.setattr(
        passes.Tiles, "run", lambda self, plan: passes.Passes.run(self, plan)),
    "a row reads one key too many": lambda m: (
        m.setattr(Paged, "attend_compiled", lambda self, q, at: None),
        m.setattr(Paged, "fetch", lambda self, layer, n, begin=0: read_more(self, layer, n, begin))),
    "a beam reads the pages of another": lambda m: m.setattr(
        BeamTables, "select_rows", lambda self, rows, sources=None: SELECT(self, rows.flip(0), sources)),
}  # fmt: skip
if native.library():
    FAULTS["all rows together read one key too few"] = lambda m: m.setattr(
        row_ops, "attend_pages", lambda found, q, k, v, places, lengths, **how: ATTEND(
            found, q, k, v, places, [max(1, n - 1) for n in lengths], **how))
READ, SELECT, ATTEND = Paged.fetch, BeamTables.select_rows, row_ops.attend_pages


def read_more(self, layer, n, begin):
    k, v = READ(self, layer, n, begin)
    if self.texts[n].tokens > 1:  # a block
        return k, v
    return torch.cat((k, k[:, :, -1:]), 2), torch.cat((v, v[:, :, -1:]), 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deliberate_fault_is_noticed(fault, monkeypatch):
    for request, _, _ in CROWD:
        alone("gqa", request)
    play("gqa", CROWD, PRESSED)
    FAULTS[fault](monkeypatch)
    with pytest.raises(AssertionError):
        play("gqa", CROWD, PRESSED)


@pytest.mark.parametrize("how", [PRESSED, Settings(400, 3, Limits(4, 5, 1), True, batch_invariant=True)])
def test_blocks_begin_at_their_multiples_whatever_else_is_read(how, monkeypatch):
    seen, run = set(), passes.Tiles.run_pass

    def note(self, works, size=None, cache=None):
        assert size or len(works) == 1
        if size is None:
            seen.add((works[0].at, works[0].tokens))
        run(self, works, size, cache)

    monkeypatch.setattr(passes.Tiles, "run_pass", note)
    play("gqa", CROWD, how)
    assert seen == {(0, 8), (8, 8), (16, 4), (16, 5), (8, 4)}  # prompts of 20, 21 and 12; of 19, 3 are rows


def test_pages_are_found_by_texts_that_read_them_in_the_same_way():
    pool, ids = pages.Pages(40, 2, torch.device("cpu")), list(range(30))
    first = pages.Table()
    assert pool.reserve(first, 28)
    first.length = 28
    pool.give_names(first, ids, 22)  # blocks of 8, 8 and 6, then three pages by themselves
    assert pool.find_prefix(ids, b"", 22).pages == first.pages
    assert pool.find_prefix([*ids[:20], 99, 99, 99], b"", 22).pages == first.pages[:8]  # whole blocks only
    for blocks in (16, 20, 24):  # a last block that is none, or another
        assert pool.find_prefix(ids, b"", blocks).pages == first.pages[:8]
    assert pool.find_prefix(ids[:9], b"", 8).pages == first.pages[:4]
    assert pool.find_prefix(ids[:7], b"").pages == []
    assert pool.find_prefix(ids[:8], b"", 8).pages == []  # the last token is read, so its block is
