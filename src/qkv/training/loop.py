"""The training loop on a page: order, batch, loss, step; evaluate, keep, save, resume. Everything else is a pure part.

step.py makes one optimiser step, checkpoint.py keeps weights, control.py says when to stop. Where several processes
train (distributed.py), each does this on its share of a step; the first one evaluates and writes.
"""

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.core.model import Transformer
from qkv.data.collate import Batch
from qkv.devices import keep_freed
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training import checkpoint, control, distributed, machine, run_dir, schedule
from qkv.training.checkpoint import Checkpoints, Evaluate
from qkv.training.control import Interrupted, NonFinite, Outcome, find_fault, find_stop_reason
from qkv.training.load_balancing import measure_imbalance
from qkv.training.plan import Plan
from qkv.training.probes.recorder import Recorder
from qkv.training.run_dir import Report
from qkv.training.settings import Settings
from qkv.training.step import Gradients, OptimizerStep

WARM = 10  # steps after which the speed is known
ENDLESS = 10**9
WINDOW = 64  # good steps that a step is compared with
ROW = 3  # bad steps one after another, after which a run that skips them stops all the same
KEPT = 20  # files of bad batches at most


def train(
    core: Transformer, plan: Plan, settings: Settings, *, directory: Path | str | None = None,
    evaluate: Evaluate | None = None, report: Report | None = None,
    stop: Callable[[int], bool] | None = None, resume: bool = False, recorder: Recorder | None = None,
) -> Outcome:
    """Train `core` in place; without `directory` nothing is written.

    `resume` continues from the directory's last checkpoint if there is one. `recorder` records the run in it.

    Raises:
        NonFinite: a loss or gradient is not a number, or a spike, and such steps are not skipped or too many.
        Interrupted: SIGINT, SIGTERM, SIGUSR1 or SIGHUP, after the step in hand was finished and saved.
        QkvError: the directory holds a run that is not resumed, or one of another model, data or tokenizer.
    """
    keep_freed()
    ranks = distributed.current_ranks()
    if ranks.size % settings.tensor_parallel:
        raise QkvError("training.tensor_parallel={cut} does not divide the number of processes, {size}",
                       cut=settings.tensor_parallel, size=ranks.size)
    folder, first = None if directory is None else Path(directory, run_dir.FOLDER), ranks.first
    path = folder / "log.jsonl" if folder and first else None
    run = Loop(core, plan, settings, folder, evaluate, run_dir.open_log(path, report if first else None))
    run.recorder = recorder if path else None
    with control.use_threads(settings.threads), control.catch_signals() as caught:
        run.open(resume)
        why = find_stop_reason(run.at, settings)
        while not why:
            run.step()
            run.after()
            why = find_stop_reason(run.at, settings) or ("stop" if stop and stop(run.at.step) else "")
            number = caught[0] if caught else 0
            if run.stepper.together:
                why, number = control.sync_stop_reason(why, number, run.at, run.stepper.ranks)
            if number or why:
                run.checkpoints.save(run.loss)
            if number:
                name, now = signal.Signals(number).name, run.at.step
                run.note(Message("stopped by {name} after step {now}", name=name, now=now))
                raise Interrupted(number)
        end = run.finish(why)
        if caught:
            raise Interrupted(caught[0])
        return end


