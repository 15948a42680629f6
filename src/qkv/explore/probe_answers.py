"""What a training run recorded of itself, as answers of the page; training/probes/records.py reads the records.

Letters: S recorded steps, N matrices, W watched words.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.explore.body import Answer
from qkv.explore.question import Refused
from qkv.training.probes.records import FOLDER, ProbeLog, find_recorded_runs
from qkv.training.run_dir import LOG, read_events

POINTS = 1000  # of a curve, at most
NORMS = ("weight", "gradient", "update")


def run_key(directory: Path) -> str:
    """The name of a run in an address."""
    return "w" + hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:10]


def list_runs(folder: Path | None) -> Answer:
    """The watched runs in a folder, the one that recorded last at the end."""
    directories = find_recorded_runs(folder) if folder and folder.is_dir() else []
    directories = sorted(directories, key=lambda run: (run / FOLDER / "index.json").stat().st_mtime)
    found = [summarize_run(ProbeLog(directory)) for directory in directories]
    return Answer({"runs": found, "line": f"qkv.training.probes.records.find_recorded_runs({str(folder)!r})"})


def summarize_run(w: ProbeLog) -> dict[str, Any]:
    """A run in the list of runs."""
    return {"run": run_key(w.directory), "name": w.directory.name, "kind": w.index["kind"], "steps": len(w.steps),
            "last": max(w.steps, default=0), "texts": w.index["texts"], "words": w.index["words"]}


def open_run(folder: Path | None, name: str) -> ProbeLog:
    """The records of a run."""
    for directory in find_recorded_runs(folder) if folder and folder.is_dir() else []:
        if run_key(directory) == name:
            return ProbeLog(directory)
    raise Refused("there is no watched run {name}; train with watch.times=40", status=404, name=name)


def python_line(w: ProbeLog) -> str:
    """The Python that opens the records."""
    return f"qkv.training.probes.records.ProbeLog({str(w.directory)!r})"


def answer_run(w: ProbeLog) -> Answer:
    """The whole run: its recorded steps, its curve, the norms of every matrix and the ways of the words."""
    events = read_events(w.directory / LOG)
    loss = [[e["step"], e["loss"]] for e in events if e.get("kind") == "step" and e.get("loss") is not None]
    evaluations = [e for e in events if e.get("kind") == "evaluation"]
    scores = [{k: v for k, v in e.items() if isinstance(v, int | float)} for e in evaluations]
    arrays: dict[str, Tensor] = {n: w.series(f"matrices.{n}").float() for n in NORMS}
    arrays["moved"] = w.series("matrices.moved").to(torch.int32)
    arrays["paths"] = w.paths()
    every = -(-len(loss) // POINTS)
    return Answer(
        {**w.index, "recorded": w.steps, "loss": loss[:: every or 1], "evaluations": scores, "kept": w.kept,
         "line": python_line(w), "lines": {**{n: f'{python_line(w)}.series("matrices.{n}")' for n in (*NORMS, "moved")},
                                    "paths": f"{python_line(w)}.paths()"}},
        arrays,
    )


def answer_step(w: ProbeLog, number: str) -> Answer:
    """What was recorded at one step; arrays in u8, i32 or f32 by their names."""
    if not number.isdigit():
        raise Refused("step: expected a whole number, found {said!r}", said=number)
    r = w.read(int(number))
    whole = {torch.uint8: torch.uint8, torch.int32: torch.int32, torch.int64: torch.int32, torch.bool: torch.uint8}
    arrays = {n: (x := r[n]).to(whole.get(x.dtype, torch.float32)) for n in r.names}
    return Answer({**r.json, "line": f"{python_line(w)}.read({r.step}).json"}, arrays)
