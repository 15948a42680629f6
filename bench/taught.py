"""A student of its teachers' translations passes Multi30k's published 41.02; each teacher stays below it.

Teachers are finished runs of multi30k_longer (variants.py) with seeds of their own; those of
`--back` learnt the other direction. Then `bench/taught.py --teachers T0,T1,T2` has each translate the training sources
(as `qkv data distil` does), trains the recipe on the true pairs and theirs, and ends on the true pairs alone;
`--run DIR` is where both runs lie or go on, and what the teachers wrote (default: none stays).
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness import RESULTS, judged, options, write
from variants import configure

CLAIM = "A student of its teachers' translations passes Multi30k's published 41.02; each teacher stays below it."
WU = "41.02 (transformer_tiny of Wu et al. 2021, the same files, 65M target tokens on 2 GPUs)"
STUDENT = ["model.dropout=0.2"]  # three wordings of each sentence are not soon known by heart
END = ["training.steps=1200", "training.lr=5e-4", "training.warmup=20", "training.decay=0.9", "training.ema=0.995",
       "training.evaluate_every=300", "check.sentences=1014"]  # fmt: skip


def main() -> None:
    """Distil, train what is not trained yet, judge."""
    given = options(CLAIM, teachers=("", "their directories, commas between"),
                    back=("", "directories of teachers of the other direction"), seed=(0, "of both runs"),
                    run=("", "where both runs lie, and what the teachers wrote"),
                    more=("", "further settings of both runs, commas between"))  # fmt: skip
    if not given.teachers and not given.smoke:
        raise SystemExit("--teachers: name finished runs of multi30k_longer, commas between")
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(given.run or aside)
        forth, back = ([Path(name) for name in names.split(",") if name] for names in (given.teachers, given.back))
        trained(folder, forth, back, given)
        told = {"student": folder / "true", "taught": folder / "taught"}
        told |= {f"teacher{n}": path for n, path in enumerate(forth)}
        found: dict[str, Any] = {name: reached(path, smoke=given.smoke) for name, path in told.items()}
        if not given.smoke:
            found["teachers_together"] = judged(*forth)
            found["student_and_teachers_together"] = judged(renumbered(told["taught"], forth[0], Path(aside)), *forth)
        if not given.smoke and not given.out:
            shutil.copy(folder / "true" / "train" / "test.hyp", RESULTS / "taught.test2016.hyp")
    # no path of this machine in the file
    given.teachers, given.back, given.run = len(forth), len(back), ""
    write("taught", CLAIM, given, goal=41.02, anchor=WU, command="python bench/taught.py --teachers T0,T1,T2", **found)


def trained(folder: Path, forth: Sequence[Path], back: Sequence[Path], given: Any) -> None:
    """The two runs, where they have not ended yet: with the teachers' pairs, then without."""
    from qkv.cli.train import Plain
    from qkv.training import recipes

    name, seed = "demo" if given.smoke else "multi30k_longer", f"training.seed={given.seed}"
    first, last = folder / "taught", folder / "true"
    more = given.more.split(",") if given.more else []
    if not (first / "train" / "result.json").exists():
        run = configure(name, [*STUDENT, seed, *more], smoke=given.smoke)
        pairs = partial(beside, run.splits(), ["demo"] if given.smoke else forth, back, folder)
        recipes.train(replace(run, splits=pairs), out=first, report=Plain(), resume=True)
    if not (last / "train" / "result.json").exists():
        run = configure(name, [] if given.smoke else [*more, *END, seed], smoke=given.smoke)
        recipes.train(replace(run, base=str(first)), out=last, report=Plain(), resume=True)


def beside(whole: Any, forth: Sequence[Path | str], back: Sequence[Path | str], folder: Path) -> Any:
    """The data with the pairs that teachers write of the training pairs beside the true ones."""
    import qkv
    from qkv.training.distil import Teacher

    found = [*whole.train]
    for n, name in enumerate([*forth, *back]):
        place = folder / f"teacher{n}.json"
        if not place.exists():
            how: dict[str, Any] = {} if n < len(forth) else {"writes": "source", "nbest": 2}
            many = Teacher(qkv.load(name), **how).pairs(whole.train)
            place.write_text(json.dumps([pair for each in many for pair in each]), encoding="utf-8")
        found += [(source, target) for source, target in json.loads(place.read_text(encoding="utf-8"))]
    return replace(whole, train=found)


def renumbered(student: Path, teacher: Path, folder: Path) -> Path:
    """The student with its words in the order of the teacher's vocabulary, which holds the same ones."""
    from safetensors.torch import load_file, save_file

    from qkv.tokenizers.tokenizer import load

    own, wanted = (found.vocabulary for found in map(load, (student, teacher)) if found)
    assert own.keys() == wanted.keys()
    rows = [own[word] for word in sorted(wanted, key=wanted.__getitem__)]
    shutil.copytree(teacher, folder / "renumbered", ignore=shutil.ignore_patterns("train", "model.safetensors"))
    weights = load_file(student / "model.safetensors")
    for name, found in weights.items():
        if len(found) == len(rows):
            weights[name] = found[rows].contiguous()
        elif found.shape[-1] == len(rows) and len(found) == 1:
            weights[name] = found[:, rows].contiguous()
    save_file(weights, folder / "renumbered" / "model.safetensors")
    return folder / "renumbered"


def reached(directory: Path, *, smoke: bool) -> dict[str, Any]:
    """A finished run's test, all three test sets, and what it took."""
    result = json.loads((directory / "train" / "result.json").read_text(encoding="utf-8"))
    outcome = result["outcome"]
    valid = {k: v for k, v in outcome["metrics"].items() if k != "samples"}
    return {"bleu": {} if smoke else judged(directory), "test": result["test"], "valid": valid,
            "steps": outcome["steps"], "target_tokens": outcome["tokens"], "seconds": round(outcome["seconds"], 1),
            "cpu_seconds": result.get("cpu_seconds"), "weights": outcome["weights"]}  # fmt: skip


if __name__ == "__main__":
    main()
