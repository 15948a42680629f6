"""The training loop on a page: order, batch, loss, step; evaluate, keep, save, resume. Everything else is a pure part.

Order and dropout are functions of (seed, epoch, batch, micro-batch), so a resumed run repeats the uninterrupted one.
Where several processes train (parallel.py), each does this on its share of a step; the first one evaluates and writes.
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qkv import memory
from qkv.adapt.onednn_linear import pack
from qkv.core.dropout import Drop, make_dropout, no_dropout
from qkv.core.model import Transformer
from qkv.data.collate import Batch
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.spec import as_json
from qkv.training import bad_steps, checkpoint, distributed, fsdp, log, optim, precision, schedule
from qkv.training.blocks import Blocks
from qkv.training.load_balancing import steer
from qkv.training.plan import Plan, placed
from qkv.training.probes.recorder import Recorder
from qkv.training.scheduled_sampling import mixed, share
from qkv.training.settings import Settings
from qkv.training.step_loss import busiest, step_loss
from qkv.training.utilization import Work, peak

WARM = 10  # steps after which the speed is known
ENDLESS = 10**9
TWICE = 0.5
HEARD = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
ENDS = ("", "steps", "epochs", "seconds", "patience", "stop")
Evaluate = Callable[[Transformer, int], dict[str, Any]]  # (core, step) -> metrics by name


class Interrupted(KeyboardInterrupt):
    """A signal ended the run after a whole step; `code` is what the shell expects (128 + the signal)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@dataclass(frozen=True)
class Outcome:
    """How a run ended: why (steps, epochs, seconds, patience, stop), after how much, and which weights the core has."""

    why: str
    steps: int
    epochs: float
    tokens: int
    seconds: float
    loss: float
    weights: str  # last, best, average or ema
    metrics: dict[str, Any]  # of those weights
    precision: str
    empty: int = 0  # micro-batches in which nothing was to be learnt
    skipped: int = 0  # steps without an update, as their numbers were bad


def train(
    core: Transformer, plan: Plan, settings: Settings, *, directory: Path | str | None = None,
    evaluate: Evaluate | None = None, report: log.Report | None = None,
    stop: Callable[[int], bool] | None = None, resume: bool = False, watch: Recorder | None = None,
) -> Outcome:  # fmt: skip
    """Train `core` in place; without `directory` nothing is written.

    `resume` goes on from the directory's last checkpoint where there is one. `watch` records the run in its directory.

    Raises:
        guard.NonFinite: a loss or gradient is not a number, or a spike, and such steps are not skipped or too many.
        Interrupted: SIGINT, SIGTERM, SIGUSR1 or SIGHUP, after the step in hand was finished and saved.
        QkvError: the directory holds a run that is not resumed, or one of another model, data or tokenizer.
    """
    memory.keep_freed()
    first = distributed.here().first
    tell = log.reporter(folder(directory, "log.jsonl") if first else None, report if first else None)
    run = Loop(core, plan, settings, directory, evaluate, tell)
    run.watch = watch if run.log else None
    with threads(settings.threads), signals() as caught:
        run.begin(resume)
        why = run.ended()
        while not why:
            run.step()
            run.after()
            why = run.ended() or ("stop" if stop and stop(run.at.step) else "")
            why, number = run.agree(why, caught)
            if number or why:
                run.save()
            if number:
                name, now = signal.Signals(number).name, run.at.step
                run.note(Message("stopped by {name} after step {now}", name=name, now=now))
                raise Interrupted(number)
        end = run.finish(why)
        if caught:
            raise Interrupted(caught[0])
        return end


