"""Multi30k En-De passes 41.02 BLEU on test2016 within 90 seconds of training on one GPU.

The recipe `multi30k_hour` with four times the tokens in a step, ended by the clock of training (compiling and moving
data included, evaluations not; `wall_seconds` has them too). `--more` takes further settings, commas between. Without a
GPU nothing is measured, and it says so.
"""

import json
import tempfile
import time
from pathlib import Path

from harness import judged, options, write
from variants import configure

GOAL = 41.02
TOLD = ("steps", "tokens", "seconds", "loss", "weights", "precision")


def main() -> None:
    """Train for the time, judge all three test sets."""
    given = options(__doc__ or "", seconds=(90.0, "of training"), tokens=(8192, "in a batch"),
                    seed=(0, "of the run"), more=("", "further settings, commas between"))  # fmt: skip
    import torch

    if not torch.cuda.is_available() and not given.smoke:
        print("skipped: no GPU here, so nothing was measured and nothing written")
        return
    from qkv.cli.train import Plain
    from qkv.training import recipes

    words = [f"training.seconds={given.seconds}", f"training.tokens={given.tokens}", f"training.seed={given.seed}",
             "training.compile=never", "training.evaluate_every=1000"]  # fmt: skip
    words += [word for word in given.more.split(",") if word]
    name, device = ("demo", "cpu") if given.smoke else ("multi30k_hour", "cuda")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        run = configure(name, [] if given.smoke else words, smoke=given.smoke)
        recipes.train(run, out=folder, device=device, report=Plain())
        wall = round(time.perf_counter() - start, 1)
        result = json.loads((Path(folder) / "train" / "result.json").read_text(encoding="utf-8"))
        bleu = {} if given.smoke else judged(Path(folder))
    gpu = None if given.smoke else torch.cuda.get_device_name()
    outcome = {key: result["outcome"][key] for key in TOLD}
    write("multi30k_gpu", __doc__ or "", given, gpu=gpu, bleu=bleu, test=result["test"], **outcome,
          wall_seconds=wall, goals={"test2016_bleu": GOAL, "seconds": 90})  # fmt: skip


if __name__ == "__main__":
    main()
