"""Cached decoding equals the full forward; buffers grow by doubling; rows leave, move and are cut without a trace."""

from typing import Any

import pytest
import torch
from support import zoo
from support.rounding import assert_same

from qkv.core.cache import Cache, Static
from qkv.core.step import Inputs

DECODERS = [n for n in zoo.ALL if zoo.ALL[n]().decoder]
CHUNKS = {"one by one": [1] * 11, "in chunks": [4, 1, 3, 3], "prefill, then one by one": [8, 1, 1, 1], "in one": [11]}


def cached(core: Any, ids: torch.Tensor, chunks: list[int], cache: Static) -> torch.Tensor:
    return torch.cat([zoo.run(core, part, cache=cache, mode="decode") for part in ids.split(chunks, 1)], 1)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parity
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("name", DECODERS)
def test_cached_decoding_equals_full_forward(name: str, chunks: str) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(3, 11)
    sizes = CHUNKS[chunks]
    if sizes[0] < 3 and any(m.kind == "prefix" for m in core.decoder.masks):
        sizes = [3, *sizes[3:]]  # a free prefix sees itself whole
    assert zoo.run(core, ids).std() > 0.15
    assert_same(core, lambda c: zoo.run(c, ids), lambda c: cached(c, ids, sizes, Static(6, capacity=2)))


def test_a_cache_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Static.append

    def wrong(self: Static, layer: int, k: torch.Tensor, v: torch.Tensor) -> Any:
        keys, values = right(self, layer, k, v)
        return (keys.clone().index_fill_(2, torch.tensor([0]), 0.0), values) if keys.shape[2] > 8 else (keys, values)

    monkeypatch.setattr(Static, "append", wrong)
    with pytest.raises(AssertionError):
        test_cached_decoding_equals_full_forward("gqa", "one by one")


@pytest.mark.parity
@pytest.mark.parametrize("name", ["gqa", "window", "learned"])
def test_left_padding_equals_alone(name: str) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(3, 11)
    lengths = [8, 5, 3]
    prompt = torch.full((3, 8), 7)
    for row, n in enumerate(lengths):
        prompt[row, 8 - n :] = ids[row, :n]
    real = torch.arange(8)[None] >= 8 - torch.tensor(lengths)[:, None]
    more = torch.stack([ids[row, n : n + 3] for row, n in enumerate(lengths)])

    def padded(core: Any) -> torch.Tensor:
        cache = Static(3, capacity=4)
        out = [core(prompt, Inputs(padding_mask=real), cache=cache, mode="prefill").logits[:, -1:]]
        for part in more.split(1, 1):
            out.append(core(part, cache=cache, mode="decode").logits)
        return torch.cat(out, 1)

    def alone(core: Any) -> torch.Tensor:
        rows = [zoo.run(core, ids[row : row + 1, : n + 3])[:, n - 1 :] for row, n in enumerate(lengths)]
        return torch.cat(rows)

    assert_same(core, alone, padded)


def test_buffers_double_and_are_written_in_place() -> None:
    cache = Static(1, capacity=4)
    sizes, places = [], set()
    for _ in range(17):
        keys, _ = cache.append(0, torch.randn(2, 3, 1, 8), torch.randn(2, 3, 1, 8))
        buffer = cache.buffers[0]
        assert buffer
        sizes.append(buffer[0].shape[2])
        places.add(buffer[0].data_ptr())
        assert keys.data_ptr() == buffer[0].data_ptr(), "what append returns is a view"
    assert sorted(set(sizes)) == [4, 8, 16, 32]
    assert cache.length == 17
    assert cache.bytes == 2 * 2 * 3 * 17 * 8 * 4


def test_a_long_prefill_is_taken_whole() -> None:
    cache = Static(1, capacity=4)
    assert cache.append(0, torch.randn(1, 1, 21, 8), torch.randn(1, 1, 21, 8))[0].shape[2] == 21


