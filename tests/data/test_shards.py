"""Token shards: what is written is what is read, whole or not at all; mixtures are functions of (seed, step)."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.data import packing, shards
from qkv.errors import QkvError


def tokenizer(word: str = "one") -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        (folder / "tokenizer.json").write_text(word, encoding="utf-8")

    return save


def made(folder: Path, first: int, tokens: int = 1000, *, vocabulary: int = 5000, word: str = "one") -> shards.Shard:
    """A shard whose ids count up from `first`, in pieces."""
    ids = list(range(first, first + tokens))
    return shards.write_shard(folder, (ids[i : i + 300] for i in range(0, tokens, 300)), vocabulary=vocabulary,
                        save=tokenizer(word))  # fmt: skip


@pytest.mark.parametrize(("vocabulary", "kind"), [(5000, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_what_is_written_is_what_is_read(tmp_path: Path, vocabulary: int, kind: str) -> None:
    made(tmp_path / "a", 7, vocabulary=vocabulary)
    shard = shards.read_shard(tmp_path / "a", verify=True)
    assert isinstance(shard.ids, np.memmap)
    assert shard.ids.tolist() == list(range(7, 1007))
    assert (len(shard), shard.index["dtype"]) == (1000, kind)
    assert shard.select_range(10, 20).select_range(2, 4).ids.tolist() == [19, 20]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a"]


def test_an_id_out_of_range_or_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QkvError, match="ids go from 4990 to 5089, expected 0 to 4999"):
        made(tmp_path / "a", 4990, 100)
    with pytest.raises(QkvError, match="no text"):
        shards.write_shard(tmp_path / "a", [], vocabulary=9, save=tokenizer())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(QkvError, match="No space left on device"):
        made(tmp_path / "a", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    made(tmp_path / "a", 0)
    with pytest.raises(QkvError, match="exists already"):
        made(tmp_path / "a", 1)
    assert shards.read_shard(tmp_path / "a").ids[0] == 0


def test_a_damaged_shard_is_told(tmp_path: Path) -> None:
    made(tmp_path / "a", 0)
    tokens = tmp_path / "a" / "tokens.bin"
    data = tokens.read_bytes()
    tokens.write_bytes(data[:-1])
    with pytest.raises(QkvError, match="found 1999 bytes, expected 2000"):
        shards.read_shard(tmp_path / "a")
    tokens.write_bytes(b"\1" + data[1:])
    assert len(shards.read_shard(tmp_path / "a")) == 1000  # only the hash tells
    with pytest.raises(QkvError, match="SHA-256"):
        shards.read_shard(tmp_path / "a", verify=True)
    (tmp_path / "a" / "index.json").write_text(json.dumps({"format": "x", "dtype": "<u2", "tokens": 1000}))
    with pytest.raises(QkvError, match="'format' is 'x'"):
        shards.read_shard(tmp_path / "a")
    with pytest.raises(QkvError, match="not a token shard"):
        shards.read_shard(tmp_path)


def test_one_shard_gives_the_windows_of_the_same_text_in_memory(tmp_path: Path) -> None:
    shard = made(tmp_path / "a", 0)
    mine = shards.Mixture((shard,)).windows(length=8, rows=6, seed=3, step=11)
    assert torch.equal(mine, packing.draw_windows(np.arange(1000), length=8, rows=6, seed=3, step=11))


def mixed(tmp_path: Path, *weights: float) -> shards.Mixture:
    return shards.Mixture((made(tmp_path / "a", 0), made(tmp_path / "b", 2000, 500)), weights)


def test_a_mixture_is_a_function_of_seed_and_step_and_keeps_its_weights(tmp_path: Path) -> None:
    mix = mixed(tmp_path, 1.0, 3.0)
    found = torch.cat([mix.windows(length=8, rows=32, seed=1, step=step) for step in range(64)])
    assert torch.equal(found[32 * 5 : 32 * 6], mix.windows(length=8, rows=32, seed=1, step=5))
    assert not torch.equal(found[:32], mix.windows(length=8, rows=32, seed=2, step=0))
    assert torch.equal(found - found[:, :1], torch.arange(9).expand_as(found))  # whole windows of one text
    share = float((found[:, 0] >= 2000).float().mean())
    assert share == pytest.approx(0.75, abs=0.04)
    by_size = shards.Mixture(mix.shards)
    assert by_size.shares.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert int(found[found[:, 0] < 2000].min()) < 30  # from the first to the last
    assert int(found[found[:, 0] < 2000].max()) > 970


def test_weights_that_are_left_out_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = mixed(tmp_path, 1.0, 3.0)
    monkeypatch.setattr(shards.Mixture, "shares", np.array([0.5, 0.5]))
    found = torch.cat([mix.windows(length=8, rows=32, seed=1, step=step) for step in range(64)])
    assert float((found[:, 0] >= 2000).float().mean()) != pytest.approx(0.75, abs=0.04)


def test_what_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    train, valid = mixed(tmp_path).split(share=0.1, most=80)
    assert [len(s) for s in (*train.shards, *valid.shards)] == [920, 450, 80, 50]
    seen = {int(i) for step in range(200) for i in train.windows(length=8, rows=8, seed=0, step=step).flatten()}
    kept = {int(i) for i in valid.held_windows(length=8, most=100).flatten()}
    assert kept
    assert not seen & kept
    assert torch.equal(valid.held_windows(length=8, most=100), valid.held_windows(length=8, most=100))


def test_bad_mixtures_are_refused(tmp_path: Path) -> None:
    one, other = made(tmp_path / "a", 0), made(tmp_path / "b", 0, word="two")
    with pytest.raises(QkvError, match="different tokenizers"):
        shards.Mixture((one, other))
    with pytest.raises(QkvError, match=r"weights: found \[1.0\] for 2 shards"):
        shards.Mixture((one, one), (1.0,))
    with pytest.raises(QkvError, match="has 5 tokens, a window needs 9"):
        shards.Mixture((one, one.select_range(0, 5))).windows(length=8, rows=2, seed=0, step=0)


def test_a_pack_whose_tokenizer_is_another_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    made(folder, 1, 5)
    assert len(shards.read_pack(folder)) == 5
    for name, text in (("tokenizer.json", "other"), ("tokenizer.json", None), ("vocab.json", "more")):
        file, old = folder / name, (folder / name).read_bytes() if (folder / name).exists() else None
        file.unlink(missing_ok=True) if text is None else file.write_text(text, encoding="utf-8")
        with pytest.raises(QkvError, match="files of its tokenizer"):
            shards.read_pack(folder)
        file.unlink(missing_ok=True) if old is None else file.write_bytes(old)
    assert len(shards.read_pack(folder)) == 5
