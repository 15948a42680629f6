"""An LSTM, an LSTM with attention and a Transformer learn Tatoeba's Chinese-English: equal seconds, equal steps.

All three are trained by the same loop on the same batches with Adam; sizes and rates stand below, none was searched.
At equal seconds: BLEU of the test. At equal steps: BLEU of the validation sentences, at the last evaluation that all of
them reached. An n-gram model of the English side is counted beside them.
"""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from common import options, write

EACH = {
    "LSTM": ("model.family=lstm", "model.width=256", "model.layers=2", "training.lr=1e-3"),
    "LSTM with attention": ("model.family=lstm-attention", "model.width=256", "model.layers=2", "training.lr=1e-3"),
    "Transformer": ("training.lr=1.2e-3",),
}


def main() -> None:
    """Train the three, one after the other."""
    given = options(
        __doc__ or "", seconds=(300, "training time of each"), recipe=("tatoeba_zh_en", "the recipe"),
        every=(500, "steps between evaluations"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: trained(given, changes, Path(folder) / name) for name, changes in EACH.items()}
    last = min(r["curve"][-1][0] for r in runs.values())
    equal = {name: next(b for step, _, b in reversed(r["curve"]) if step <= last) for name, r in runs.items()}
    write(
        "recurrent", __doc__ or "", given,
        test_bleu_at_equal_seconds={name: r["test"].get("bleu") for name, r in runs.items()},
        valid_bleu_at_equal_steps={"steps": last, **equal},
        trigrams=counted(given), runs=runs,
    )  # fmt: skip


def trained(given: Any, changes: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """One of them, as `qkv train` trains it; curve: step, loss, BLEU of the validation sentences."""
    from qkv import recipes
    from qkv.cli.train import Plain

    run = recipes.configure(
        given.recipe,
        [*changes, f"training.seconds={given.seconds}", f"training.evaluate_every={given.every}",
         "training.average=0", f"training.threads={given.threads}"],
        smoke=given.smoke,
    )  # fmt: skip
    done = recipes.train(run, out=folder, report=Plain())
    log = [json.loads(x) for x in (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [[e["step"], round(e["loss"], 4), e.get("bleu")] for e in log if e["kind"] == "evaluation"]
    return {
        "changes": changes, "parameters": sum(p.numel() for p in done.model.core.parameters()),
        "seconds": round(done.outcome.seconds, 1), "steps": done.outcome.steps, "tokens": done.outcome.tokens,
        "weights": done.outcome.weights, "test": done.test, "curve": curve,
    }  # fmt: skip


def counted(given: Any) -> dict[str, Any]:
    """What trigrams of the target side are worth on the validation sentences, per token in nats."""
    from qkv import recipes
    from qkv.recipes import assemble

    a = assemble.assemble(recipes.configure(given.recipe, smoke=given.smoke), device="cpu")
    found = assemble.ngrams(a, order=3)
    return {k: v if isinstance(v, int) else round(v, 4) for k, v in found.items() if math.isfinite(v)}


if __name__ == "__main__":
    main()
