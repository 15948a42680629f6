"""Runs as they lie on disk, read for comparison: what each did, what it reached, in which settings it differs, and its
curves."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, nearest
from qkv.training.run_dir import FOLDER, LOG, RESULT, Event, read_events, read_object, read_settings

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Summary:
    """One run: how far it came, how fast, its best `metric` on validation and on its test, its last training loss.

    `kept` is all that was measured of the weights of `best`; `ended` is empty where it did not; `settings` are by
    `part.key`, `events` is its log.
    """

    name: str
    steps: int
    tokens: int | None
    seconds: float
    speed: float | None  # tokens a second
    metric: str
    best: float | None
    test: float | None
    loss: float | None
    ended: str
    kept: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(repr=False, default_factory=dict)
    events: list[Event] = field(repr=False, default_factory=list)

    def curve(self, metric: str, x: str = "steps") -> Points:
        """(x, value) of a metric of its evaluations; `train_loss` is that of its steps."""
        found, seconds = Points(), 0.0
        for event in self.events:
            seconds = event.get("seconds", seconds) if event["kind"] == "step" else seconds
            kind, key = ("step", "loss") if metric == "train_loss" else ("evaluation", metric)
            value = event.get(key) if event["kind"] == kind else None
            if isinstance(value, int | float):
                found.append((float(event.get("step", 0) if x == "steps" else seconds), float(value)))
        return found

    @property
    def task(self) -> str:
        """What it learns: its objective, or the usual one of its data or family."""
        from qkv.training.shape import LEARNT_BY

        usual = LEARNT_BY.get(self.settings.get("model.family", ""), "")
        said = self.settings.get("objective") or ("chat" if self.settings.get("data.messages") else usual)
        return str(said or ("as its base" if self.settings.get("base") else ""))

    @property
    def metrics(self) -> list[str]:
        """What its log holds as numbers, evaluations first."""
        said = [k for e in self.events if e["kind"] == "evaluation" for k, v in e.items() if is_number(v)]
        left = ("step", "epoch", "best")
        return [*dict.fromkeys(k for k in said if k not in left), "train_loss"]


def is_number(value: Any) -> bool:
    """Whether a value is a number and not a yes or no."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def find_runs(folder: Path) -> list[Path]:
    """The directories of runs in a folder and below it, or the folder itself, by name.

    Raises:
        QkvError: no such folder, or no run in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise QkvError("{folder}: no such folder; qkv train writes runs into runs/, or where --out says", folder=folder)
    both = {*folder.rglob(str(LOG)), *folder.glob(str("*" / LOG))}  # rglob enters no link to a folder
    found = sorted(path.parents[1] for path in both)
    if not found:
        raise QkvError("{folder}: no run in it or below it, expected folders with {log} in them", folder=folder,
                       log=LOG.as_posix())
    return found


def read_run(directory: Path, name: str = "") -> Summary:
    """The summary of the run in a directory; a log that a crash cut off is read up to there."""
    events = read_events(directory / LOG)
    steps = [e for e in events if e["kind"] == "step"]
    ends = [e for e in events if e["kind"] == "end"]
    last = max((e.get("step", 0) for e in events), default=0)
    end = ends[-1] if ends and ends[-1].get("step", 0) == last else {}
    seconds = end.get("seconds") or (steps[-1].get("seconds", 0.0) if steps else 0.0)
    tokens = end.get("tokens") or saved_tokens(directory)
    settings = effective_settings(read_settings(directory))
    metric = str(settings.get("training.metric", "loss"))
    test = read_object(directory / RESULT).get("test")
    reached = test.get(metric) if end and isinstance(test, Mapping) else None  # of what ended; a resumed run goes on
    bests = [e for e in events if e["kind"] == "evaluation" and e.get("best") and is_number(e.get(metric))]
    bests += [metrics] if is_number((metrics := end.get("metrics") or {}).get(metric)) else []  # of the weights it kept
    speed = tokens / seconds if tokens and seconds else next(
        (e["tokens_per_second"] for e in reversed(steps) if is_number(e.get("tokens_per_second"))), None
    )
    measured = {k: v for k, v in bests[-1].items() if is_number(v) and k not in ("step", "epoch")} if bests else {}
    losses = [e["loss"] for e in steps if is_number(e.get("loss"))]
    return Summary(
        name or directory.name, last, tokens, float(seconds), speed, metric, bests[-1][metric] if bests else None,
        reached if is_number(reached) else None, losses[-1] if losses else None, end.get("why", ""), measured, settings,
        events,
    )


def effective_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that a run went by: one with a base has that model's shape and vocabulary, but a context."""
    if not settings.get("base"):
        return settings
    theirs = ("tokenizer.kind", "tokenizer.size")
    return {k: v for k, v in settings.items() if k == "model.context" or not (k.startswith("model.") or k in theirs)}


def differing(runs: Sequence[Summary]) -> list[dict[str, Any]]:
    """For each run the settings in which it is not as most are (as the first, where none are more)."""
    found: list[dict[str, Any]] = [{} for _ in runs]
    for key in dict.fromkeys(key for run in runs for key in run.settings if not key.startswith("chosen.")):
        said = [json.dumps(run.settings[key]) if key in run.settings else None for run in runs]
        usual = Counter(value for value in said if value is not None).most_common(1)[0][0]
        for one, run, value in zip(found, runs, said, strict=True):
            if value not in (None, usual):  # an older version did not know the key
                one[key] = run.settings[key]
    return found


def saved_tokens(directory: Path) -> int | None:
    """The tokens that a run's checkpoint counts, where it has one."""
    from safetensors import SafetensorError, safe_open

    try:
        if (parts := directory / FOLDER / "last.json").is_file():
            return int(read_object(parts)["progress"]["tokens"])
        if not (whole := directory / FOLDER / "last.safetensors").is_file():
            return None
        with safe_open(str(whole), framework="pt") as file:
            return int(json.loads((file.metadata() or {}).get("state", ""))["progress"]["tokens"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None


def summaries(folder: Path) -> list[Summary]:
    """The runs of a folder; names are paths below it."""
    folder, found = Path(folder), find_runs(folder)
    return [read_run(path, path.relative_to(folder).as_posix() if path != folder else folder.resolve().name)
            for path in found]


def shared_metric(runs: Sequence[Summary], metric: str = "") -> str:
    """The metric that is drawn: the one asked for, else the first that most runs evaluated more than once.

    Raises:
        QkvError: no run has the metric that was asked for; the nearest is named.
    """
    known = list(dict.fromkeys(name for run in runs for name in run.metrics))
    if metric:
        if metric not in known:
            raise QkvError("--metric {metric}: no run has it{hint} (there are: {known})", metric=metric,
                           hint=nearest(metric, known), known=", ".join(known))
        return metric
    counts = {name: sum(len(run.curve(name)) > 1 for run in runs) for name in known}
    return max(counts, key=lambda name: (counts[name], name != "train_loss", name == "loss"))
