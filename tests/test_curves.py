"""The picture of the committed curves: what is in it, and that it can be drawn again."""

import json
from pathlib import Path

import curves  # tools/curves.py
import pytest


def test_a_point_stands_at_the_tokens_read_so_far() -> None:
    result = {"target_tokens": 8_000_000, "steps": 400, "curve": [[100, 2.5, None], [400, 2.0, 31.5]]}
    assert curves.points(result, curves.LOSS) == [(2.0, 2.5), (8.0, 2.0)]
    assert curves.points(result, curves.BLEU) == [(8.0, 31.5)]


def test_a_race_is_drawn_over_its_minutes() -> None:
    run = {"seconds": 600.0, "steps": 200, "curve": [[100, 2.5, 3.0], [200, 2.0, 7.5]]}
    assert curves.minutes(run) == [(5.0, 3.0), (10.0, 7.5)]
    race = json.loads((curves.ROOT / "bench" / "results" / "recurrent.json").read_text(encoding="utf-8"))["runs"]
    for one in race["seconds"].values():
        assert curves.minutes(one)[-1][0] == pytest.approx(one["seconds"] / 60)


def test_the_committed_curves_are_whole_and_can_be_drawn(tmp_path: Path) -> None:
    for _, _, column, names in curves.PANELS:
        for name in names:
            result = json.loads((curves.ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))
            assert curves.points(result, column)[-1][0] == pytest.approx(result["target_tokens"] / 1e6, rel=0.1)
    pytest.importorskip("matplotlib")
    curves.draw(curves.ROOT / "bench" / "results", tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
