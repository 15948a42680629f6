"""An LSTM, an LSTM with attention and a Transformer learn Tatoeba's Chinese-English: equal seconds, equal steps.

All three are trained by the same loop on the same batches with Adam; sizes and rates stand below, none was searched.
At equal seconds and at equal steps: BLEU of the test, each in a run of its own, whose rate falls towards that very end.
An n-gram model of the English side is counted beside them. On one quiet core about 85 minutes:
`bench/recurrent.py --threads 1 --seconds 1200 --steps 3000 --every 1000`.
"""

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import options, write

EACH = {
    "LSTM": ("model.family=lstm", "model.width=256", "model.layers=2", "training.lr=1e-3"),
    "LSTM with attention": ("model.family=lstm-attention", "model.width=256", "model.layers=2", "training.lr=1e-3"),
    "Transformer": ("training.lr=1.2e-3",),
}


def main() -> None:
    """Train the three, one after the other, to each of the two ends."""
    given = options(
        __doc__ or "", seconds=(300, "training time of each"), recipe=("tatoeba_zh_en", "the recipe"),
        every=(500, "steps between evaluations"), steps=(3000, "steps of each, in another run; 0: only equal seconds"),
    )  # fmt: skip
    ends = {"seconds": f"training.seconds={given.seconds}"}
    if given.steps:
        ends["steps"] = f"training.steps={given.steps}"
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            end: {name: trained(given, (*changes, until), Path(folder) / end / name) for name, changes in EACH.items()}
            for end, until in ends.items()
        }
    write(
        "recurrent", __doc__ or "", given,
        **{f"test_bleu_at_equal_{end}": {name: r["test"].get("bleu") for name, r in of.items()}
           for end, of in runs.items()},
        trigrams=counted(given), runs=runs,
    )  # fmt: skip


def trained(given: Any, changes: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """One of them, as `qkv train` trains it; curve: step, loss, BLEU of the validation sentences."""
    from qkv.cli.train import Plain
    from qkv.training import recipes

    run = recipes.configure(
        given.recipe,
        ["training.seconds=0.0", *changes, f"training.evaluate_every={given.every}", "training.average=0",
         f"training.threads={given.threads}"],
        smoke=given.smoke,
    )  # fmt: skip
    before = time.process_time()
    done = recipes.train(run, out=folder, report=Plain())
    spent = round(time.process_time() - before, 1)
    log = [json.loads(x) for x in (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [[e["step"], round(e["loss"], 4), e.get("bleu")] for e in log if e["kind"] == "evaluation"]
    return {
        "changes": changes, "parameters": sum(p.numel() for p in done.model.core.parameters()),
        "seconds": round(done.outcome.seconds, 1), "cpu_seconds": spent,
        "steps": done.outcome.steps, "tokens": done.outcome.tokens,
        "weights": done.outcome.weights, "test": done.test, "curve": curve,
    }  # fmt: skip


def counted(given: Any) -> dict[str, Any]:
    """What trigrams of the target side are worth on the validation sentences, per token in nats."""
    from qkv.training import assemble, recipes, trivial

    a = assemble.assemble(recipes.configure(given.recipe, smoke=given.smoke), device="cpu")
    found = trivial.measure_ngrams(a, order=3)
    return {k: v if isinstance(v, int) else round(v, 4) for k, v in found.items() if math.isfinite(v)}


if __name__ == "__main__":
    main()
