"""`qkv train --dry-run` tells memory within 15 % and time within 25 % of the run, on six recipes.

Each recipe is estimated in one fresh process and begun in another: so many steps, an evaluation, the whole test. The
run's peak is that process's highest resident memory; its time a step is that of the steps after the first ten.
`--clock cpu` counts the seconds of the process instead of the clock's, for a machine that others use too.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import types
from typing import Any

from harness import options, write

CLAIM = "`qkv train --dry-run` tells memory within 15 % and time within 25 % of the run, on six recipes."
RECIPES = "shakespeare demo_lm sst2 demo tatoeba_zh_en multi30k"
WARM = 10  # steps of the run that are not timed


def child(part: str, recipe: str, words: list[str], clock: str) -> dict[str, Any]:
    """What `part` (estimate or run) of a recipe gives, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--child", part, recipe, clock, *words], stdout=subprocess.PIPE,
                          check=True, text=True)  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def inside(part: str, recipe: str, clock: str, *words: str) -> dict[str, Any]:
    """The work of such a process."""
    from qkv.training import estimate, loop, recipes

    if clock == "cpu":
        loop.time = types.SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    if part == "estimate":
        start = time.perf_counter()
        return {**vars(recipes.estimate(recipe, overrides=words, device="cpu")), "took": time.perf_counter() - start}
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        trained = recipes.train(recipe, overrides=words, out=folder, device="cpu", report=told.append)
    seconds = {e["step"]: e["seconds"] for e in told if e["kind"] == "step"}
    last = max(seconds)
    return {"peak_bytes": estimate.peak_memory(trained.model.core), "precision": trained.outcome.precision,
            "seconds_per_step": (seconds[last] - seconds[WARM]) / (last - WARM), "steps": last}  # fmt: skip


def measured(recipe: str, steps: int, clock: str, more: list[str]) -> dict[str, Any]:
    """Prediction and truth of one recipe, and what the one is of the other."""
    told = child("estimate", recipe, more, clock)
    ends = [f"training.{key}=0" for key in ("epochs", "seconds", "patience")]
    words = [*more, *ends, f"training.steps={steps}", f"training.evaluate_every={steps // 2}", "training.log_every=10",
             f"training.precision={told['precision']}"]  # fmt: skip
    run = child("run", recipe, words, clock)
    keys = ("peak_bytes", "seconds_per_step")
    ratios = {f"{key}_ratio": round(told[key] / run[key], 3) for key in keys}
    print(recipe, ratios, flush=True)
    return {"told": told, "run": run, "run_seconds": run["seconds_per_step"] * told["steps"], **ratios}


def main() -> None:
    """Compare each recipe and write."""
    given = options(CLAIM, recipes=(RECIPES, "which"), steps=(80, "of the run"), clock=("wall", "wall or cpu"))
    names = ["demo_lm"] if given.smoke else given.recipes.split()
    more = ["training.tokens=256", "model.width=32", "model.ffn=64"] if given.smoke else []
    found = {name: measured(name, 20 if given.smoke else given.steps, given.clock, more) for name in names}
    within = {key: all(abs(f[f"{key}_ratio"] - 1) <= most for f in found.values())
              for key, most in (("peak_bytes", 0.15), ("seconds_per_step", 0.25))}  # fmt: skip
    write("dry_run", CLAIM, given, within=within, recipes=found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(inside(sys.argv[2], sys.argv[3], *sys.argv[4:])))
    else:
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
        main()
