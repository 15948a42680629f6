"""A run that records itself while it learns takes at most a tenth more time than the same run that does not.

So does one whose page is open in a browser: `live`, which needs node, web/node_modules and a Chromium.
"""

import dataclasses
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import options, write

WEB = Path(__file__).parents[1] / "web"
BLOCK = 10  # steps of one run before it is the other's turn, where a browser watches
Spent = tuple[float, float]  # seconds of the clock, seconds of the processor


def main() -> None:
    """Two runs of one recipe, step by step in turn: with records and without; their time, and equal weights."""
    given = options(
        __doc__ or "", steps=(240, "steps of each run"), recipe=("demo", "the recipe"), times=(32, "records wanted"),
        share=(0.04, "share of the training time that records may take"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        found = raced(given, Path(folder) / "records")
        live = seen_live(given, Path(folder) / "live")
    write("watching", __doc__ or "", given, **found, live=live)


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


def seen_live(given: Any, folder: Path) -> dict[str, Any]:
    """A run without records against one that a browser watches, in blocks in turn; the page's work counts too."""
    if not shutil.which("node") or not (WEB / "node_modules").is_dir():
        return {"not measured": "node or web/node_modules is missing"}
    import qkv
    from qkv.explore import server

    desk = server.Desk(["demo"], lambda name: qkv.load(name, device="cpu"), examples={"demo": ["我爱学习。"]},
                       watched=folder)  # fmt: skip
    page = server.Page(desk)
    runs = {"plain": begun(given, folder / "plain", watched=False)}
    watcher = subprocess.Popen(["node", "tests/live.mjs", page.start()], cwd=WEB, text=True, encoding="utf-8",
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        if said(watcher) != "ready":
            return {"not measured": "the browser did not start"}
        runs["live"] = begun(given, folder / "live", watched=True, hear=desk.events.send)
        spent = {name: first for name, (_, first) in runs.items()}
        shows: dict[str, Any] = {}
        for number in range((12 if given.smoke else given.steps) // BLOCK):
            for name in sorted(runs, reverse=bool(number % 2)):
                loop = runs[name][0]
                clock, processor = timed(lambda loop=loop: [(loop.step(), loop.after()) for _ in range(BLOCK)])
                if name == "live":  # the answers that the last record calls for are its price too
                    shows, rest = told(watcher, loop.watch.last)
                    processor += rest
                spent[name] = spent[name][0] + clock, spent[name][1] + processor
    finally:
        watcher.kill()
        page.stop()
    ratio = [round(b / a, 4) for a, b in zip(spent["plain"], spent["live"], strict=True)]
    return {"ratio": ratio[0], "ratio_of_processor_time": ratio[1], "limit": 1.1, "page": shows,
            "records": [row["step"] for row in runs["live"][0].watch.index["steps"]],
            "seconds": {name: [round(x, 2) for x in both] for name, both in spent.items()}}  # fmt: skip


def said(watcher: Any) -> str:
    """The next line of the browser's program."""
    return watcher.stdout.readline().strip()


def told(watcher: Any, step: int) -> tuple[dict[str, Any], float]:
    """What the page says once it shows a recorded step, and the processor's seconds that this process spent by then."""
    start = time.process_time()
    watcher.stdin.write(f"{step}\n")
    watcher.stdin.flush()
    return json.loads(said(watcher)), time.process_time() - start


def begun(given: Any, folder: Path, *, watched: bool, hear: Any = None) -> tuple[Any, Spent]:
    """A run that has begun, and the time that its beginning took over that of no record; `hear` gets its events."""
    from qkv import recipes
    from qkv.recipes import assemble, watching
    from qkv.training import log, loop

    run = recipes.configure(given.recipe, [f"watch.times={given.times}", f"watch.share={given.share}"],
                            smoke=given.smoke)  # fmt: skip
    training = dataclasses.replace(run.training, steps=given.steps, epochs=0, seconds=0.0, evaluate_every=10**9)
    run = dataclasses.replace(run, training=training)
    a = assemble.assemble(run, device="cpu")
    tell = log.reporter(folder / "train" / "log.jsonl", hear)
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
