"""The weights that a run keeps: the last to resume from, the best, snapshots and their mean. Next: checkpoint.py."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.spec import as_json
from qkv.training import checkpoint, log, optim
from qkv.training.control import find_stop_reason
from qkv.training.plan import Plan
from qkv.training.settings import Settings
from qkv.training.step import OptimizerStep

Evaluate = Callable[[Transformer, int], dict[str, Any]]  # (core, step) -> metrics by name


class Checkpointing:
    """The weights that one run keeps; `at` is where it stands, which a checkpoint fills in and holds."""

    def __init__(
        self, stepper: OptimizerStep, plan: Plan, settings: Settings, folder: Path | None, evaluate: Evaluate | None,
        report: log.Report,
    ) -> None:
        self.stepper, self.settings, self.evaluate, self.report = stepper, settings, evaluate, report
        core, ranks = stepper.core, stepper.ranks
        who = {
            "spec": as_json(core.spec),
            "data": dict(plan.identity),
            "training.accumulate * processes": stepper.micro,
        }
        shared = ranks if stepper.shards else None
        self.store = checkpoint.Store(folder, who, ranks=shared, judged=plan.judged)
        self.at, self.saved = checkpoint.Progress(), -1
        self.mean = optim.Mean(checkpoint.weights(core), settings.ema) if settings.ema else None

    def begin(self, resume: bool) -> list[str]:
        """Resume from the last checkpoint, if there is one, with the same state on all processes; notes on both.

        Raises:
            QkvError: the folder holds a run that is not resumed, or another one, or the processes differ.
        """
        at, s, store, stepper, notes = self.at, self.settings, self.store, self.stepper, list[str]()
        if store.last and not resume:
            raise QkvError("{last}: there is a run here already; continue it with --resume auto, or give another --out",
                           last=store.last)
        if s.on_bad_step == "rewind" and not store.folder:
            raise QkvError("training.on_bad_step=rewind: a run without a directory has no checkpoint to go back "
                           "to")
        if stepper.ranks.first:
            store.remove_partial()
        if store.last:
            found, differences = store.resume(stepper.learner, stepper.optimizer, s, self.mean)
            vars(at).update(vars(found))
            if s.precision not in ("auto", at.precision):
                at.precision = ""  # another was asked for than the run has had so far
            self.saved = at.step
            notes = [Message("resumed after step {step}", step=at.step)]
            if why := find_stop_reason(at, s):
                notes += [Message("nothing is left to do: training.{why} ended this run; set another value to continue",
                                  why=why)]
            notes += differences
        if stepper.ranks.size > 1:
            state = json.dumps([at.step, store.identity], default=str)
            stepper.ranks.assert_same(Message("data, model or checkpoint"), state)
        if stepper.ranks.size > 1 and not stepper.shards:
            stepper.ranks.broadcast(stepper.core)
        return notes

    def rewind(self) -> None:
        """Go back to the last checkpoint, but not in the data: the steps since then, and the bad one, are not repeated.

        As Chowdhery et al. 2022, section 5.1, did by hand.
        """
        stepper, at = self.stepper, self.at
        stepper.optimizer = optim.make_optimizer(stepper.learner, self.settings)
        found, _ = self.store.resume(stepper.learner, stepper.optimizer, self.settings, self.mean)
        onward = ("epoch", "done", "seconds", "tokens", "empty", "skipped")
        vars(at).update(vars(found) | {key: getattr(at, key) for key in onward} | {"back": at.back + 1})

    def save(self, loss: float) -> None:
        """The checkpoint of this moment, unless it is on disk already."""
        at, stepper = self.at, self.stepper
        if self.saved == at.step:
            return
        at.back, at.loss = 0, loss
        outdated = self.drop_outdated()
        with stepper.ranks.barrier_on_error():
            if stepper.ranks.first or stepper.shards:
                self.store.save(stepper.learner, stepper.optimizer, at, self.settings, self.mean)
            self.delete_snapshots(outdated)  # only now: the checkpoint before names them
        self.saved = at.step

    def judge(self) -> None:
        """Evaluate, keep the weights if they are the best so far, and as a snapshot where the mean needs one."""
        at, s, core = self.at, self.settings, self.stepper.core
        if self.evaluate is not None:
            found = self.evaluate(core, at.step)
            better = s.is_better(found, at.best)
            self.report({"kind": "evaluation", "step": at.step, "epoch": at.epoch, **found, "best": better})
            warm = at.step > s.warmup  # before that, an evaluation says little about the run
            at.stale = 0 if better else at.stale + warm
            if better:
                numbers = {k: v for k, v in found.items() if isinstance(v, int | float | str)}
                at.best = {**numbers, "step": at.step}
                self.store.keep("best", core, at.best)
        if s.average:
            self.store.keep(f"snapshots/{at.step}", core, {"step": at.step})
            at.snapshots.append(at.step)
            if self.store.folder is None:
                self.delete_snapshots(self.drop_outdated())

    def drop_outdated(self) -> list[int]:
        """Take off the list, and give, the snapshots that the average at the end does without."""
        kept = self.settings.average
        outdated = self.at.snapshots[: -kept or None]
        self.at.snapshots = self.at.snapshots[-kept:] if kept else []
        return outdated

    def delete_snapshots(self, steps: Sequence[int]) -> None:
        """Let go of the weights of some steps."""
        for step in steps:
            self.store.forget(f"snapshots/{step}")

    def choose_weights(self) -> tuple[str, dict[str, Any]]:
        """Fill the core with the last weights, one of their means, or the best so far: which, and their metrics.

        Where nothing evaluates, the mean of the snapshots goes before the moving average, and that before the last.
        """
        at, core, found = self.at, self.stepper.core, dict[str, checkpoint.Tensors]()
        kept = at.snapshots[-self.settings.average :] if self.settings.average else []
        if len(kept) > 1:
            found["average"] = self.store.mean([f"snapshots/{n}" for n in kept])
        if self.mean:
            found["ema"] = self.mean.values
        if self.evaluate is None:
            chosen = next(iter(found), "last")
            if found:
                checkpoint.fill(core, found[chosen])
            return chosen, {}
        here = at.best is not None and at.best["step"] == at.step  # the last weights are the best so far
        if not found and not here:
            found["last"] = checkpoint.weights(core)
        chosen, metrics = ("best" if found else "last"), at.best
        for name, values in found.items():
            checkpoint.fill(core, values)
            one = self.evaluate(core, at.step)
            self.report({"kind": "evaluation", "step": at.step, "weights": name, **one})
            if metrics is None or self.settings.is_better(one, metrics):
                chosen, metrics = name, one
        if found:
            checkpoint.fill(core, found[chosen] if chosen in found else self.store.load_kept("best"))
        return chosen, metrics or {}
