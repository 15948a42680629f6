"""The weights that a run keeps on disk: the last to resume from, the best, snapshots and their mean. Next: fsdp.py.

One safetensors file a checkpoint, replaced in one rename, with its JSON in the header. `last` holds weights, what the
optimiser remembers of each and the place in the data; `best` and the snapshots hold weights alone. A weight that does
not learn is not in them.
"""

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.baselines.lstm import LSTMSpec
from qkv.checkpoints.run_weights import Tensors, checksum
from qkv.checkpoints.run_weights import collect_weights as weights
from qkv.checkpoints.run_weights import fill_weights as fill
from qkv.checkpoints.run_weights import read_checkpoint as read
from qkv.checkpoints.storage import write_safetensors
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.files import replace_file, to_json_value
from qkv.messages import Message
from qkv.spec import Spec, as_json, from_json
from qkv.training import fsdp, optim
from qkv.training.control import Progress, find_stop_reason
from qkv.training.distributed import Ranks
from qkv.training.plan import Plan
from qkv.training.run_dir import Report, find_last, remove_partial
from qkv.training.settings import Settings, rename_keys
from qkv.training.step import OptimizerStep

Evaluate = Callable[[Transformer, int], dict[str, Any]]  # (core, step) -> metrics by name


class Checkpoints:
    """The weights that one run keeps; `at` is where it stands, which a checkpoint fills in and holds.

    Without a folder the best weights and the snapshots are kept in memory, and nothing can be resumed.
    """

    def __init__(
        self, stepper: OptimizerStep, plan: Plan, settings: Settings, folder: Path | None, evaluate: Evaluate | None,
        report: Report,
    ) -> None:
        self.stepper, self.settings, self.folder = stepper, settings, folder
        self.evaluate, self.report, self.judged = evaluate, report, plan.judged
        core = stepper.core
        self.identity = {  # a checkpoint of another run is refused
            "spec": as_json(core.spec), "data": dict(plan.identity),
            "training.accumulate * processes": stepper.micro,
        }
        self.memory: dict[str, Tensors] = {}
        self.at, self.saved, self.evaluated = Progress(), -1, -1  # steps of the last checkpoint and evaluation
        self.mean = optim.Mean(weights(core), settings.ema) if settings.ema else None

    def begin(self, resume: bool) -> list[str]:
        """Resume from the last checkpoint, if there is one, with the same state on all processes; notes on both.

        Raises:
            QkvError: the folder holds a run that is not resumed, or another one, or the processes differ.
        """
        at, s, stepper, notes, last = self.at, self.settings, self.stepper, list[str](), find_last(self.folder)
        if last and not resume:
            raise QkvError("{last}: there is a run here already; continue it with --resume auto, or give another --out",
                           last=last)
        if s.on_bad_step == "rewind" and not self.folder:
            raise QkvError("training.on_bad_step=rewind: a run without a directory has no checkpoint to go back to")
        if self.folder and stepper.ranks.first:
            remove_partial(self.folder)
        if last:
            changes = self.load(last)
            if s.precision not in ("auto", at.precision):
                at.precision = ""  # another was asked for than the run has had so far
            self.saved = at.step
            notes = [Message("resumed after step {step}", step=at.step)]
            if why := find_stop_reason(at, s):
                notes += [Message("nothing is left to do: training.{why} ended this run; set another value to continue",
                                  why=why)]
            notes += changes
        if stepper.together:
            state = json.dumps([at.step, self.identity], default=str)
            stepper.ranks.assert_same(Message("data, model or checkpoint"), state)
            if not stepper.shards:
                stepper.ranks.broadcast(stepper.core)
        return notes

    def load(self, last: Path) -> list[str]:
        """Fill core, optimiser, mean and progress from a checkpoint; gives notes on what differs.

        Raises:
            QkvError: the checkpoint is of another model, tokenizer or data; the message lists each difference.
        """
        core, s, notes = self.stepper.learner, self.settings, list[str]()
        if last.suffix == ".json":
            tensors, state = fsdp.read_parts(last, core)
        else:
            tensors, state = read(last)
            own = dict((*core.named_parameters(), *core.named_buffers()))
            tensors = {n: fsdp.cut_like(own.get(n.partition(":")[2], t), t) for n, t in tensors.items()}
        self.refuse_other_run(last, state["identity"])
        fill(core, {n.removeprefix("weight:"): t for n, t in tensors.items() if n.startswith("weight:")})
        vars(self.at).update(vars(Progress(**state["progress"])))
        if self.mean:  # where it begins only now, with the weights of now
            begun = {name: tensors.get(f"mean:{name}", t) for name, t in self.mean.live.items()}
            self.mean.values = {name: t.to(self.mean.live[name].device, copy=True) for name, t in begun.items()}
        then, now = state["settings"].get("optimizer", s.optimizer), s.optimizer
        if {then, now} <= {"adam", "adamw"} or then == now:  # Adam and AdamW remember the same of each weight
            restore_optimizer(core, self.stepper.optimizer, tensors, self.at.step)
        else:
            notes.append(Message("{now} cannot use the state that {then} kept for each weight, so it starts without "
                                 "any", then=then, now=now))
        settings = json.loads(json.dumps(dataclasses.asdict(s)))
        changed = [*differences(rename_keys("training", state["settings"]), settings, "settings"),
                   *differences(state["machine"], describe_machine(), "machine")]
        notes += [Message("not a bit-for-bit repetition: {d}", d=d) for d in changed]
        if None not in (self.judged, then := state.get("judged")) and then != self.judged:
            self.at.best, self.at.stale = None, 0  # it won on other data
            notes.append(Message("the held-out data have changed: evaluations from here on cannot be compared with "
                                 "earlier ones, and the best weights are chosen again"))
        return notes

    def refuse_other_run(self, last: Path, before: dict[str, Any]) -> None:
        """QkvError where a checkpoint's identity is not this run's."""
        if "spec" in before:  # an earlier version's words for the same spec
            before["spec"] = as_json(from_json(Spec | LSTMSpec, before["spec"]))
        if "tokenizer" in (data := before.get("data", {})):
            data["tokenizer"] = rename_keys("tokenizer", data["tokenizer"])
        if wrong := list(differences(before, self.identity)):
            raise QkvError("{last}: this checkpoint belongs to another run: {wrong}. Give another --out to start a "
                           "new run", last=last, wrong="; ".join(wrong[:6]))

    def rewind(self) -> None:
        """Go back to the last checkpoint, but not in the data: the steps since then, and the bad one, are not repeated.

        As Chowdhery et al. 2022, section 5.1, did by hand.
        """
        at, last, back = self.at, find_last(self.folder), self.at.back + 1
        assert last is not None  # the first one was written before the first step
        onward = {key: getattr(at, key) for key in ("epoch", "done", "seconds", "tokens", "empty", "skipped")}
        self.stepper.optimizer = optim.make_optimizer(self.stepper.learner, self.settings)
        self.load(last)
        vars(at).update(onward, back=back)

    def save(self, loss: float) -> None:
        """The checkpoint of this moment, with everything that the run needs to resume exactly, unless it is there."""
        at, stepper, keep = self.at, self.stepper, self.settings.average
        if self.saved == at.step:
            return
        at.back, at.loss = 0, loss
        outdated = at.snapshots[: -keep or None]
        at.snapshots = at.snapshots[len(outdated) :]
        with stepper.barrier():
            if self.folder and (stepper.ranks.first or stepper.shards):
                tensors = {f"weight:{name}": t for name, t in weights(stepper.learner).items()}
                tensors |= {f"mean:{name}": t for name, t in (self.mean.values if self.mean else {}).items()}
                for name, (memory, _) in optim.optimizer_states(stepper.learner, stepper.optimizer).items():
                    tensors |= {f"{key}:{name}": t for key, t in memory.items() if isinstance(t, Tensor)}
                state = {"progress": vars(at), "identity": self.identity, "machine": describe_machine(),
                         "settings": dataclasses.asdict(self.settings), "judged": self.judged}
                write_last(self.folder, tensors, state, stepper.ranks if stepper.shards else None)
            for step in outdated:  # only now: the checkpoint before names them
                self.forget(f"snapshots/{step}")
        self.saved = at.step

    def judge(self) -> None:
        """Evaluate, keep the weights if they are the best so far, and as a snapshot where the mean needs one."""
        at, s, core = self.at, self.settings, self.stepper.core
        if self.evaluate is not None:
            found, self.evaluated = self.evaluate(core, at.step), at.step
            better = s.is_better(found, at.best)
            self.report({"kind": "evaluation", "step": at.step, "epoch": at.epoch, **found, "best": better})
            warm = at.step > s.warmup  # before that, an evaluation says little about the run
            at.stale = 0 if better else at.stale + warm
            if better:
                numbers = {k: v for k, v in found.items() if isinstance(v, int | float | str)}
                at.best = {**numbers, "step": at.step}
                self.keep("best", at.best)
        if s.average:
            self.keep(f"snapshots/{at.step}", {"step": at.step})
            at.snapshots.append(at.step)
            while self.folder is None and len(at.snapshots) > s.average:
                self.forget(f"snapshots/{at.snapshots.pop(0)}")

    def choose_weights(self) -> tuple[str, dict[str, Any]]:
        """Fill the core with the last weights, one of their means, or the best so far: which, and their metrics.

        Where nothing evaluates, the mean of the snapshots goes before the moving average, and that before the last.
        """
        at, core, found = self.at, self.stepper.core, dict[str, Tensors]()
        kept = at.snapshots[-self.settings.average :] if self.settings.average else []
        if len(kept) > 1:
            found["average"] = self.average([f"snapshots/{n}" for n in kept])
        if self.mean:
            found["ema"] = self.mean.values
        if self.evaluate is None:
            chosen = next(iter(found), "last")
            if found:
                fill(core, found[chosen])
            return chosen, {}
        here = at.best is not None and at.best["step"] == at.step  # the last weights are the best so far
        if not found and not here and (at.best is None or self.evaluated != at.step):
            found["last"] = weights(core)
        chosen, metrics = ("best" if found or not here else "last"), at.best
        for name, values in found.items():
            fill(core, values)
            one = self.evaluate(core, at.step)
            self.report({"kind": "evaluation", "step": at.step, "weights": name, **one})
            if metrics is None or self.settings.is_better(one, metrics):
                chosen, metrics = name, one
        if found or not here:
            fill(core, found[chosen] if chosen in found else self.load_kept("best"))
        return chosen, metrics or {}

    def keep(self, name: str, state: Mapping[str, Any]) -> None:
        """Keep the weights of this moment under a name."""
        if self.folder is None:
            self.memory[name] = {n: t.clone() for n, t in weights(self.stepper.core).items()}
        else:
            write(self.folder / f"{name}.safetensors", weights(self.stepper.core), state)

    def load_kept(self, name: str) -> Tensors:
        """The weights kept under a name."""
        return self.memory[name] if self.folder is None else read(self.folder / f"{name}.safetensors")[0]

    def forget(self, name: str) -> None:
        """Let go of the weights kept under a name."""
        self.memory.pop(name, None)
        if self.folder is not None:
            (self.folder / f"{name}.safetensors").unlink(missing_ok=True)

    def average(self, names: list[str]) -> Tensors:
        """The mean of the weights kept under some names, summed in fp64 one file at a time."""
        total: Tensors = {}
        for name in names:
            for key, tensor in self.load_kept(name).items():
                total[key] = total[key] + tensor.double() if key in total else tensor.double()
        return {key: (t / len(names)).float() for key, t in total.items()}


