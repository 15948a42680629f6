"""A run that records itself while it learns takes at most a tenth more time than the same run that does not.

So does one whose page is open in a browser: `live`, which needs node, web/node_modules and a Chromium.
"""

import dataclasses
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import options, write

WEB = Path(__file__).parents[1] / "web"
BLOCK = 10  # steps of one run before it is the next one's turn
Spent = tuple[float, float]  # seconds of the clock, seconds of the processor


def main() -> None:
    """Three runs of one recipe, in blocks of steps in turn: plain, with records, and watched in a browser."""
    given = options(
        __doc__ or "", steps=(160, "steps of each run"), recipe=("demo", "the recipe"), times=(32, "records wanted"),
        share=(0.04, "share of the training time that records may take"),
    )  # fmt: skip
    given.steps, given.precision = 12 if given.smoke else given.steps, ""
    with tempfile.TemporaryDirectory() as folder, watching(Path(folder) / "live") as (hear, watcher):
        write("watching", __doc__ or "", given, **raced(given, Path(folder), hear, watcher))


@contextmanager
def watching(folder: Path) -> Iterator[tuple[Any, Any]]:
    """What takes the events of a run in that folder, and a browser that looks at its page; None where there is none."""
    if not shutil.which("node") or not (WEB / "node_modules").is_dir():
        yield None, None
        return
    import qkv
    from qkv.explore import server

    desk = server.Desk(["demo"], lambda name: qkv.load(name, device="cpu"), examples={"demo": ["我爱学习。"]},
                       watched=folder)  # fmt: skip
    page = server.Page(desk)
    watcher = subprocess.Popen(["node", "tests/live.mjs", page.start()], cwd=WEB, text=True, encoding="utf-8",
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        yield desk.events.send, watcher if said(watcher) == "ready" else None
    finally:
        watcher.kill()
        page.stop()


def raced(given: Any, folder: Path, hear: Any, watcher: Any) -> dict[str, Any]:
    """All runs in blocks in turn, each time another one first; what the page had to be told is a price of its run."""
    names = ["plain", "recorded", *["live"] * bool(watcher)]
    runs = {n: begun(given, folder / n, watched=n != "plain", hear=hear if n == "live" else None) for n in names}
    spent: dict[str, Spent] = {name: first for name, (_, first) in runs.items()}
    shows: dict[str, Any] = {}
    for number in range(-(-given.steps // BLOCK)):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            loop, steps = runs[name][0], min(BLOCK, given.steps - BLOCK * number)
            clock, processor = timed(lambda loop=loop, steps=steps: [(loop.step(), loop.after()) for _ in range(steps)])
            if name == "live":
                shows, rest = told(watcher, loop.recorder.last)
                processor += rest
                last = loop.recorder.last
                if shows.get("step") != last:
                    raise SystemExit(f"the page did not follow: it shows {shows}, the last record is {last}")
            spent[name] = spent[name][0] + clock, spent[name][1] + processor
    found = {name: told_of(runs[name][0], folder / name, spent[name], spent["plain"]) for name in names[1:]}
    live = {**found["live"], "page": shows} if watcher else {"not measured": "needs Node, web/node_modules, Chromium"}
    return {**found["recorded"], "limit": 1.1, "steps": given.steps, "live": live,
            "seconds": {name: [round(x, 2) for x in both] for name, both in spent.items()},
            "weights_equal_bit_for_bit": alike([loop.core for loop, _ in runs.values()])}  # fmt: skip


def told_of(loop: Any, folder: Path, spent: Spent, plain: Spent) -> dict[str, Any]:
    """The ratios of a run to the plain one (the clock's, the processor's), and its records."""
    from qkv.training.probes.records import ProbeLog

    w = ProbeLog(folder)
    size = sum(path.stat().st_size for path in w.folder.rglob("*") if path.is_file())
    ratio = [round(b / a, 4) for a, b in zip(plain, spent, strict=True)]
    return {
        "ratio": ratio[0],
        "ratio_of_processor_time": ratio[1],
        "records": w.steps,
        "weights_kept": w.kept,
        "seconds_a_record": round(loop.recorder.spent / len(w.steps), 3),
        "megabytes_on_disk": round(size / 1e6, 1),
    }


def alike(cores: list[Any]) -> bool:
    """Whether all have the same weights, bit for bit."""
    import torch

    first, *others = ([*core.parameters()] for core in cores)
    return all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def said(watcher: Any) -> str:
    """The next line of the browser's program."""
    return watcher.stdout.readline().strip()


def told(watcher: Any, step: int) -> tuple[dict[str, Any], float]:
    """What the page says once it shows a recorded step, and the processor's seconds that this process spent by then."""
    start = time.process_time()
    watcher.stdin.write(f"{step}\n")
    watcher.stdin.flush()
    return json.loads(said(watcher) or "{}"), time.process_time() - start


def begun(given: Any, folder: Path, *, watched: bool, hear: Any = None) -> tuple[Any, Spent]:
    """A run that has begun, and the time that its beginning took over that of no record; `hear` gets its events."""
    from qkv.training import assemble, loop, recipes, run_dir
    from qkv.training.probes import readings

    run = recipes.configure(given.recipe, [f"watch.times={given.times}", f"watch.share={given.share}"],
                            smoke=given.smoke)  # fmt: skip
    training = dataclasses.replace(run.training, steps=given.steps, epochs=0, seconds=0.0, evaluate_every=10**9)
    run = dataclasses.replace(run, training=training)
    a = assemble.assemble(run, device="cpu")
    tell = run_dir.open_log(folder / "train" / "log.jsonl", hear)
    found = loop.Loop(a.model.core, a.plan, run.training, folder, None, tell)
    found.at.precision = given.precision  # all runs in the first one's
    found.open(False)
    given.precision = found.at.precision
    if not watched:
        return found, (0.0, 0.0)
    watch = found.recorder = readings.make_recorder(a)
    return found, timed(lambda: watch.begin(a.model.core, folder / "train", found.at, tell))


def timed(work: Callable[[], object]) -> Spent:
    """The seconds that some work takes."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


if __name__ == "__main__":
    main()