class Loop:
    """One run in motion. `step` makes one optimiser step, `after` what is due then, `finish` picks the weights."""

    def __init__(
        self, core: Transformer, plan: Plan, settings: Settings, directory: Path | str | None,
        evaluate: Evaluate | None, tell: log.Report,
    ) -> None:  # fmt: skip
        self.core, self.plan, self.settings, self.evaluate, self.tell = core, plan, settings, evaluate, tell
        self.device = core.embed.weight.device
        self.ranks = distributed.here()
        self.shards: fsdp.Sharded | None = None
        if settings.shard and self.ranks.size > 1:
            self.ranks.spread(core)
            self.shards = fsdp.Sharded(core, settings)
        self.learner = self.shards.core if self.shards else core  # whose weights move
        pack(self.learner)
        self.blocks = Blocks(self.learner, settings, self.device)
        self.optimizer = optim.make(self.learner, settings)
        self.weights = list(optim.named_weights(self.learner).values())
        self.micro = settings.accumulate * self.ranks.size  # micro-batches in a step
        self.log = folder(directory, "log.jsonl") if self.ranks.first else None
        who = {"spec": as_json(core.spec), "data": dict(plan.identity), "training.accumulate * processes": self.micro}
        ranks = self.ranks if self.shards else None
        self.store = checkpoint.Store(folder(directory), who, ranks=ranks, judged=plan.judged)
        self.at = checkpoint.Progress()
        self.loss, self.shown, self.saved = math.nan, (0, 0.0), -1
        self.work, self.worked, self.top = Work(core.spec), 0.0, 0.0  # operations since they were last told; a second
        self.watch: Recorder | None = None
        counts = [b.moe.num_experts for b in core.spec.stack.blocks if b.moe]
        self.loads = torch.zeros(len(counts), max(counts, default=0))  # L E, tokens of the last step by expert
        self.mean = optim.Mean(checkpoint.weights(core), settings.ema) if settings.ema else None

    def begin(self, resume: bool) -> None:
        """Fill in what an earlier part of the run left, and choose what is chosen once."""
        if self.store.last and not resume:
            raise QkvError("{last}: a run lies here; go on with --resume auto or give another --out",
                           last=self.store.last)
        if self.ranks.first:
            self.store.sweep()
        notes: list[str] = []
        if self.store.last:
            self.at, notes = self.store.resume(self.learner, self.optimizer, self.settings, self.mean)
            if self.settings.precision not in ("auto", self.at.precision):
                self.at.precision = ""  # another was asked for than the run has had so far
            self.saved = self.at.step
            self.loss = math.nan if self.at.loss is None else self.at.loss
            at, why = self.at.step, self.ended()
            notes.insert(0, Message("resumed after step {at}", at=at))
            if why:
                notes.insert(1, Message("nothing is left to do: training.{why} ended this run; say another to go on",
                                        why=why))
        elif self.log:
            self.log.unlink(missing_ok=True)
        self.ranks.alike(Message("data, model or checkpoint"),
                         json.dumps([self.at.step, self.store.identity], default=str))
        if not self.shards:
            self.ranks.spread(self.core)
        if self.log and self.log.exists():
            log.cut(self.log, self.at.step)
        notes += [] if self.at.precision else [self.narrow(), *self.crowded()]
        self.order = self.groups(self.at.epoch)
        self.each = len(self.groups(0))
        self.shown = (self.at.tokens, self.at.seconds)
        if self.watch and self.shards:  # parts of a matrix say little of it
            self.watch = None
            notes.append(Message("watch: nothing is recorded, as training.shard parts the weights"))
        if self.at.step < self.settings.warmup and self.total() <= self.settings.warmup:
            notes.append(Message("training.warmup={warmup} is as long as the run ({total} steps) or longer: its rate "
                                 "only rises", warmup=self.settings.warmup, total=self.total()))
        for text in notes:
            self.note(text)
        if self.watch and self.log and (event := self.watch.begin(self.core, self.log.parent, self.at)):
            self.tell(event)
        if self.settings.on_bad_step == "rewind":
            if not self.store.folder:
                raise QkvError("training.on_bad_step=rewind: a run without a directory has no checkpoint to go back "
                               "to")
            self.save()

    def narrow(self) -> Message:
        """Choose the precision, the same for all processes, and say which it is."""
        batch = placed(self.plan.make(self.groups(0)[0][0]), self.device)
        found, gain = precision.choose(self.settings.precision, self.core, batch)
        self.at.precision = "bf16" if self.ranks.word(found == "bf16") == [1] else "fp32"
        measured = Message(" (a pass in bf16 is {gain:.2f} times as fast here)", gain=gain) if gain else Message()
        return Message("precision {precision}{measured}", precision=self.at.precision, measured=measured)

    def crowded(self) -> list[Message]:
        """What is said where the threads of this process hinder each other; nothing where they do not."""
        batch = placed(self.plan.make(self.groups(0)[0][0]), self.device)
        alone = self.ranks.size == 1  # other processes are meant to share the cores
        times = precision.slower(self.core, batch, low=self.at.precision == "bf16") if alone else 1.0
        if times < precision.CROWDED:
            return []
        count = torch.get_num_threads()
        return [Message("{count} threads take {times:.1f} times as long as one here: is something else using the "
                        "cores, or the model too small to share? --threads 1 is faster now", count=count,
                        times=times)]

    def note(self, text: str) -> None:
        """Tell what no number says."""
        self.tell({"kind": "note", "step": self.at.step, "text": text})

    def groups(self, epoch: int) -> list[Sequence[Any]]:
        """The batches of an epoch in their order, `accumulate` of them to a step of each process."""
        keys, n = list(self.plan.order(epoch)), self.micro
        if not keys:
            raise QkvError("training: no batch in an epoch; is the data empty, or every row longer than the "
                           "context?")
        return [keys[i : i + n] for i in range(0, len(keys), n)]

    def total(self) -> int:
        """The steps of the whole run; where seconds end it, as many as fit at the speed so far."""
        s, at = self.settings, self.at
        ends = [s.steps, s.epochs * self.each]
        if s.seconds and at.step >= WARM:
            ends.append(max(1, round(at.step * s.seconds / at.seconds)))
        return min((n for n in ends if n), default=ENDLESS)

    def step(self) -> None:
        """One optimiser step: the loss of all its micro-batches, divided once by all their tokens."""
        at, s, start = self.at, self.settings, time.perf_counter()
        keys = self.order[at.done]
        mine = range(self.ranks.rank, len(keys), self.ranks.size)
        batches = [placed(self.plan.make(keys[micro]), self.device) for micro in mine]
        counts = self.ranks.total([sum(b.tokens for b in batches), sum(b.tokens == 0 for b in batches)])
        tokens = self.counted(*map(int, counts))
        lr = schedule.rate(s, at.step + 1, total=self.total(), width=self.core.spec.stack.width)
        self.loss, loads = 0.0, torch.zeros_like(self.loads)
        for micro, batch in zip(mine, batches, strict=True):
            drop = make_dropout(s.seed, at.epoch, at.done, micro, device=self.device, traceable=self.blocks.compiles)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=at.precision == "bf16"):
                if s.sampled:
                    part = share(at.step, most=s.sampled, ramp=s.sampled_ramp)
                    batch = mixed(self.core, batch, part, s.seed, at.epoch, at.done, micro)
                loss, busy = self.loss_of(batch, keys[micro], drop)
                loss = loss / max(tokens, 1)
            loss.backward()
            self.loss += float(loss.detach())
            self.worked += self.work.of(batch) * (2 if s.agree else 1)
            loads += 0 if busy is None else busy.cpu()
        self.loss = self.summed(keys)
        if self.watch:
            now = {"step": at.step + 1, "epoch": at.epoch, "seconds": at.seconds + time.perf_counter() - start}
            now |= {"tokens": at.tokens + tokens, "loss": self.loss, "lr": lr}
            self.watch.before(now, self.total(), self.nearly())
        norm = float(fsdp.whole(optim.clip(self.weights, s.clip)))
        wrong, back = bad_steps.fault(self.loss, norm, at.recent, spike=s.spike), False
        if wrong:
            back = self.refuse(wrong, norm, keys, dict(zip(mine, batches, strict=True)))
        elif tokens:
            self.update(lr, norm, loads)
        else:
            self.optimizer.zero_grad(set_to_none=True)
        at.step, at.done, at.tokens = at.step + (not back), at.done + 1, at.tokens + tokens
        if self.mean and tokens and not wrong:
            self.mean.update(at.step)
        at.seconds += time.perf_counter() - start
        if not back and (at.step % s.log_every == 0 or at.step == 1):
            self.progress(lr, norm)

    def loss_of(self, batch: Batch, key: Any, drop: Drop) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The loss of a micro-batch and the loads of its experts; bad labels are told with the rows of the data."""
        try:
            loss = self.shards or partial(step_loss, self.core)
            with self.blocks.learning():
                s = self.settings
                return loss(batch, smoothing=s.smoothing, even=s.balance, agree=s.agree, drop=drop)
        except QkvError as e:
            place = f"step {self.at.step + 1} (epoch {self.at.epoch}, rows {str(key)[:80]})"
            raise QkvError("training: {place}: {e}", place=place, e=e) from e

    def summed(self, keys: Sequence[Any]) -> float:
        """The loss of all ranks, whose gradients are summed too."""
        if not self.shards:
            return self.ranks.gradients(self.weights, self.loss)
        if 0 < len(keys) % self.ranks.size <= self.ranks.rank:  # parts of weights are gathered by all ranks or by none
            spare = placed(self.plan.make(keys[0]), self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.at.precision == "bf16"):
                loss, _ = self.loss_of(spare, keys[0], no_dropout)
            (loss * 0).backward()
        return self.ranks.total([self.loss])[0]

    def counted(self, tokens: int, empty: int) -> int:
        """The tokens of a step; batches without any are counted, and the first of them is told."""
        if empty and not self.at.empty:
            now = self.at.step + 1
            self.note(Message("a batch without labels (step {now}): it changes nothing; later ones are only counted",
                              now=now))
        self.at.empty += empty
        return tokens

    def update(self, lr: float, norm: float, loads: torch.Tensor) -> None:
        """Move the weights by their gradients, and the biases of routers by the loads of their experts."""
        for group in self.optimizer.param_groups:
            group["lr"], group["low"] = lr, self.at.precision == "bf16"  # low: Muon's products in bf16
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if loads.numel():
            self.loads = torch.tensor(self.ranks.total(loads.flatten().tolist())).view_as(loads)
            steer(self.learner, self.loads, rate=self.settings.steer)
        self.at.row = 0
        if self.settings.spike and norm:  # a batch without labels is no measure
            self.at.recent = [*self.at.recent, [self.loss, norm]][-bad_steps.WINDOW :]

    def refuse(self, wrong: str, norm: float, keys: Sequence[Any], batches: dict[int, Batch]) -> bool:
        """Drop the gradients of a step and keep its batches; then go on, where the settings say so and such are few.

        Gives whether the run went back to its last checkpoint.
        """
        at, s = self.at, self.settings
        self.optimizer.zero_grad(set_to_none=True)
        at.skipped, at.row = at.skipped + 1, at.row + 1
        where = Message("step {step} (epoch {epoch}, batch {batch}, rows {rows})", step=at.step + 1, epoch=at.epoch,
                        batch=at.done, rows=str(list(keys))[:80])
        aside = ""
        if self.store.folder:
            again = f"-again-{at.back}" if at.back else ""  # it came to this step before
            path = self.store.folder / "bad_batches" / f"step-{at.step + 1}{again}.{self.ranks.rank}.safetensors"
            state = {"seed": s.seed, "epoch": at.epoch, "batch": at.done, "rows": [str(key) for key in keys],
                     "why": wrong, "gradient": norm}  # fmt: skip
            kept = bad_steps.keep(path, batches, log.finite(state))
            aside = Message("; its batches are in {path}", path=path) if kept else ""
        if s.on_bad_step == "stop" or at.row >= bad_steps.ROW or at.back >= bad_steps.ROW:
            kept = Message("nothing was saved before")
            if self.store.last:
                kept = Message("the last good checkpoint is {last}", last=self.store.last)
            again = Message(", bad step {row} in a row", row=at.row) if at.row > 1 else ""
            again = Message(", and the run went back {back} times", back=at.back) if at.back else again
            raise bad_steps.NonFinite("training: {wrong} at {where}{again}; {kept}{aside}. Try a smaller lr, clip=1, "
                                      "or precision=fp32", wrong=wrong, where=where, again=again, kept=kept,
                                      aside=aside)
        if s.on_bad_step == "rewind":
            self.rewind(Message("{wrong} at {where}{aside}", wrong=wrong, where=where, aside=aside))
            return True
        self.note(Message("{wrong} at {where}: the update is left out{aside}", wrong=wrong, where=where,
                          aside=aside))
        return False

    def rewind(self, why: str) -> None:
        """Go back to the last checkpoint, but not in the data: the steps since then, and the bad one, are not repeated.

        As Chowdhery et al. 2022, section 5.1, did by hand.
        """
        self.optimizer = optim.make(self.learner, self.settings)
        found, _ = self.store.resume(self.learner, self.optimizer, self.settings, self.mean)
        now, onward = self.at, ("epoch", "done", "seconds", "tokens", "empty", "skipped")
        vars(now).update(vars(found) | {key: getattr(now, key) for key in onward} | {"back": now.back + 1})
        if self.log:
            log.cut(self.log, now.step)
        self.note(Message("{why}: back to step {step}, past these batches", why=why, step=now.step))
        if self.watch and self.log:
            self.watch.pending = None
            self.watch.begin(self.core, self.log.parent, now)

    def progress(self, lr: float, norm: float) -> None:
        """Tell how fast and how well it goes."""
        at, (tokens, seconds) = self.at, self.shown
        spent = max(at.seconds - seconds, 1e-9)
        speed, rate = (at.tokens - tokens) / spent, self.worked / spent
        self.shown, self.worked = (at.tokens, at.seconds), 0.0
        total = self.total()
        left = [(total - at.step) * at.seconds / at.step] if total < ENDLESS else []
        left += [self.settings.seconds - at.seconds] if self.settings.seconds else []
        where = {"kind": "step", "step": at.step, "of": total if total < ENDLESS else None, "epoch": at.epoch}
        what = {"loss": self.loss, "lr": lr, "gradient": norm, "tokens_per_second": speed, "seconds": at.seconds,
                "of_peak": rate / self.peak(rate) if rate else 0.0}  # fmt: skip
        if self.loads.numel():
            what |= {"busiest": busiest(self.loads), "loads": self.loads.int().tolist()}
        self.tell({**where, **what, "eta": max(0.0, min(left)) if left else None})

    def peak(self, rate: float) -> float:
        """Operations a second that products of this precision reach here, measured anew where a run beats them."""
        if rate > self.top:  # at first, and where something else had the machine when they were measured
            self.top = max(rate, peak(self.device.type, self.at.precision))
        return self.top

    def after(self) -> None:
        """What is due after a step: the next epoch's order, evaluation, snapshot, checkpoint."""
        at, s = self.at, self.settings
        turned = at.done == len(self.order)
        if turned:
            start = time.perf_counter()
            at.epoch, at.done = at.epoch + 1, 0
            self.order = self.groups(at.epoch)
            at.seconds += time.perf_counter() - start  # cutting words anew is a part of training
        if at.step == self.saved:  # it went back: nothing is new since then
            return
        if self.watch and (event := self.watch.after()):
            self.tell(event)
        due = at.step % s.evaluate_every == 0 if s.evaluate_every else turned
        if due and self.shards:
            self.shards.gather(self.core)
        if due:
            with self.ranks.agreed():
                if self.ranks.first:
                    self.measure()
                    if s.average:
                        self.snapshot()
        if (at.step % s.save_every == 0 if s.save_every else due) or (due and s.on_bad_step == "rewind"):
            self.save()

    def measure(self) -> None:
        """Evaluate, and keep the weights if they are the best so far."""
        if self.evaluate is None:
            return
        found = self.evaluate(self.core, self.at.step)
        better = self.settings.better(found, self.at.best)
        self.tell({"kind": "evaluation", "step": self.at.step, "epoch": self.at.epoch, **found, "best": better})
        warm = self.at.step > self.settings.warmup  # before, no evaluation tells what the run will come to
        self.at.stale = 0 if better else self.at.stale + warm
        if better:
            numbers = {k: v for k, v in found.items() if isinstance(v, int | float | str)}
            self.at.best = {**numbers, "step": self.at.step}
            self.store.keep("best", self.core, self.at.best)

    def snapshot(self) -> None:
        """Keep this moment's weights for the average at the end."""
        self.store.keep(f"snapshots/{self.at.step}", self.core, {"step": self.at.step})
        self.at.snapshots.append(self.at.step)
        if self.store.folder is None:
            self.forget(self.spare())

    def spare(self) -> list[int]:
        """Take off the list, and give, the snapshots that the average at the end does without."""
        gone = self.at.snapshots[: -self.settings.average or None]
        self.at.snapshots = self.latest()
        return gone

    def forget(self, snapshots: Sequence[int]) -> None:
        """Delete snapshots."""
        for step in snapshots:
            self.store.forget(f"snapshots/{step}")

    def latest(self) -> list[int]:
        """The steps whose weights the average at the end is of."""
        return self.at.snapshots[-self.settings.average :] if self.settings.average else []

    def save(self) -> None:
        """The checkpoint of this moment, unless it is on disk already."""
        if self.saved == self.at.step:
            return
        self.at.back, self.at.loss = 0, self.loss
        gone = self.spare()
        with self.ranks.agreed():
            if self.ranks.first or self.shards:
                self.store.save(self.learner, self.optimizer, self.at, self.settings, self.mean)
            self.forget(gone)  # only now: the checkpoint before names them
        self.saved = self.at.step

    def ended(self) -> str:
        """Why the run is over, or the empty string."""
        at, s = self.at, self.settings
        reached = {"steps": at.step, "epochs": at.epoch, "seconds": at.seconds, "patience": at.stale}
        return next((why for why, value in reached.items() if 0 < getattr(s, why) <= value), "")

    def nearly(self) -> bool:
        """Whether the step in hand may be the last: the next one would be beyond the seconds, or patience may end."""
        at, s, step = self.at, self.settings, self.at.step + 1
        judged = step % s.evaluate_every == 0 if s.evaluate_every else at.done + 1 == len(self.order)
        out = bool(s.seconds) and at.seconds * (1 + 2 / max(1, at.step)) >= s.seconds
        return out or step == self.total() or (judged and 0 < s.patience <= at.stale + 1)

    def agree(self, why: str, caught: Sequence[int]) -> tuple[str, int]:
        """What all processes do next: why the first one ends the run, and a signal that any of them caught (or 0)."""
        end, self.at.seconds = self.ranks.word(ENDS.index(why), self.at.seconds)  # the rate may depend on the seconds
        return ENDS[int(end)], int(self.ranks.most(caught[:1] or [0])[0])

    def finish(self, why: str) -> Outcome:
        """Leave the best of three weights in the core of each process; the metrics are known to the first one."""
        at = self.at
        if self.watch and (event := self.watch.end(at, self.loss, self.optimizer.param_groups[0]["lr"])):
            self.tell(event)
        if self.shards:
            self.shards.gather(self.core)
        with self.ranks.agreed():
            chosen, metrics = self.choose() if self.ranks.first else ("last", dict[str, Any]())
        self.ranks.spread(self.core)
        epochs = at.epoch + at.done / len(self.order)
        end = Outcome(why, at.step, epochs, at.tokens, at.seconds, self.loss, chosen, metrics, at.precision, at.empty,
                      at.skipped)  # fmt: skip
        self.tell({"kind": "end", **vars(end), "step": at.step})
        return end

    def choose(self) -> tuple[str, dict[str, Any]]:
        """Fill the core with the last weights, one of their means, or the best so far: which, and their metrics.

        Where nothing evaluates, the mean of the snapshots goes before the moving average, and that before the last.
        """
        at, found = self.at, dict[str, checkpoint.Tensors]()
        if len(self.latest()) > 1:
            found["average"] = self.store.mean([f"snapshots/{n}" for n in self.latest()])
        if self.mean:
            found["ema"] = self.mean.values
        if self.evaluate is None:
            chosen = next(iter(found), "last")
            if found:
                checkpoint.fill(self.core, found[chosen])
            return chosen, {}
        here = at.best is not None and at.best["step"] == at.step  # the last weights are the best so far
        if not found and not here:
            found["last"] = checkpoint.weights(self.core)
        chosen, metrics = ("best" if found else "last"), at.best
        for name, values in found.items():
            checkpoint.fill(self.core, values)
            one = self.evaluate(self.core, at.step)
            self.tell({"kind": "evaluation", "step": at.step, "weights": name, **one})
            if metrics is None or self.settings.better(one, metrics):
                chosen, metrics = name, one
        if found:
            checkpoint.fill(self.core, found[chosen] if chosen in found else self.store.kept("best"))
        return chosen, metrics or {}


def folder(directory: Path | str | None, *rest: str) -> Path | None:
    """The run's own folder in a model directory, or a file of it."""
    return None if directory is None else Path(directory, "train", *rest)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """That many CPU threads, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def signals() -> Iterator[list[int]]:
    """A list that the first signal of HEARD is written into; a second one ends the process as ever.

    What comes within TWICE seconds is the first once more: terminals and those who start processes both send it. So
    nobody else hears it until they are over, however soon all was saved. A SIGHUP that is ignored, as `nohup` has it,
    stays so.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {n: signal.getsignal(n) for n in HEARD}
    before = {n: h for n, h in before.items() if h is not signal.SIG_IGN or n in (signal.SIGINT, signal.SIGTERM)}
    when = 0.0

    def hear(number: int, frame: object) -> None:
        nonlocal when
        if not caught:
            caught.append(number)
            when = time.perf_counter()
        elif time.perf_counter() - when > TWICE:
            for n, handler in before.items():
                signal.signal(n, handler)
            signal.raise_signal(number)

    for n in before:
        signal.signal(n, hear)
    try:
        yield caught
    finally:
        if caught:
            time.sleep(max(0.0, when + TWICE - time.perf_counter()))
        for n, handler in before.items():
            signal.signal(n, handler)
