"""Draw docs/curves.png from the committed results: `python tools/curves.py`. Needs matplotlib.

Each line is the `curve` of bench/results/NAME.json, over the target tokens that the run had read; the second panel is
the three models of bench/recurrent.py, over the minutes that they took.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COLOURS = ("#0072b2", "#d55e00", "#009e73")  # Okabe and Ito 2008
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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.4), layout="constrained")
    first, raced, *others = figure.subplots(2, 2).flat
    for axes, (title, y, column, names) in zip((first, *others), PANELS, strict=True):
        for name, colour in zip(names, COLOURS, strict=False):
            result = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
            xs, ys = zip(*points(result, column), strict=True)
            axes.plot(xs, ys, marker="o", markersize=3, color=colour, label=name)
        axes.set(title=title, xlabel="millions of target tokens read", ylabel=y)
    race = json.loads((results / "recurrent.json").read_text(encoding="utf-8"))["runs"]["seconds"]
    for (name, run), colour in zip(race.items(), COLOURS, strict=True):
        raced.plot(*zip(*minutes(run), strict=True), marker="o", markersize=3, color=colour, label=name)
    raced.set(title="Tatoeba zh-en, equal time", xlabel="minutes of one core", ylabel="BLEU, validation")
    for axes in (first, raced, *others):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    draw(ROOT / "bench" / "results", Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "curves.png")
