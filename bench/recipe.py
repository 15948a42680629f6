"""A recipe trained in its time reaches its quality: Multi30k En-De >= 36.0 BLEU on test2016 in 30 minutes on 2 cores.

`bench/recipe.py --name multi30k` (or tatoeba_zh_en, …) trains and writes bench/results/<run>.json and the hypotheses
beside it; `--run DIR` writes the same from a run that `qkv train` made.
"""

import json
import shutil
import tempfile
from pathlib import Path

from common import RESULTS, options, write

CLAIM = "A recipe trained in its time reaches its quality."
WU = "41.02 (transformer_tiny of Wu et al. 2021, the same files, 65M target tokens on 2 GPUs)"
ANCHORS = {"multi30k_en_de": WU, "multi30k_longer_en_de": WU}
GOALS = {"multi30k_en_de": 36.0, "multi30k_longer_en_de": 41.02}


def main() -> None:
    """Train (or read) the run and write what it reached."""
    given = options(
        CLAIM, name=("multi30k", "the recipe"), run=("", "a finished run's directory: only write its numbers")
    )
    from qkv import recipes
    from qkv.cli.train import Plain

    run = recipes.configure("demo_lm" if given.smoke else given.name, smoke=given.smoke)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(given.run or folder)
        if not given.run:
            recipes.train(run, out=directory, report=Plain())
        result = json.loads((directory / "train" / "result.json").read_text(encoding="utf-8"))
        log = [json.loads(x) for x in (directory / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        hypotheses = directory / "train" / "test.hyp"
        if hypotheses.exists() and not given.smoke:
            shutil.copy(hypotheses, RESULTS / f"{run.name}.test2016.hyp" if "multi30k" in run.name
                        else RESULTS / f"{run.name}.test.hyp")  # fmt: skip
    given.run = directory.name if given.run else ""  # no path of this machine in a committed file
    outcome, test = result["outcome"], result["test"]
    key = "test2016_bleu" if "multi30k" in run.name else "test_bleu"
    curve = [[e["step"], e.get("loss"), e.get("bleu")] for e in log if e["kind"] == "evaluation"]
    write(
        run.name if not given.smoke else "recipe", CLAIM, given, command=f"python bench/recipe.py --name {given.name}",
        **({key: test["bleu"]} if "bleu" in test else {}), test=test, valid=outcome["metrics"].get("loss"),
        beam=run.check.beam,
        seconds=round(outcome["seconds"], 1), steps=outcome["steps"], epochs=round(outcome["epochs"], 2),
        target_tokens=outcome["tokens"], precision=outcome["precision"], weights=outcome["weights"],
        goal=GOALS.get(run.name), anchor=ANCHORS.get(run.name), curve=curve,
    )  # fmt: skip


if __name__ == "__main__":
    main()