@dataclass(frozen=True)
class Groups(Sequence[Sequence[Any]]):
    """The keys of batches, so many to a step: cut when asked for, as there may be millions."""

    keys: Sequence[Any]
    each: int

    def __len__(self) -> int:
        return -(-len(self.keys) // self.each)

    def __getitem__(self, at: Any) -> Any:
        start = range(0, len(self.keys), self.each)[at]
        return self.keys[start : start + self.each]


class Loop:
    """One run in motion. `step` makes one optimiser step, `after` what is due then, `finish` picks the weights."""

    def __init__(
        self, core: Transformer, plan: Plan, settings: Settings, folder: Path | None, evaluate: Evaluate | None,
        report: Report,
    ) -> None:
        self.core, self.plan, self.settings, self.report = core, plan, settings, report
        self.stepper = OptimizerStep(core, plan, settings)
        self.checkpoints = Checkpoints(self.stepper, plan, settings, folder, evaluate, report)
        self.at = self.checkpoints.at
        self.log = folder / "log.jsonl" if folder and self.stepper.ranks.first else None
        self.recorder: Recorder | None = None
        self.loss = math.nan

    def open(self, resume: bool) -> None:
        """Fill in what an earlier part of the run left, and choose what is chosen once."""
        at, s, ranks = self.at, self.settings, self.stepper.ranks
        notes = self.checkpoints.begin(resume)
        self.loss = math.nan if at.loss is None else at.loss
        if self.log and self.checkpoints.saved < 0:
            self.log.unlink(missing_ok=True)
        elif self.log and self.log.exists():
            run_dir.truncate(self.log, at.step)
        if not at.precision:
            at.precision = s.precision if s.precision != "auto" else machine.choose_precision(self.core)
            notes.append(Message("precision {precision}", precision=at.precision))
            if ranks.size == 1:  # several processes are meant to share the cores
                batch = self.plan.make(self.groups(0)[0][0]).to(self.stepper.device)
                notes += machine.warn_oversubscribed(self.core, batch, at.precision)
        if self.stepper.together:  # one machine may choose otherwise than the first
            at.precision = "bf16" if ranks.broadcast_numbers(at.precision == "bf16") == [1] else "fp32"
        self.order, self.each = self.groups(at.epoch), len(self.groups(0))
        self.stepper.speed.shown = (at.tokens, at.seconds)
        if self.recorder and self.stepper.shards:  # parts of a matrix say little of it
            self.recorder = None
            notes.append(Message("watch: nothing is recorded, because training.shard splits the weights"))
        if at.step < s.warmup and self.total() <= s.warmup:
            notes.append(Message("training.warmup={warmup} is as long as the run ({total} steps) or longer: the "
                                 "learning rate only rises", warmup=s.warmup, total=self.total()))
        for text in notes:
            self.note(text)
        if self.recorder and self.log:
            self.recorder.begin(self.core, self.log.parent, at, self.report)
        if s.on_bad_step == "rewind":
            self.checkpoints.save(self.loss)

    def note(self, text: str) -> None:
        """Report what no number says."""
        self.report({"kind": "note", "step": self.at.step, "text": text})

    def groups(self, epoch: int) -> "Groups":
        """The batches of an epoch in their order, `accumulate` of them to a step of each process."""
        keys = self.plan.order(epoch)
        if not len(keys):
            raise QkvError("training: no batch in an epoch; is the data empty, or every row longer than the context?")
        return Groups(keys, self.stepper.micro)

    def total(self) -> int:
        """The steps of the whole run; where seconds end it, as many as fit at the speed so far."""
        s, at = self.settings, self.at
        ends = [s.steps, s.epochs * self.each]
        if s.seconds and at.step >= WARM:
            ends.append(max(1, round(at.step * s.seconds / at.seconds)))
        return min((n for n in ends if n), default=ENDLESS)

    def step(self) -> None:
        """One optimiser step: gradients of its micro-batches, then the update, unless its numbers are bad."""
        at, s, start, stepper = self.at, self.settings, time.perf_counter(), self.stepper
        keys, back = self.order[at.done], False
        lr = schedule.learning_rate(s, at.step + 1, total=self.total(), width=self.core.spec.stack.width)
        made = stepper.compute_gradients(keys, at)
        self.loss = made.loss
        if made.empty and not at.empty:
            self.note(Message("a batch without labels (step {step}): it changes nothing; later ones are only counted",
                              step=at.step + 1))
        at.empty += made.empty
        if self.recorder:
            now = {"step": at.step + 1, "epoch": at.epoch, "seconds": at.seconds + time.perf_counter() - start}
            now |= {"tokens": at.tokens + made.tokens, "loss": self.loss, "lr": lr}
            self.recorder.prepare(now, self.total(), last=self.is_last_step())
        if wrong := find_fault(self.loss, made.norm, at.recent, spike=s.spike):
            back = self.skip(wrong, made)
        elif made.tokens:
            stepper.update(lr, at, made)
            at.row = 0
            if s.spike and made.norm:  # a batch without labels is no measure
                at.recent = [*at.recent, [self.loss, made.norm]][-WINDOW:]
        else:
            stepper.optimizer.zero_grad(set_to_none=True)
        at.step, at.done, at.tokens = at.step + (not back), at.done + 1, at.tokens + made.tokens
        if self.checkpoints.mean and made.tokens and not wrong:
            self.checkpoints.mean.update(at.step)
        at.seconds += time.perf_counter() - start
        if not back and (at.step % s.log_every == 0 or at.step == 1):
            self.progress(lr, made)

    def is_last_step(self) -> bool:
        """Whether the step in hand may be the last: the next one would be beyond the seconds, or patience may end."""
        at, s, step = self.at, self.settings, self.at.step + 1
        judged = step % s.evaluate_every == 0 if s.evaluate_every else at.done + 1 == len(self.order)
        out = bool(s.seconds) and at.seconds * (1 + 2 / max(1, at.step)) >= s.seconds
        return out or step == self.total() or (judged and 0 < s.patience <= at.stale + 1)

    def skip(self, wrong: str, made: Gradients) -> bool:
        """Keep the batches of a bad step, drop its gradients and continue, or return to the last checkpoint: whether.

        Raises:
            NonFinite: bad steps end this run, or there were too many of them.
        """
        at, s, stepper, folder = self.at, self.settings, self.stepper, self.checkpoints.folder
        stepper.optimizer.zero_grad(set_to_none=True)
        at.skipped, at.row = at.skipped + 1, at.row + 1
        where = Message("step {step} (epoch {epoch}, batch {batch}, rows {rows})", step=at.step + 1, epoch=at.epoch,
                        batch=at.done, rows=str(list(made.keys))[:80])
        again, aside = f"-again-{at.back}" if at.back else "", Message()  # it came to this step before
        if folder:
            path = folder / "bad_batches" / f"step-{at.step + 1}{again}.{stepper.ranks.rank}.safetensors"
            state = {"seed": s.seed, "epoch": at.epoch, "batch": at.done, "rows": [str(key) for key in made.keys],
                     "why": wrong, "gradient": made.norm}
            if keep_batches(path, made.batches, state):
                aside = Message("; its batches are in {path}", path=path)
        if s.on_bad_step == "stop" or at.row >= ROW or at.back >= ROW:
            last, often = run_dir.find_last(folder), Message()
            kept = Message("the last good checkpoint is {last}", last=last) if last else (
                Message("nothing was saved before"))
            if at.back:
                often = Message(", and the run went back {back} times", back=at.back)
            elif at.row > 1:
                often = Message(", bad step {row} in a row", row=at.row)
            raise NonFinite("training: {wrong} at {where}{again}; {kept}{aside}. Try a smaller lr, clip=1, or "
                            "precision=fp32", wrong=wrong, where=where, again=often, kept=kept, aside=aside)
        what = Message("{wrong} at {where}", wrong=wrong, where=where)
        if s.on_bad_step == "skip":
            self.note(Message("{what}: the update is skipped{aside}", what=what, aside=aside))
            return False
        self.checkpoints.rewind()
        if self.log:
            run_dir.truncate(self.log, at.step)
        self.note(Message("{what}{aside}: back to step {step}, past these batches", what=what, aside=aside,
                          step=at.step))
        if self.recorder and self.log:
            self.recorder.begin(self.core, self.log.parent, at, self.report)
        return True

    def progress(self, lr: float, made: Gradients) -> None:
        """Report how fast and how well it goes."""
        at, stepper = self.at, self.stepper
        total = self.total()
        left = [(total - at.step) * at.seconds / at.step] if total < ENDLESS else []
        left += [self.settings.seconds - at.seconds] if self.settings.seconds else []
        where = {"kind": "step", "step": at.step, "of": total if total < ENDLESS else None, "epoch": at.epoch}
        what: dict[str, Any] = {"loss": self.loss, "lr": lr, "gradient": made.norm, **stepper.speed.measure(at)}
        if any(batch.classes is not None for batch in made.batches.values()):
            what["counted"] = "texts"  # in `tokens_per_second` too, as only their labels have a loss
        if stepper.loads.numel():
            what |= {"busiest": measure_imbalance(stepper.loads), "loads": stepper.loads.int().tolist()}
        self.report({**where, **what, "eta": max(0.0, min(left)) if left else None})

    def after(self) -> None:
        """What is due after a step: the next epoch's order, evaluation, snapshot, checkpoint."""
        at, s, shards = self.at, self.settings, self.stepper.shards
        turned = at.done == len(self.order)
        if turned:
            start = time.perf_counter()
            at.epoch, at.done = at.epoch + 1, 0
            self.order = self.groups(at.epoch)
            at.seconds += time.perf_counter() - start  # splitting words again is a part of training
        if at.step == self.checkpoints.saved:  # it went back: nothing is new since then
            return
        if self.recorder:
            self.recorder.after()
        due = at.step % s.evaluate_every == 0 if s.evaluate_every else turned
        if due and shards:
            shards.gather(self.core)
        if due:
            with self.stepper.barrier():
                if self.stepper.ranks.first:
                    self.checkpoints.judge()
        if (at.step % s.save_every == 0 if s.save_every else due) or (due and s.on_bad_step == "rewind"):
            self.checkpoints.save(self.loss)

    def finish(self, why: str) -> Outcome:
        """Leave the best of three weights in the core of each process; the metrics are known to the first one."""
        at, stepper = self.at, self.stepper
        lr = stepper.optimizer.param_groups[0]["lr"]
        if self.recorder:
            self.recorder.end(at, self.loss, lr)
        if stepper.shards:
            stepper.shards.gather(self.core)
        with stepper.barrier():
            chosen, metrics = self.checkpoints.choose_weights() if stepper.ranks.first else ("last", dict[str, Any]())
        if stepper.together:
            stepper.ranks.broadcast(self.core)
        epochs = at.epoch + at.done / len(self.order)
        end = Outcome(why, at.step, epochs, at.tokens, at.seconds, self.loss, chosen, metrics, at.precision, at.empty,
                      at.skipped)
        self.report({"kind": "end", **vars(end), "step": at.step})
        return end


def keep_batches(path: Path, batches: Mapping[int, Batch], state: Mapping[str, Any]) -> bool:
    """Write the batches of a bad step, by the number of their micro-batch, unless there are many such files already."""
    if len(list(path.parent.glob("*.safetensors"))) >= KEPT:
        return False
    tensors = {f"{micro}.{f.name}": value.clone() for micro, batch in batches.items() for f in dataclasses.fields(batch)
               if isinstance(value := getattr(batch, f.name), Tensor)}
    checkpoint.write(path, tensors, state)
    return True
