"""Draw docs/curves.png from the committed results: `python tools/curves.py`. Needs matplotlib.

Each line is the `curve` of bench/results/NAME.json, over the target tokens that the run had read; the second panel is
the three models of bench/recurrent.py, over the minutes that they took.
"""

import json
import sys
from pathlib import Path
from typing import Any

from qkv.plots import figure
from qkv.plots.forms import Lines

ROOT = Path(__file__).parents[1]
LOSS, BLEU = 1, 2  # where they stand in a point of a curve, behind its step
PANELS = (
    ("Tatoeba zh-en", "BLEU, validation", BLEU, ("tatoeba_zh_en",)),
    ("Five Chinese novels", "loss, nats a token", LOSS, ("chinese_novels",)),
    ("Tiny shakespeare", "loss, nats a character", LOSS, ("shakespeare", "shakespeare_longer", "shakespeare_longest")),
)


def points(result: dict[str, Any], column: int) -> list[tuple[float, float]]:
    """(millions of target tokens read, value) of a run's evaluations."""
    each = result["target_tokens"] / result["steps"] / 1e6
    return [(point[0] * each, point[column]) for point in result["curve"] if point[column] is not None]


def minutes(run: dict[str, Any]) -> list[tuple[float, float]]:
    """(minutes of training, BLEU) of one model's evaluations in bench/recurrent.py; its steps took equally long."""
    each = run["seconds"] / run["steps"] / 60
    return [(step * each, bleu) for step, _, bleu in run["curve"]]


def draw(results: Path, out: Path) -> None:
    """The panels side by side, two by two."""
    label = "millions of target tokens read"
    first, *others = (
        Lines(title, (), {n: points(read(results, n), column) for n in names}, x_label=label, y_label=y)
        for title, y, column, names in PANELS
    )
    race = {name: minutes(run) for name, run in read(results, "recurrent")["runs"]["seconds"].items()}
    raced = Lines("Tatoeba zh-en, equal time", (), race, x_label="minutes of one core", y_label="BLEU, validation")
    figure.save_figure(figure.draw([[first, raced], others]), out)


def read(results: Path, name: str) -> dict[str, Any]:
    """A result by its name."""
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    draw(ROOT / "bench" / "results", Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "curves.png")
