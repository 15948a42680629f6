"""A run's memory on disk: one safetensors file a checkpoint, replaced in one rename, with its JSON in the header.

`last` holds weights, what the optimiser remembers of each and the place in the data; `best` and the snapshots hold
weights alone. A weight that does not learn is not in them.
"""

import dataclasses
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv.baselines.lstm import LSTMSpec
from qkv.checkpoints.run_weights import Tensors, checksum
from qkv.checkpoints.run_weights import collect_weights as weights
from qkv.checkpoints.run_weights import fill_weights as fill
from qkv.checkpoints.run_weights import read_checkpoint as read
from qkv.checkpoints.storage import fsync_path
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.spec import Spec, as_json, from_json
from qkv.training import fsdp, log, optim
from qkv.training.distributed import Ranks
from qkv.training.settings import rename_keys

HALF = re.compile(r"\..+\.(safetensors|jsonl?)\.\d+")  # a file while it is written, by the process of that number


@dataclass
class Progress:
    """Where a run stands: what a checkpoint must know besides the tensors."""

    step: int = 0  # optimiser steps made
    epoch: int = 0
    done: int = 0  # steps made in this epoch
    seconds: float = 0.0
    tokens: int = 0  # counted target tokens seen
    best: dict[str, Any] | None = None  # the metrics of the best evaluation, with its step
    stale: int = 0  # evaluations since then
    snapshots: list[int] = field(default_factory=list)
    precision: str = ""
    empty: int = 0  # micro-batches without labels
    skipped: int = 0  # bad steps, whose update was left out
    row: int = 0  # of them the last ones, without a good one between
    back: int = 0  # times that the run went back to its last checkpoint
    recent: list[list[float]] = field(default_factory=list)  # loss and gradient norm of the last good steps
    loss: float | None = None  # of the last step


def describe_machine() -> dict[str, Any]:
    """What a bit-for-bit repetition depends on besides the code."""
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "") or torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "isa": isa, "processor": platform.machine()}


