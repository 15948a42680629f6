"""One run from start to end: assembled, trained, tested and kept in a directory that can go on later."""

import dataclasses
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.model import Model
from qkv.training import assemble as parts
from qkv.training import checkpoint, lock, log, loop
from qkv.training.assemble import Assembly
from qkv.training.distributed import Ranks
from qkv.training.log import Report
from qkv.training.loop import Outcome
from qkv.training.probes import watching
from qkv.training.run import PARTS, Run


@dataclass(frozen=True)
class Trained:
    """What training gives: the model with its chosen weights, how the run ended, and its numbers on the test split."""

    model: Model
    outcome: Outcome
    test: dict[str, Any]
    directory: Path | None
    rank: int = 0  # of this process among those that train together; only the first has metrics and a test


def train(
    run: Run, directory: Path | None, device: str, report: Report | None, resume: bool, ranks: Ranks
) -> Trained:
    """Train in this process, which is one of `ranks`."""
    going_on = bool(resume and directory and checkpoint.Store(directory / "train", {}).last)
    start = None if going_on else time.process_time()
    a = parts.assemble(run, directory=directory if going_on else None, device=device)
    if directory is not None and not going_on:
        refuse_others(directory)  # before the lock, which makes folders
    with lock.lock_directory(directory / "train") if directory and ranks.first else nullcontext():
        if directory is not None and not going_on:
            begin(a, directory, first=ranks.first)
        return learnt(a, directory, report, resume, ranks, start)


def learnt(
    a: Assembly, directory: Path | None, report: Report | None, resume: bool, ranks: Ranks, start: float | None
) -> Trained:
    """Train what was assembled, test it and keep what came of it; `start` is its processor time at first, if known."""
    if report and ranks.first:
        for text in (*a.splits.notes, *a.plan.notes):
            report({"kind": "note", "step": 0, "text": text})
    beside = parts.beside(a) if ranks.first else {}
    if report and beside:
        report({"kind": "note", "step": 0, "text": parts.counted(beside)})
    evaluate = parts.judge(a, directory) if ranks.first else None
    watch = watching.recorder(a) if directory and ranks.first else None
    try:
        outcome = loop.train(a.model.core, a.plan, a.run.training, directory=directory, evaluate=evaluate,
                             report=report, resume=resume, watch=watch)  # fmt: skip
    except loop.Interrupted:
        state(a, directory, first=ranks.first)
        raise
    state(a, directory, first=ranks.first)
    if not ranks.first:
        return Trained(a.model, outcome, {}, directory, ranks.rank)
    numbers, said = parts.test(a)
    if directory is not None:
        a.model.save(directory)
        spent = None if start is None else round(time.process_time() - start, 1)  # of all threads of this process
        done = {"outcome": dataclasses.asdict(outcome), "test": numbers, "cpu_seconds": spent}
        done |= {"ngrams": beside} if beside else {}
        log.record(directory / "train" / "result.json", done)
        if said:
            (directory / "train" / "test.hyp").write_text("\n".join(said) + "\n", encoding="utf-8")
    return Trained(a.model, outcome, numbers, directory)


def refuse_others(directory: Path) -> None:
    """QkvError where a run's directory would be a file, or is that of a model which is no run."""
    for path in (directory, *directory.parents):
        if path.exists() and not path.is_dir():
            raise QkvError("{path}: is a file, and the run needs a directory; give another --out", path=path)
    models = [name for name in ("config.json", "adapter_config.json") if (directory / name).exists()]
    if models and not (directory / "train" / "run.json").exists():
        raise QkvError("{directory}: holds a model that is no run, and would be written over; give another --out",
                       directory=directory)


def begin(a: Assembly, directory: Path, *, first: bool = True) -> None:
    """Write the model with its first weights and the run's settings, so that a resumed run finds its vocabulary."""
    refuse_others(directory)  # once more, now that no other process can begin here
    if checkpoint.Store(directory / "train", {}).last:
        raise QkvError("{directory}: holds a run already; go on with --resume auto or give another --out",
                       directory=directory)
    if not first:
        return
    state(a, directory)  # first, so that what is begun is known as a run, to other processes and to a second try
    a.model.save(directory)


def state(a: Assembly, directory: Path | None, *, first: bool = True) -> None:
    """Write the settings beside the run: those that it begins with, or a resumed part, which may have others."""
    if directory is None or not first:
        return
    settings = {part: dataclasses.asdict(getattr(a.run, part)) for part in PARTS}
    settings |= {"objective": a.run.objective, "base": a.run.base}
    settings |= {"data": dataclasses.asdict(a.run.data)} if a.run.data else {}
    kept = {"name": a.run.name, "notes": [*a.splits.notes, *a.plan.notes], **settings}
    log.record(directory / "train" / "run.json", kept)
