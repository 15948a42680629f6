"""The engine against the closed batch, and its promises one by one; test_schedules.py draws whole schedules."""

import functools
import threading
from dataclasses import replace

import pytest
import torch
from support import zoo

import qkv
from qkv.adapt import native
from qkv.core.model import Transformer
from qkv.core.step import active_tracer
from qkv.errors import QkvError
from qkv.generation import passes
from qkv.generation.beam import Search, beam
from qkv.generation.engine import Engine, Settings, generate
from qkv.generation.pages import Paged, Pages, Table
from qkv.generation.runner import ComputeThread, Runner
from qkv.generation.scheduler import Limits
from qkv.generation.sequence import DecodeOptions
from qkv.lens.trace import Trace
from qkv.sampling import Sampling

WRITERS = [name for name, make in zoo.ALL.items() if make().decoder and make().head]
PROMPTS = [[7, 9, 11], [7], [7, *range(4, 40)], [7, 52, 4, 60]]
TIGHT = Settings(tokens=56, page_size=4, limits=Limits(rows=4, tokens=16, beside=5))


@functools.cache
def model(name: str) -> Transformer:
    return zoo.made(zoo.ALL[name]()).double().requires_grad_(False)


def ask(name: str, **more: object) -> DecodeOptions:
    start = (1,) if zoo.ALL[name]().encoder else ()
    return DecodeOptions(**{"max_new_tokens": 9, "start": start, "blanks": (7,), "eos": (3,), **more})


@pytest.fixture(autouse=True)
def try_each_core_once(monkeypatch):
    monkeypatch.setattr(passes, "find_sizes", functools.cache(passes.find_sizes))


@pytest.mark.parity
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("tight", [False, True])
def test_requests_together_write_what_a_batch_writes(name, tight):
    core, options = model(name), ask(name)
    engine = Engine(core, TIGHT if tight else Settings())
    handles = [engine.submit(prompt, options) for prompt in PROMPTS]
    for handle, prompt in zip(handles, PROMPTS, strict=True):
        found, (wanted,) = handle.result(), generate(core, [prompt], options=options)
        assert (found.tokens, found.finish_reason) == (wanted.tokens, wanted.finish_reason)
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-9)
    if tight and not core.spec.encoder:
        assert sum(handle.group.preempted for handle in handles) > 0
    assert engine.pages.free == engine.pages.count - 1


ALIKE = [[7, 9, 11], [7, 5], [7, 52, 4, 60], [9, 3, 7, 31, 32]]


@pytest.mark.parity
@pytest.mark.parametrize("name", WRITERS)
def test_rows_that_are_copied_together_write_what_they_write_alone(name, monkeypatch):
    core, options, sizes = model(name), ask(name, eos=()), list[int]()
    join = Paged.join_slots
    monkeypatch.setattr(Paged, "join_slots", lambda self: sizes.append(len(self.texts)) or join(self))
    engine = Engine(core, Settings(page_size=2))
    engine.passes.gather = True
    handles = [engine.submit(prompt, options) for prompt in ALIKE]
    for handle, prompt in zip(handles, ALIKE, strict=True):
        found, (wanted,) = handle.result(), generate(core, [prompt], options=options)
        assert found.tokens == wanted.tokens
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-9)
    assert engine.passes.apart or max(sizes) == len(ALIKE)


def test_a_slot_too_few_in_what_is_copied_is_noticed(monkeypatch):
    join = Paged.join_slots
    monkeypatch.setattr(Paged, "join_slots", lambda self: join(self).roll(1))
    with pytest.raises(AssertionError):
        test_rows_that_are_copied_together_write_what_they_write_alone("gqa", monkeypatch)


@pytest.mark.parametrize("name", ["gqa", "seq2seq", "latent", "parallel"])
def test_beams_share_pages_and_find_what_a_batch_finds(name):
    core, options, search = model(name), ask(name), Search(3, 2, stop="bound")
    engine = Engine(core, Settings(page_size=4))
    handles = [engine.submit(prompt, options, search=search) for prompt in PROMPTS]
    most = 0
    while engine.step():
        rows = [row.table.pages for group in engine.scheduler.running for row in group.rows]
        most = max(most, sum(map(len, rows)) - len({page for pages in rows for page in pages}))
    for handle, wanted in zip(handles, beam(core, PROMPTS, search=search, options=options), strict=True):
        assert [h.tokens for h in handle.hypotheses] == [h.tokens for h in wanted]
        assert handle.hypotheses[0].score == pytest.approx(wanted[0].score, abs=1e-9)
        assert handle.result().tokens == wanted[0].tokens
    assert most > 0
    assert engine.pages.free == engine.pages.count - 1


