"""Trackers beside a run's own log: TensorBoard, W&B, trackio, and those of other packages.

A tracker is a function of the run's directory that gives a Report; another package names its own in the entry
points of the group `qkv.track`.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from uuid import uuid4

from qkv.errors import QkvError, nearest
from qkv.files import write_text_file
from qkv.training.run_dir import FOLDER, Event, Report, read_settings

GROUP = "qkv.track"
Tracker = Callable[[Path], Report]


def open_tracker(name: str, directory: Path) -> Report:
    """The report of a tracker, for a run in a directory.

    Raises:
        QkvError: no such tracker (with the nearest), or its library is not installed.
    """
    others = {point.name: point for point in entry_points(group=GROUP)}
    known = sorted({*OWN, *others})
    if name not in known:
        raise QkvError("--track {name}: no such tracker{hint} (known: {known}; a package can add others by the entry "
                       "points of {group})", name=name, hint=nearest(name, known), known=", ".join(known), group=GROUP)
    try:
        return (others[name].load() if name in others else OWN[name])(directory)
    except ImportError as e:
        raise QkvError("--track {name}: {e}; pip install {name}", name=name, e=e) from None


def open_tensorboard(directory: Path) -> Report:
    """Files for `tensorboard --logdir DIRECTORY/train`; of a resumed run, what it says again stands once."""
    place, open_ = str(directory / FOLDER / "tensorboard"), import_module("torch.utils.tensorboard").SummaryWriter
    writer: Any = None

    def report(event: Event) -> None:
        nonlocal writer
        found = collect_numbers(event)
        if found and writer is None:
            writer = open_(place, purge_step=event["step"])
        for name, value in found.items():
            writer.add_scalar(name, value, event["step"])
        if writer and event["kind"] != "step":  # a run may end after any of these
            writer.flush()

    return report


def tracker_of(library: str) -> Tracker:
    """A tracker by a library with the calls of W&B: init with the run's settings, log, finish."""

    def open_library(directory: Path) -> Report:
        module, begins = import_module(library), True

        def report(event: Event) -> None:
            nonlocal begins
            if begins:  # only now the run has written its settings
                said = read_settings(directory)
                project = os.environ.get("WANDB_PROJECT", "qkv")
                module.init(project=project, name=directory.name, config=said, **resume_options(library, directory))
            begins = False
            if found := collect_numbers(event):
                module.log(found, step=event["step"])
            if event["kind"] == "end":
                module.finish()

        return report

    return open_library


def resume_options(library: str, directory: Path) -> dict[str, str]:
    """The arguments by which a library continues a known run: W&B knows runs by an id, trackio by their name."""
    path = directory / FOLDER / f"{library}.id"
    again = path.is_file()
    if not again:
        write_text_file(path, uuid4().hex + "\n")
    if library == "wandb":
        return {"id": path.read_text(encoding="utf-8").strip(), "resume": "allow"}
    return {"resume": "allow" if again else "never"}


def collect_numbers(event: Event) -> dict[str, float]:
    """The numbers of an event under the names that trackers group by: train/loss, valid/bleu."""
    side = {"step": "train", "evaluation": "valid"}.get(event["kind"])
    never = ("kind", "step", "of", "eta", "best", "weights")
    if side is None or event.get("weights", "last") != "last":  # means are judged at the same step again
        return {}
    return {f"{side}/{key}": float(value) for key, value in event.items()
            if key not in never and isinstance(value, int | float)}


def join_reports(reports: Sequence[Report | None]) -> Report:
    """One report that calls all of them."""

    def report(event: Event) -> None:
        for one in filter(None, reports):
            one(event)

    return report


OWN: dict[str, Tracker] = {
    "tensorboard": open_tensorboard,
    "wandb": tracker_of("wandb"),
    "trackio": tracker_of("trackio"),
}
