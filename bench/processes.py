"""Two processes of one thread train the Multi30k recipe faster than one process of two threads, to the same loss."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import in_turn, middle, options, summary, write

WAYS = {"one process": ("training.accumulate=2",), "two processes": ("--processes", "2")}


def main() -> None:
    """Both ways in turn; tokens a second after the first steps, and the loss that they reach."""
    given = options(__doc__ or "", steps=(120, "steps of two micro-batches"), recipe=("multi30k", "the recipe"))
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: lambda name=name: trained(given, name, Path(folder)) for name in WAYS}
        turns = in_turn(runs, 1 if given.smoke else given.rounds, warm=not given.smoke)
    found = {name: [r for _, r in rows] for name, rows in turns.items()}
    speed = {name: summary([r["tokens_per_second"] for r in rows], 0) for name, rows in found.items()}
    middles = {name: middle([r["tokens_per_second"] for r in rows]) for name, rows in found.items()}
    write(
        "processes", __doc__ or "", given, tokens_per_second=speed,
        ratio=round(middles["two processes"] / middles["one process"], 3),
        loss={name: [r["loss"] for r in rows] for name, rows in found.items()}, limit="2.0: twice the cores",
    )  # fmt: skip


def trained(given: Any, name: str, folder: Path) -> dict[str, float]:
    """The last half of a short run, as its log tells it."""
    out, half = Path(tempfile.mkdtemp(dir=folder)) / "run", max(1, given.steps // 2)
    how = [f"training.steps={given.steps}", "training.seconds=0", f"training.log_every={half}",
           "training.evaluate_every=1000000", "check.sentences=2"]  # fmt: skip
    recipe = ["demo_lm", "--smoke"] if given.smoke else [given.recipe, *how]
    command = [sys.executable, "-m", "qkv.cli", "train", *recipe, *WAYS[name], "--out", str(out), "-q"]
    subprocess.run(command, check=True, capture_output=True)
    log = [json.loads(line) for line in (out / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    last = [row for row in log if row["kind"] == "step"][-1]
    return {"tokens_per_second": last["tokens_per_second"], "loss": round(last["loss"], 4)}


if __name__ == "__main__":
    main()