def test_a_shared_prompt_is_read_once():
    engine, prompt = Engine(model("gqa"), Settings(page_size=4)), list(range(40))
    first = engine.submit([*prompt, 1], ask("gqa")).result()
    before = engine.passes.positions
    second = engine.submit([*prompt, 2], ask("gqa"))
    second.result()
    written = len(second.sequence.tokens) - 1
    assert engine.passes.positions - before == 1 + written
    engine.passes.positions = 0
    assert engine.submit([*prompt, 1], ask("gqa")).result().tokens == first.tokens
    off = Engine(model("gqa"), Settings(page_size=4, keep_prefixes=False))
    for n in (1, 2):
        assert off.submit([*prompt, n], ask("gqa")).result().tokens == (first if n == 1 else second.sequence).tokens
    assert off.passes.positions > 2 * len(prompt)


def test_a_source_is_read_once_and_its_cross_keys_are_made_once(monkeypatch):
    core, calls = model("seq2seq"), []
    monkeypatch.setattr(core, "encode", lambda *a, **k: calls.append(1) or type(core).encode(core, *a, **k))
    engine = Engine(core, TIGHT)
    handles = [engine.submit(prompt, ask("seq2seq"), search=Search(2)) for prompt in PROMPTS[:2]]
    [handle.result() for handle in handles]
    assert len(calls) == 2


def test_a_window_gives_back_what_it_leaves_behind():
    block = replace(zoo.gqa().decoder.blocks[0], attn=replace(zoo.gqa().decoder.blocks[0].attn,
                    mask=replace(zoo.gqa().decoder.blocks[0].attn.mask, window=6)))  # fmt: skip
    core = zoo.made(replace(zoo.gqa(), decoder=replace(zoo.gqa().decoder, blocks=(block,) * 2))).double()
    core.requires_grad_(False)
    engine, options = Engine(core, Settings(page_size=4, tokens=200)), DecodeOptions(60)
    handle, most = engine.submit([5, 6, 7], options), 0
    while engine.step():
        most = max(most, engine.pages.count - 1 - engine.pages.free)
    assert most <= 3
    assert handle.result().tokens == generate(core, [[5, 6, 7]], options=options)[0].tokens


def test_cancel_frees_pages_within_one_step_and_keeps_what_was_written():
    engine = Engine(model("gqa"), Settings(page_size=4))
    gone, stays = (engine.submit(p, ask("gqa", eos=())) for p in PROMPTS[:2])
    engine.step()
    engine.step()
    gone.cancel()
    engine.step()
    assert {page for group in engine.scheduler.running for row in group.rows for page in row.table.pages} == {
        page for page, readers in enumerate(engine.pages.readers) if readers
    }
    assert gone.result().finish_reason == "cancelled"
    assert len(gone.result().tokens) == 2
    assert len(stays.result().tokens) == 9


def test_first_come_is_first_served_and_nobody_passes_by():
    engine = Engine(model("gqa"), Settings(tokens=48, page_size=4))
    long = engine.submit(list(range(20)), ask("gqa", eos=()))
    wide = engine.submit(list(range(1, 40)), ask("gqa", eos=()))
    short = engine.submit([5], ask("gqa", eos=()))
    engine.step()
    assert [g.number for g in engine.scheduler.running] == [0]  # the short one would fit, and waits
    ends: list[int] = []
    while engine.step():
        ends += [h.group.number for h in (long, wide, short) if h.done and h.group.number not in ends]
    assert ends[0] == 0


def test_others_write_on_while_a_long_prompt_is_read_in_pieces():
    engine = Engine(model("gqa"), Settings(limits=Limits(beside=4)))
    first = engine.submit([5], ask("gqa", eos=()))
    engine.step()
    engine.submit(list(range(30)), ask("gqa"))
    for n in range(2, 6):
        before = engine.passes.count
        engine.step()
        assert engine.passes.count == before + 1  # the weights are read once for both
        assert len(first.sequence.tokens) == n
        assert engine.scheduler.running[1].rows[0].table.length == 4 * (n - 1)


def test_short_prompts_are_read_one_a_step_and_a_long_one_in_pieces():
    engine, read = Engine(model("bare"), Settings(tokens=1024)), []
    first = engine.submit([5], ask("bare", eos=(), max_new_tokens=12))
    engine.step()
    engine.scheduler.short = 25
    others = [engine.submit([n] * count, ask("bare", eos=())) for n, count in ((6, 15), (7, 25), (8, 40))]
    while not all(handle.sequence.tokens for handle in others[:2]):
        engine.step()
        read.append([sum(row.table.length for row in handle.group.rows) for handle in others])
    assert [min(15, n) for n, _, _ in read] == [15, 15]
    assert [n for _, n, _ in read] == [0, 25]
    engine.step()
    assert 0 < others[2].group.rows[0].table.length <= engine.scheduler.beside
    assert len(first.sequence.tokens) == 4


