"""A run that records itself while it learns takes at most a tenth more time than the same run that does not."""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import options, write

Spent = tuple[float, float]  # seconds of the clock, seconds of the processor


def main() -> None:
    """Two runs of one recipe, step by step in turn: with records and without; their time, and equal weights."""
    given = options(
        __doc__ or "", steps=(240, "steps of each run"), recipe=("demo", "the recipe"), times=(32, "records wanted"),
        share=(0.04, "share of the training time that records may take"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        found = raced(given, Path(folder))
    write("watching", __doc__ or "", given, **found)


def raced(given: Any, folder: Path) -> dict[str, Any]:
    """Both runs in turn, each time the other one first."""
    import torch

    from qkv.training.watch import Watched

    runs = {name: begun(given, folder / name, watched=name == "watched") for name in ("plain", "watched")}
    spent: dict[str, Spent] = {name: first for name, (_, first) in runs.items()}
    steps = 6 if given.smoke else given.steps
    for number in range(steps):
        for name in sorted(runs, reverse=bool(number % 2)):
            loop = runs[name][0]
            clock, processor = timed(lambda loop=loop: (loop.step(), loop.after()))
            spent[name] = spent[name][0] + clock, spent[name][1] + processor
    w = Watched(folder / "watched")
    cores = [loop.core for loop, _ in runs.values()]
    pairs = zip(*(core.parameters() for core in cores), strict=True)
    ratio = [round(b / a, 4) for a, b in zip(spent["plain"], spent["watched"], strict=True)]
    size = sum(path.stat().st_size for path in (folder / "watched" / "train" / "watch").rglob("*") if path.is_file())
    return {
        "seconds": {name: round(clock, 2) for name, (clock, _) in spent.items()},
        "processor_seconds": {name: round(processor, 2) for name, (_, processor) in spent.items()},
        "ratio": ratio[0], "ratio_of_processor_time": ratio[1], "limit": 1.1, "steps": steps, "records": w.steps,
        "weights_kept": w.kept, "megabytes_on_disk": round(size / 1e6, 1),
        "seconds_a_record": round(w.index["spent"] / len(w.steps), 3),
        "weights_equal_bit_for_bit": all(torch.equal(a, b) for a, b in pairs),
    }  # fmt: skip


def begun(given: Any, folder: Path, *, watched: bool) -> tuple[Any, Spent]:
    """A run that has begun, and the time that its beginning took over that of no record."""
    from qkv import recipes
    from qkv.recipes import assemble, watching
    from qkv.training import log, loop

    run = recipes.configure(given.recipe, [f"watch.times={given.times}", f"watch.share={given.share}"],
                            smoke=given.smoke)  # fmt: skip
    training = dataclasses.replace(run.training, steps=given.steps, epochs=0, seconds=0.0, evaluate_every=10**9)
    run = dataclasses.replace(run, training=training)
    a = assemble.assemble(run, device="cpu")
    tell = log.reporter(folder / "train" / "log.jsonl", None)
    found = loop.Loop(a.model.core, a.plan, run.training, folder, None, tell)
    found.begin(False)
    if not watched:
        return found, (0.0, 0.0)
    found.watch = watching.recorder(a)
    assert found.watch is not None
    return found, timed(lambda: found.watch.begin(a.model.core, folder / "train", found.at))


def timed(work: Callable[[], object]) -> Spent:
    """The seconds that some work takes."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


if __name__ == "__main__":
    main()