@pytest.mark.parametrize("index", [[0, 1, 2], [2, 0, 0], [1, 0, 2]])
@pytest.mark.parametrize("name", ["gqa", "learned"])
def test_reordered_rows_continue_their_parents(name: str, index: list[int]) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(3, 8)
    new = zoo.words(3, 1, seed=5)

    def reordered(core: Any) -> torch.Tensor:
        cache = Static(3)
        zoo.run(core, ids, cache=cache, mode="prefill")
        cache.reorder(torch.tensor(index))
        return zoo.run(core, new, cache=cache, mode="decode")

    assert_same(core, lambda c: zoo.run(c, torch.cat((ids[index], new), 1))[:, -1:], reordered)


def test_kept_rows_go_on_and_the_memory_is_shared_by_beams() -> None:
    core, beams = zoo.made(zoo.seq2seq()), 2
    source, ids = zoo.words(3, 7, seed=9), zoo.words(3 * beams, 6)
    each, left = torch.arange(3).repeat_interleave(beams), ids[[0, 1, 4, 5]]

    def run(core: Any, part: torch.Tensor, rows: torch.Tensor, cache: Any = None) -> torch.Tensor:
        memory = core.encode(source)[rows]
        return core(part, Inputs(memory=memory), cache=cache, mode="decode").logits

    def shared(core: Any) -> torch.Tensor:
        cache = Static(2)
        first = run(core, ids[:, :4], torch.arange(3), cache)
        assert cache.memory[0][0].shape[0] == 3, "one row per source"
        cache.select_rows(torch.tensor([0, 1, 4, 5]), torch.tensor([0, 2]))
        return torch.cat((first.flatten(0, 1), run(core, left[:, 4:], torch.tensor([0, 2]), cache).flatten(0, 1)))

    def alone(core: Any) -> torch.Tensor:
        then = run(core, left, torch.tensor([0, 0, 2, 2]))[:, 4:]
        return torch.cat((run(core, ids[:, :4], each).flatten(0, 1), then.flatten(0, 1)))

    assert_same(core, alone, shared)


def test_cut_forgets_the_end() -> None:
    core, ids = zoo.made(zoo.gqa()), zoo.words(2, 9)

    def cut(core: Any) -> torch.Tensor:
        cache = Static(3)
        zoo.run(core, zoo.words(2, 8, seed=4), cache=cache)
        cache.truncate(0)
        zoo.run(core, ids[:, :6], cache=cache)
        zoo.run(core, zoo.words(2, 2, seed=4), cache=cache)
        cache.truncate(6)
        assert cache.length == 6
        return zoo.run(core, ids[:, 6:], cache=cache)

    assert_same(core, lambda c: zoo.run(c, ids)[:, 6:], cut)


def test_the_cache_that_keeps_nothing() -> None:
    k = torch.randn(1, 1, 2, 8)
    assert Cache().append(0, k, k)[0] is k
    assert Cache().length == 0


@pytest.mark.parametrize("size", [8, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [[0, 1, 2, 4], [4, 3, 2], [1], [4, 4, 0, 0, 1, 2, 3]])
def test_rows_that_go_on_keep_their_bytes(rows: list[int], dtype: torch.dtype, size: int) -> None:
    cache, keys = Static(1, capacity=8), torch.randn(5, 2, 6, size).to(dtype)
    memory = torch.randn(5, 2, 3, size).to(dtype)
    cache.append(0, keys, -keys)
    cache.get_or_compute(0, lambda: (memory.clone(), -memory))
    cache.select_rows(torch.tensor(rows), torch.tensor(rows))
    k, v = cache.append(0, keys[rows][:, :, :1], keys[rows][:, :, :1])
    assert torch.equal(k[:, :, :6], keys[rows])
    assert torch.equal(v[:, :, :6], -keys[rows])
    kept = cache.get_or_compute(0, lambda: pytest.fail("made again"))  # type: ignore[arg-type]
    assert torch.equal(kept[0], memory[rows])
    cache.reorder(torch.zeros(len(rows), dtype=torch.long))
    assert cache.buffers[0] is not None
    assert torch.equal(cache.buffers[0][0][:, :, :6], keys[rows[:1]].expand(len(rows), -1, -1, -1))
