"""Held-out ids that stand in training are found wherever they stand, and nothing else is."""

from pathlib import Path

import numpy as np
import pytest

from qkv.data import overlap as module
from qkv.data import shards
from qkv.data.overlap import RUN, count_familiar
from qkv.data.shards import Mixture


def written(folder: Path, ids: np.ndarray, vocabulary: int = 50) -> Mixture:
    return Mixture((shards.write_shard(folder, [ids.tolist()], vocabulary=vocabulary, save=lambda at: None),))


def slowly(training: Mixture, held: Mixture) -> tuple[int, int]:
    """By comparing ids themselves."""
    known = {tuple(s.ids[i : i + RUN].tolist()) for s in training.shards for i in range(len(s) - RUN + 1)}
    asked = [tuple(s.ids[i : i + RUN].tolist()) for s in held.shards for i in range(0, len(s) - RUN + 1, RUN)]
    return sum(run in known for run in asked), len(asked)


@pytest.mark.parametrize("chunk", [100, 997, 1 << 20])
@pytest.mark.parametrize("vocabulary", [2, 50, 70_000])
def test_it_finds_what_comparing_all_ids_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, vocabulary: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    draw = np.random.default_rng(3)
    train, held = (draw.integers(0, vocabulary, n) for n in (5000, 1300))
    train[123:523] = held[64:464]  # six runs, told by no border of chunks
    train[4000:4063] = held[1024:1087]  # one id too few
    train[4800:5000] = held[-300:-100]
    a, b = written(tmp_path / "a", train, vocabulary), written(tmp_path / "b", held, vocabulary)
    count, of, place = count_familiar(a, b)
    assert (count, of) == slowly(a, b)
    assert count >= 6
    assert place == f"{tmp_path / 'a'}, token 123"
    cut = Mixture((a.shards[0].select_range(100, 5000),))
    assert count_familiar(cut, b)[2] == f"{tmp_path / 'a'}, token 123"
    assert count_familiar(Mixture((a.shards[0].select_range(600, 3900),)), b) == (0, of, "")
    assert count_familiar(a, Mixture((b.shards[0].select_range(0, RUN - 1),))) == (0, 0, "")


def test_of_much_held_out_text_some_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    ids = np.random.default_rng(0).integers(0, 50, 4000)
    same = written(tmp_path / "a", ids)
    count, of, _ = count_familiar(same, same)
    assert count == of
    assert 9 <= of <= 10
