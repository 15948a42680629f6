"""Beside another program, threads that give way soon read twice the text; on idle cores they lose little or nothing.

GNU's OpenMP lets threads that wait for each other keep their core for 300,000 rounds of a loop, unless GOMP_SPINCOUNT
says otherwise; where nobody did, `qkv` says 5000, and 1000 where other programs run as it starts. Each kind runs in
processes of its own, in turn, on idle cores and beside one process that keeps a core busy: a step of tiny shakespeare's
recipe, a step of the published Multi30k shape, tokens of `demo-lm`, and the target tokens of `qkv train demo`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import options, summary, write

KINDS = {"300000": "300000", "1000": "1000", "5000": "5000"}
BUSY = "x = 0\nwhile True: x += 1"


def main() -> None:
    """Each kind in turn, on idle cores and beside a neighbour."""
    given = options(__doc__ or "", child=(False, "measure in this process"))
    if given.child:
        print(json.dumps(measured(given.threads, smoke=given.smoke)))
        return
    kinds = {**KINDS, "one thread": "5000"}
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for _ in range(given.rounds):
        for place in ("idle", "beside a neighbour"):
            for name, spins in kinds.items():
                one = asked(spins, 1 if name == "one thread" else given.threads, given.smoke, place != "idle")
                found.setdefault(place, {}).setdefault(name, []).append(one)
    told = {place: {name: {key: summary([one[key] for one in rows], 2) for key in rows[0]}
                    for name, rows in each.items()} for place, each in found.items()}  # fmt: skip
    write("neighbour", __doc__ or "", given, **{place.replace(" ", "_"): each for place, each in told.items()})


def asked(spins: str, threads: int, smoke: bool, busy: bool) -> dict[str, float]:
    """What processes of their own measure."""
    environ = os.environ | {"GOMP_SPINCOUNT": spins}
    environ.pop("OMP_WAIT_POLICY", None)
    child = [sys.executable, __file__, "--child", "--threads", str(threads), *(["--smoke"] if smoke else [])]
    train = ["training.steps=40", "training.seconds=0", "training.log_every=10", "training.evaluate_every=0"]
    neighbour = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        done = subprocess.run(child, env=environ, capture_output=True, text=True, check=True)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "qkv", "train", "demo", *train, f"training.threads={threads}"]
            subprocess.run([*command, "--out", folder + "/run"], env=environ, capture_output=True, check=True)
            log = (Path(folder) / "run" / "train" / "log.jsonl").read_text(encoding="utf-8")
    finally:
        if neighbour:
            neighbour.kill()
            neighbour.wait()
    rates = sorted(row["tokens_per_second"] for row in map(json.loads, log.splitlines()) if "tokens_per_second" in row)
    return json.loads(done.stdout.splitlines()[-1]) | {"train_demo_tokens_per_second": rates[len(rates) // 2]}


def measured(threads: int, *, smoke: bool) -> dict[str, float]:
    """Milliseconds of a step of two recipes' shapes, and tokens a second."""
    import torch

    import qkv
    from qkv import memory

    torch.set_num_threads(threads)
    memory.keep_freed()
    shapes: dict[str, tuple[Any, ...]] = {  # family, layers, ffn, words, rows, tokens in a row
        "shakespeare": ("gpt2", 4, 512, 65, 12, 64), "multi30k": ("marian", 4, 256, 9000, 110, 18),
    }  # fmt: skip
    found = {f"{name}_ms": step(*shape, steps=3 if smoke else 30) for name, shape in shapes.items()}
    model, size = qkv.load("demo-lm"), 4 if smoke else 100
    rates = [model.generate("One, two,", max_new_tokens=size).timing["tokens_per_second"] for _ in range(4)]
    return found | {"demo_lm_tokens_per_second": sorted(rates)[2]}


def step(family: Any, layers: int, ffn: int, words: int, rows: int, long: int, *, steps: int) -> float:
    """Milliseconds of a training step in bf16: the median of the steps that 10 seconds allow, or of `steps`."""
    import torch

    from qkv.core.init import initialise
    from qkv.core.model import Transformer
    from qkv.data import collate
    from qkv.training.loop import ENDLESS, Loop
    from qkv.training.plan import Plan
    from qkv.training.settings import Settings
    from qkv.training.shape import Shape

    core = Transformer(Shape(family, 128, layers, 4, ffn=ffn, dropout=0.1, context=64).spec(words)).train()
    initialise(core)
    ids = torch.randint(3, words, (rows, long + 1), generator=torch.Generator().manual_seed(0))
    pairs = [(row[1:], row[1:]) for row in ids.tolist()]
    batch = collate.collate_windows(ids) if family == "gpt2" else collate.collate_pairs(pairs, pad=0, start=0)
    run = Loop(core, Plan(lambda _: range(steps + 2), lambda _: batch),
               Settings(steps=steps + 2, precision="bf16", optimizer="muon", log_every=ENDLESS), None, None,
               lambda _: None)  # fmt: skip
    run.order, run.each, run.at.precision = run.groups(0), steps + 2, "bf16"
    spent, start = list[float](), time.perf_counter()
    while len(spent) < steps + 2 and (len(spent) < 4 or time.perf_counter() - start < 10):
        before = run.at.seconds
        run.step()
        spent.append(1e3 * (run.at.seconds - before))
    return sorted(spent[2:])[len(spent[2:]) // 2]


if __name__ == "__main__":
    main()