def describe_machine() -> dict[str, Any]:
    """What a bit-for-bit repetition depends on besides the code."""
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "") or torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "isa": isa, "processor": platform.machine()}


def write_last(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any], ranks: Ranks | None) -> None:
    """Replace the last checkpoint: by one file, or where each of `ranks` holds a part of the weights by their parts."""
    one, parts = folder / "last.safetensors", folder / "last.json"
    if ranks:
        fsdp.write_parts(parts, tensors, state, ranks)
        one.unlink(missing_ok=True)
    else:
        write(one, tensors, state)
        if parts.is_file() or any(folder.glob("last-*")):
            fsdp.delete_parts(parts)


def write(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Tensors and JSON as one file, whole or not at all.

    Raises:
        QkvError: the disk is full or not writable; what was there before is still there.
    """
    kept = Message("the previous checkpoint is intact") if path.exists() else Message("there is no earlier one")
    hint = Message("{kept}. Make room (or name an --out that can be written) and run again with --resume auto",
                   kept=kept)
    with replace_file(path, hint=hint) as aside:
        whole = {name: t.detach().contiguous().cpu() for name, t in tensors.items()}
        said = json.dumps(to_json_value(state))
        write_safetensors(whole, aside, {"state": said, "crc32": checksum(whole, said)})


def restore_optimizer(core: nn.Module, optimizer: Any, tensors: Tensors, step: int) -> None:
    """Give the optimiser what a checkpoint remembers of each weight."""
    device = next(core.parameters()).device
    kept: dict[str, Tensors] = {}
    for place, t in tensors.items():
        key, _, name = place.partition(":")
        kept.setdefault(name, {})[key] = t
    for name, (memory, fused) in optim.optimizer_states(core, optimizer).items():
        own = {key: t for key, t in kept.get(name, {}).items() if key not in ("weight", "mean")}
        if own:  # a weight that no gradient has met yet has none
            if "exp_avg" in own:  # the first checkpoints did not count the steps of each weight
                own.setdefault("step", torch.tensor(float(step)))
            memory |= {key: t.to(device) if fused or key != "step" else t for key, t in own.items()}


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Each leaf in which two JSON values differ, as `place: was X, now Y`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{where}[{i}]")
    elif old != new:
        yield f"{where}: was {quote_json(old)}, now {quote_json(new)}"


def quote_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