def write(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Tensors and JSON as one file, whole or not at all: written beside, flushed, then renamed over the old one.

    Raises:
        QkvError: the disk is full or not writable; what was there before is still there.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {name: t.detach().contiguous().cpu() for name, t in tensors.items()}
        said = json.dumps(log.replace_nonfinite(state))
        save_file(whole, str(aside), metadata={"state": said, "crc32": checksum(whole, said)})
        fsync_path(aside)
        os.replace(aside, path)
        fsync_path(path.parent)
    except (OSError, SafetensorError) as e:
        kept = (
            Message("the previous checkpoint is intact")
            if path.exists()
            else Message("there is no earlier one")
        )
        raise QkvError("{path}: could not be saved ({e}); {kept}. Make room (or name an --out that can be written) "
                       "and run again with --resume auto", path=path, e=e, kept=kept) from e
    finally:
        aside.unlink(missing_ok=True)


@dataclass
class Store:
    """Where one run keeps its checkpoints: files in `folder`, or in memory (best and snapshots alone) without one."""

    folder: Path | None
    identity: dict[str, Any]  # the spec, the data, the tokenizer: a checkpoint of another run is refused
    memory: dict[str, Tensors] = field(default_factory=dict)
    ranks: Ranks | None = None  # where each of them keeps a part of the weights, and writes it
    judged: int | None = None  # a number of the held-out data

    @property
    def last(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        found = [self.folder / name for name in ("last.safetensors", "last.json")] if self.folder else []
        return max((path for path in found if path.is_file()), key=lambda path: path.stat().st_mtime, default=None)

    def remove_partial(self) -> None:
        """Remove what runs that were killed in the midst of writing left beside their files."""
        for path in [*self.folder.rglob(".*")] if self.folder else []:
            if path.is_file() and HALF.fullmatch(path.name):
                path.unlink(missing_ok=True)
            elif path.is_dir() and path.name.startswith(".last-"):
                shutil.rmtree(path, ignore_errors=True)

    def save(
        self, core: nn.Module, optimizer: Any, progress: Progress, settings: Any, mean: optim.Mean | None = None
    ) -> None:
        """Write everything that the run needs to resume exactly."""
        if self.folder is None:
            return
        tensors = {f"weight:{name}": t for name, t in weights(core).items()}
        tensors |= {f"mean:{name}": t for name, t in (mean.values if mean else {}).items()}
        for name, (state, _) in optim.optimizer_states(core, optimizer).items():
            tensors |= {f"{key}:{name}": t for key, t in state.items() if isinstance(t, Tensor)}
        state = {"progress": vars(progress), "identity": self.identity, "machine": describe_machine()}
        state |= {"settings": dataclasses.asdict(settings), "judged": self.judged}
        one, parts = self.folder / "last.safetensors", self.folder / "last.json"
        if self.ranks:
            fsdp.write_parts(parts, tensors, state, self.ranks)
            one.unlink(missing_ok=True)
        else:
            write(one, tensors, state)
            if parts.is_file() or any(self.folder.glob("last-*")):
                fsdp.delete_parts(parts)

    def resume(
        self, core: nn.Module, optimizer: Any, settings: Any, mean: optim.Mean | None = None
    ) -> tuple[Progress, list[str]]:
        """Fill core and optimiser from the newest checkpoint; gives the progress and notes on what differs.

        Raises:
            QkvError: the checkpoint is of another model, tokenizer or data; the message lists each difference.
        """
        assert self.last is not None
        if self.last.suffix == ".json":
            tensors, state = fsdp.read_parts(self.last, core)
        else:
            tensors, state = read(self.last)
            own = dict((*core.named_parameters(), *core.named_buffers()))
            tensors = {n: fsdp.cut_like(own.get(n.partition(":")[2], t), t) for n, t in tensors.items()}
        before = state["identity"]
        if "spec" in before:  # an earlier version's words for the same spec
            before["spec"] = as_json(from_json(Spec | LSTMSpec, before["spec"]))
        if "tokenizer" in (data := before.get("data", {})):
            data["tokenizer"] = rename_keys("tokenizer", data["tokenizer"])
        wrong = list(differences(before, self.identity))
        if wrong:
            raise QkvError("{last}: this checkpoint belongs to another run: {wrong}. Give another --out to start a "
                           "new run",
                           last=self.last, wrong="; ".join(wrong[:6]))
        fill(core, {n.removeprefix("weight:"): t for n, t in tensors.items() if n.startswith("weight:")})
        progress = Progress(**state["progress"])
        if mean is not None:  # where it begins only now, with the weights of now
            begun = {name: tensors.get(f"mean:{name}", t) for name, t in mean.live.items()}
            mean.values = {name: t.to(mean.live[name].device, copy=True) for name, t in begun.items()}
        notes: list[str] = []
        then, now = state["settings"].get("optimizer", settings.optimizer), settings.optimizer
        if memory_kind(then) == memory_kind(now):
            restore_optimizer(core, optimizer, tensors, progress.step)
        else:
            notes.append(Message("{now} cannot use the state that {then} kept for each weight, so it starts without "
                                 "any",
                                 then=then, now=now))
        before = rename_keys("training", state["settings"])
        changed = list(differences(before, json.loads(json.dumps(dataclasses.asdict(settings))), "settings"))
        moved = list(differences(state["machine"], describe_machine(), "machine"))
        notes += [Message("not a bit-for-bit repetition: {d}", d=d) for d in changed + moved]
        if None not in (self.judged, then := state.get("judged")) and then != self.judged:
            progress.best, progress.stale = None, 0  # it won on other data
            notes.append(Message("the held-out data have changed: evaluations from here on cannot be compared with "
                                 "earlier ones, and the best weights are chosen again"))
        return progress, notes

    def keep(self, name: str, core: nn.Module, state: Mapping[str, Any]) -> None:
        """Keep the weights of this moment under a name."""
        if self.folder is None:
            self.memory[name] = {n: t.clone() for n, t in weights(core).items()}
        else:
            write(self.folder / f"{name}.safetensors", weights(core), state)

    def load_kept(self, name: str) -> Tensors:
        """The weights kept under a name."""
        return self.memory[name] if self.folder is None else read(self.folder / f"{name}.safetensors")[0]

    def forget(self, name: str) -> None:
        """Let go of the weights kept under a name."""
        self.memory.pop(name, None)
        if self.folder is not None:
            (self.folder / f"{name}.safetensors").unlink(missing_ok=True)

    def mean(self, names: list[str]) -> Tensors:
        """The mean of the weights kept under some names, summed in fp64 one file at a time."""
        total: Tensors = {}
        for name in names:
            for key, tensor in self.load_kept(name).items():
                total[key] = total[key] + tensor.double() if key in total else tensor.double()
        return {key: (t / len(names)).float() for key, t in total.items()}


def memory_kind(optimizer: str) -> str:
    """The kind of memory that an optimiser has of each weight; Adam and AdamW have the same."""
    return "adam" if optimizer == "adamw" else optimizer


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
