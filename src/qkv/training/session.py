"""One run from start to end: assembled, trained, tested and saved to a directory from which it can resume."""

import dataclasses
import time
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from qkv.data.cache import hear_progress
from qkv.errors import QkvError
from qkv.families import Config
from qkv.files import write_text_file
from qkv.json_files import read_json
from qkv.messages import Message
from qkv.model import Model
from qkv.options import nest, replace_from_dict
from qkv.tasks.label_scores import Accuracy
from qkv.training import evaluation, loop, refit, run_dir, trivial
from qkv.training.assemble import Assembly, assemble
from qkv.training.control import Interrupted, Outcome
from qkv.training.distributed import Ranks
from qkv.training.probes import readings
from qkv.training.run import PARTS, PLAIN, Run
from qkv.training.run_dir import Report
from qkv.training.trivial import Verdict

TIMED = ("training.steps", "training.warmup", "training.evaluate_every", "model.width", "model.layers", "model.heads",
         "model.ffn", "model.dropout")  # what the speed of a machine may decide


@dataclass(frozen=True)
class Trained:
    """What training gives: the model with its chosen weights, how the run ended, and its numbers on the test split."""

    model: Model
    outcome: Outcome
    test: dict[str, Any]
    directory: Path | None
    rank: int = 0  # of this process among those that train together; only the first has metrics and a test
    verdict: Verdict | None = None  # the result beside trivial ones
    labels: Accuracy | None = None  # the scores of a classifier's labels, of the test or else of validation
    refit: Message | None = None  # how the held-out rows were learnt too, after the outcome


def train(run: Run, directory: Path | None, device: str, report: Report | None, resume: bool, ranks: Ranks) -> Trained:
    """Train in this process, which is one of `ranks`."""
    going_on = bool(resume and directory and run_dir.find_last(directory / run_dir.FOLDER))
    start = None if going_on else time.process_time()
    run = recall_choices(run, directory) if directory and going_on else run
    run = share_choices(run, ranks) if ranks.size > 1 else run

    with hear_progress(report if ranks.first else None):
        a = assemble(run, directory=directory if going_on else None, device=device)
    if directory is None:
        return train_assembly(a, None, report, resume, ranks, start)
    if not going_on:
        run_dir.refuse_others(directory)  # before the lock, which makes folders
    with run_dir.lock_directory(directory / run_dir.FOLDER) if ranks.first else nullcontext():
        if not going_on:
            run_dir.refuse_others(directory, begun=True)  # once more, now that no other process can begin here
        if not going_on and ranks.first:
            write_settings(a, directory)  # first, so that what is begun is known as a run, also to a second try
            a.model.save(directory, family=a.family)  # so that a resumed run finds its vocabulary
        return train_assembly(a, directory, report, resume, ranks, start)


def train_assembly(
    a: Assembly, directory: Path | None, report: Report | None, resume: bool, ranks: Ranks, start: float | None
) -> Trained:
    """Train what was assembled, test it and keep what came of it; `start` is its processor time at first, if known."""
    place = directory if ranks.first else None  # the first process alone writes
    notes, ngrams = [*a.splits.notes, *a.plan.notes], dict[str, Any]()
    if ranks.first and a.run.check.ngrams:
        ngrams = trivial.measure_ngrams(a, order=a.run.check.ngrams)
        notes.append(trivial.describe_ngrams(ngrams))
    for text in notes if report and ranks.first else ():
        report({"kind": "note", "step": 0, "text": text})  # type: ignore[misc]
    evaluate = evaluation.make_evaluation(a, directory) if ranks.first else None
    recorder = readings.make_recorder(a) if place and (a.run.watch.times or a.run.watch.steps) else None
    try:
        outcome = loop.train(a.model.core, a.plan, a.run.training, directory=directory, evaluate=evaluate,
                             report=report, resume=resume, recorder=recorder)
    except Interrupted:
        if place:
            write_settings(a, place)
        raise
    if place:
        write_settings(a, place)
    labels = evaluation.score_held_labels(a, []) if ranks.first and not a.splits.test else None
    learnt = refit.learn_all_rows(a, outcome.steps, report if ranks.first else None)
    if not ranks.first:
        return Trained(a.model, outcome, {}, directory, ranks.rank)
    numbers, said = evaluation.evaluate_test(a)
    labels = labels or evaluation.score_held_labels(a, said)
    verdict = trivial.judge_run(a, outcome, labels)
    if labels and numbers:
        numbers |= {"matthews": round(labels.matthews, 4), "macro_f1": round(labels.macro_f1, 4)}
    if directory is not None:
        a.model.save(directory, family=a.family)
        spent = None if start is None else round(time.process_time() - start, 1)  # of all threads of this process
        done = {"outcome": dataclasses.asdict(outcome), "test": numbers, "cpu_seconds": spent,
                "trivial": verdict.trivial, "faults": list(verdict.faults), "refit": learnt}
        done |= ({"labels": labels.record} if labels else {}) | ({"ngrams": ngrams} if ngrams else {})
        run_dir.write_json(directory / run_dir.RESULT, done)
        if said:
            write_text_file(directory / run_dir.ANSWERS, "\n".join(said) + "\n", hint=run_dir.RESUME)
    return Trained(a.model, outcome, numbers, directory, verdict=verdict, labels=labels, refit=learnt)


def recall_choices(run: Run, directory: Path) -> Run:
    """The run with what was chosen when it began, as a second choice depends on how fast the machine is by then."""
    begun = Config(read_json(directory / run_dir.SETTINGS), str(directory / run_dir.SETTINGS))
    kept, held = begun.part("chosen").values, begun.part("data").values.get("valid")
    if "data.valid" in [c.key for c in run.choices] and held != run.data.valid:  # type: ignore[union-attr]
        raise QkvError("{directory}: this run began with data.valid={held}; add that, or resume it by its folder: "
                       "qkv train {directory} --resume", directory=directory, held=held)
    return replace_from_dict(run, nest({c.key: kept[c.key] for c in run.choices if c.key in kept}))


def share_choices(run: Run, ranks: Ranks) -> Run:
    """The run with the first process's numbers, as each process has timed its own steps."""
    keys = [choice.key for choice in run.choices if choice.key in TIMED]
    own = [attrgetter(key)(run) for key in keys]
    shared = ranks.broadcast_numbers(*own)
    return replace_from_dict(run, nest({key: type(n)(m) for key, n, m in zip(keys, own, shared, strict=True)}))


def write_settings(a: Assembly, directory: Path) -> None:
    """Write the settings beside the run: those that it begins with, or a resumed part, which may have others."""
    kept: dict[str, Any] = {"name": a.run.name, "notes": [*a.splits.notes, *a.plan.notes]}
    for part in (*PARTS, *PLAIN, *(["data"] if a.run.data else [])):
        value = getattr(a.run, part)
        kept[part] = value if part in PLAIN else dataclasses.asdict(value)
    chosen = {choice.key: attrgetter(choice.key)(a.run) for choice in a.run.choices}
    kept |= {"chosen": chosen} if chosen else {}
    run_dir.write_json(directory / run_dir.SETTINGS, kept)