@pytest.mark.parametrize("compute_bound", [False, True])
@pytest.mark.parametrize("sizes", [(1,), (8,), (16, 32, 64), (1, 2, 4, 8, 16, 32)])
def test_tiles_hold_each_row_once_and_few_are_idle(sizes: tuple[int, ...], compute_bound: bool):
    for count in range(1, 150):
        tiles = list(passes.cut(range(count), sizes, compute_bound=compute_bound))
        assert [n for part, _ in tiles for n in part] == list(range(count))
        assert all(len(part) <= size and size in sizes for part, size in tiles)
        idle = sum(size for _, size in tiles) - count
        assert idle < (min(s for s in sizes if s >= min(8, max(sizes))) if compute_bound else max(sizes))


@pytest.mark.parametrize(("crowd", "read"), [(0, 14), (1, 30)])
def test_texts_are_read_faster_where_others_wait_for_a_row(crowd: int, read: int):
    """Beside one that writes, in tiles of 8 rows: what fills the first, or, where all rows are taken, two more."""
    engine = Engine(model("bare"), Settings(tokens=1024, limits=Limits(rows=2)))
    first = engine.submit([5], ask("bare", eos=(), max_new_tokens=20))
    engine.step()
    engine.scheduler.beside, engine.scheduler.short = 4, 16
    engine.scheduler.round_up = lambda rows: -(-rows // 8) * 8
    second, *_ = [engine.submit([n] * 50, ask("bare", eos=())) for n in range(6, 7 + crowd)]
    engine.step()
    engine.step()
    assert second.group.rows[0].table.length == read
    assert len(first.sequence.tokens) == 3


@pytest.mark.parametrize("name", ["gqa", "seq2seq"])
def test_a_trace_hears_its_own_request_and_changes_no_other(name):
    core = model(name)
    engine, side = Engine(core), "decoder." if core.spec.encoder else ""
    trace = Trace(core, save=["logits", f"{side}layers.0.attn.pattern"])
    other = engine.submit(PROMPTS[0], ask(name))
    mine = engine.submit(PROMPTS[3], ask(name), trace=trace)
    assert active_tracer.get() is None
    plain = [generate(core, [p], options=ask(name))[0] for p in (PROMPTS[0], PROMPTS[3])]
    assert [other.result().tokens, mine.result().tokens] == [r.tokens for r in plain]
    rows = trace["logits"][0].log_softmax(-1)[-len(mine.sequence.tokens) :]
    assert [float(r[t]) for r, t in zip(rows, mine.sequence.tokens, strict=True)] == pytest.approx(plain[1].logprobs)
    assert active_tracer.get() is None


def test_logits_that_are_not_finite_end_that_request_alone():
    core = zoo.made(zoo.gqa()).double().requires_grad_(False)
    core.embed.weight[50] = float("nan")
    for settings in (Settings(), Settings(batch_invariant=True)):
        engine = Engine(core, settings)
        bad, good = engine.submit([5, 50, 6], ask("gqa")), engine.submit([5, 6], ask("gqa"))
        assert good.result().tokens == generate(core, [[5, 6]], options=ask("gqa"))[0].tokens
        with pytest.raises(QkvError) as error:
            bad.result()
        assert error.value.code == "logits-not-finite"
        assert engine.pages.free == engine.pages.count - 1


def test_a_request_that_no_pool_can_hold_says_what_would_fit():
    engine = Engine(model("gqa"), Settings(tokens=40, page_size=4))
    with pytest.raises(QkvError) as error:
        engine.submit(list(range(30)), ask("gqa", max_new_tokens=20))
    assert (error.value.code, error.value.message.fields["fits"]) == ("pages", 11)
    assert len(engine.submit(list(range(30)), ask("gqa", max_new_tokens=11, eos=())).result().tokens) == 11


@pytest.mark.parametrize("prompt", [[], [97], [-1], list(range(70))])
def test_prompts_that_cannot_be_read_are_refused_at_once(prompt):
    engine = Engine(model("learned"))
    with pytest.raises(QkvError):
        engine.submit(prompt, ask("learned"))
    assert not engine.busy


def test_settings_that_hold_nothing_are_refused():
    for wrong in ({"tokens": 0}, {"page_size": 0}, {"limits": Limits(rows=9, tokens=8)}):
        with pytest.raises(QkvError):
            Settings(**wrong)


def test_a_page_written_by_one_of_two_readers_is_copied_first(monkeypatch):
    pages = Pages(9, 4, torch.device("cpu"))
    pages.store(0, torch.tensor([], dtype=torch.long), torch.empty(1, 1, 0, 2), torch.empty(1, 1, 0, 2))
    table = Table()
    assert pages.reserve(table, 6)
    table.length = 6
    child = pages.fork(table)
    assert pages.reserve(child, 7)
    assert child.pages[0] == table.pages[0]
    assert child.pages[1] != table.pages[1]
    assert pages.readers[table.pages[1]] == 1
    pages.release(table)
    pages.release(child)
    assert pages.free == 8


def test_two_engines_take_turns_in_one_thread():
    thread, written = ComputeThread(), list[int]()
    runners = [Runner(Engine(model("gqa")), thread) for _ in range(2)]
    for n, runner in enumerate(runners):
        step = runner.engine.step
        runner.engine.step = lambda n=n, step=step: (written.append(n), step())[1]
    handles = thread.submit(lambda: [r.engine.submit(PROMPTS[0], ask("gqa", eos=())) for r in runners]).result()
    found = [list(handle) for handle in handles]
    assert [e.token for e in found[0]] == [e.token for e in found[1]]
    assert written[:6] == [0, 1] * 3
    runners[0].close()
    assert [e.token for e in runners[1].submit(PROMPTS[0], ask("gqa", eos=()))] == [e.token for e in found[0]]
    assert thread.alive
    running = runners[1].submit(PROMPTS[0], ask("gqa", eos=()))
    thread.shutdown()
    assert running.done
    assert not thread.alive
    with pytest.raises(QkvError, match="takes no more"):
        thread.submit(print)


def test_calls_that_wait_are_cancelled_when_the_thread_ends():
    thread, begun, may_end = ComputeThread(), threading.Event(), threading.Event()
    first = thread.submit(lambda: (begun.set(), may_end.wait(10), 1)[2])
    begun.wait(10)
    second = thread.submit(lambda: 2)
    thread.shutdown(wait=False, cancel_futures=True)
    may_end.set()
    thread.shutdown()
    assert first.result(10) == 1
    assert second.cancelled()


def test_a_deferred_future_is_resolved_after_the_step():
    thread, stepped = ComputeThread(), threading.Event()
    runner = Runner(Engine(model("gqa")), thread)
    step, seen = runner.engine.step, list[bool]()
    runner.engine.step = lambda: (stepped.wait(10), step())[1]
    begun = thread.post(lambda: runner.engine.submit(PROMPTS[0], ask("gqa", eos=())), deferred=True)
    with pytest.raises(TimeoutError):
        begun.result(0.3)  # the step waits, and so does the answer
    stepped.set()
    assert begun.result(10).result().tokens
    wrong = thread.post(lambda: 1 / 0, deferred=True)
    with pytest.raises(ZeroDivisionError):
        wrong.result(10)
    thread.post(lambda: seen.append(True), deferred=True).result(10)  # without a step, too
    assert seen == [True]
    thread.shutdown()


def test_many_threads_share_one_runner():
    runner, found = Runner(Engine(model("gqa"))), {}

    def work(n: int) -> None:
        found[n] = [event.token for event in runner.submit(PROMPTS[n], ask("gqa"))]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [found[n] for n in range(4)] == [generate(model("gqa"), [p], options=ask("gqa"))[0].tokens for p in PROMPTS]
    broken = runner.submit([5], ask("gqa", eos=()))
    runner.engine.passes.forward = lambda *a, **k: 1 / 0
    again = runner.submit([6], ask("gqa", eos=()))
    with pytest.raises(QkvError, match="division"):
        again.result()
    assert broken.done
    runner.close()
    with pytest.raises(QkvError):
        runner.submit([5], ask("gqa"))


def test_draws_depend_on_the_seed_and_not_on_the_company():
    core, warm = model("gqa"), Sampling(1.0, seed=4)
    engine = Engine(core)
    handles = [engine.submit(p, ask("gqa"), sampling=warm) for p in PROMPTS]
    wanted = [generate(core, [p], sampling=warm, options=ask("gqa"))[0].tokens for p in PROMPTS]
    assert [h.result().tokens for h in handles] == wanted


@pytest.mark.skipif(native.library() is None, reason="no compiled kernels here")
@pytest.mark.parametrize("name", ["demo", "demo-lm"])
def test_tiles_of_every_size_agree_in_fp32(name):
    assert passes.find_sizes(qkv.load(name, device="cpu", dtype="fp32").core)[:6] == (1, 2, 4, 8, 16, 32)
