"""A student of its teachers' translations comes nearer to Multi30k's published 41.02 than each of the teachers.

Teachers are finished runs of the recipe: `qkv train multi30k_longer training.seed=0 --out T0`, and so on. Then
`bench/taught.py --teachers T0,T1,T2` has each translate the training sources (`qkv data distil`) and trains the recipe
on the true pairs and theirs; `--run DIR` is where that student lies or goes on (default: none stays).
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common import RESULTS, options, write

CLAIM = "A student of its teachers' translations comes nearer to Multi30k's published 41.02 than each of the teachers."
WU = "41.02 (transformer_tiny of Wu et al. 2021, the same files, 65M target tokens on 2 GPUs)"
TESTS = {"2016": "test.2016", "2017": "test.2017", "coco": "test.coco"}


def main() -> None:
    """Distil, train what is not trained yet, judge."""
    given = options(CLAIM, teachers=("", "their directories, commas between"), run=("", "the student's directory"))
    if not given.teachers and not given.smoke:
        raise SystemExit("--teachers: name finished runs of multi30k_longer, commas between")
    from qkv import recipes
    from qkv.cli.train import Plain

    with tempfile.TemporaryDirectory() as aside:
        folder = Path(given.run or aside)
        run = recipes.configure("demo" if given.smoke else "multi30k_longer", smoke=given.smoke)
        teachers = [Path(name) for name in given.teachers.split(",")] if given.teachers else []
        if not (folder / "train" / "result.json").exists():
            taught = replace(run, splits=partial(beside, run.splits(), ["demo"] if given.smoke else teachers))
            recipes.train(taught, out=folder, report=Plain(), resume=True)
        told = {"student": folder} | {f"teacher{n}": path for n, path in enumerate(teachers)}
        found = {name: reached(path, smoke=given.smoke) for name, path in told.items()}
        if not given.smoke and not given.out:
            shutil.copy(folder / "train" / "test.hyp", RESULTS / "taught.test2016.hyp")
    given.teachers, given.run = len(teachers), ""  # no path of this machine in the file
    write("taught", CLAIM, given, goal=41.02, anchor=WU, command="python bench/taught.py --teachers T0,T1,T2", **found)


def beside(whole: Any, teachers: Sequence[Path | str]) -> Any:
    """The data with the pairs that teachers write of the training sources beside the true ones."""
    import qkv
    from qkv.runs.distil import Teacher

    found = [Teacher(qkv.load(name)).pairs(whole.train) for name in teachers]
    return replace(whole, train=[*whole.train, *(pair for each in found for many in each for pair in many)])


def reached(directory: Path, *, smoke: bool) -> dict[str, Any]:
    """A finished run's test, the other two test sets, and what it took."""
    import qkv
    from qkv.runs.splits import shared

    result = json.loads((directory / "train" / "result.json").read_text(encoding="utf-8"))
    outcome, model, bleu = result["outcome"], qkv.load(directory), {}
    for year, key in {} if smoke else TESTS.items():
        files = tuple(str(shared("mt", "multi30k_bpe_en_de", f"{key}.{side}")) for side in ("en", "de"))
        found = model.eval(bleu=files, tokenize="none", joint="@@ ", beam=5, length_penalty=1.0)
        bleu[year] = round(found.bleu, 2)
    valid = {k: v for k, v in outcome["metrics"].items() if k != "samples"}
    return {"bleu": bleu, "test": result["test"], "valid": valid, "steps": outcome["steps"],
            "target_tokens": outcome["tokens"], "seconds": round(outcome["seconds"], 1),
            "cpu_seconds": result.get("cpu_seconds"), "weights": outcome["weights"]}  # fmt: skip


if __name__ == "__main__":
    main()
