"""Records what a run looks like at chosen steps, without touching it: no weight, no gradient, no random number.

loop.py calls `begin`, `prepare` and `after`; what is read at a step comes in as functions (readings.py), and records.py
reads the files.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training import checkpoint, optim
from qkv.training.probes.records import FORMAT, describe_weights, write_json
from qkv.training.run import ProbeSettings
from qkv.training.run_dir import Report, read_object

Reading = tuple[Any, dict[str, Tensor]]  # JSON, and arrays by name
Readings = Mapping[str, Callable[[], Reading]]
FILE = "{:06}.safetensors"


class Recorder:
    """Writes records of one run: `readings` give the JSON of each name, and arrays whose names begin with it.

    `about` is stored in the index. The time it takes is counted, and kept within the share that the settings allow.
    """

    def __init__(self, readings: Readings, settings: ProbeSettings, about: Mapping[str, Any]) -> None:
        self.readings, self.settings, self.about = readings, settings, dict(about)
        self.index: dict[str, Any] = {}
        self.folder = Path()
        self.last, self.made, self.cost, self.spent, self.size = -1, 0, 0.0, 0.0, 0
        self.pending: dict[str, Any] | None = None  # the step that may be recorded, once it is made:
        self.due = False  # whether it is, or only if the run ends with it
        self.copies: dict[str, Tensor] = {}
        self.gradients: list[float] = []

    def begin(self, core: nn.Module, folder: Path, at: checkpoint.Progress, report: Report) -> None:
        """Take up what an earlier part of the run recorded up to here, or record the first weights."""
        self.core, self.folder, self.report, self.pending = core, folder / "watch", report, None
        rows = self.read_earlier(at.step) if at.step else []
        self.spent = sum(row["took"] for row in rows)
        self.last = rows[-1]["step"] if rows else -1
        self.made, self.cost = len(rows), self.spent / max(1, len(rows))
        self.index = {"format": FORMAT, **self.about, "matrices": describe_weights(optim.named_weights(core)),
                      "spent": self.spent, "steps": rows}
        self.write_index()
        if not at.step:
            self.pending = {"step": 0, "epoch": 0, "seconds": 0.0, "tokens": 0, "loss": None, "lr": None}
            self.due = True
            self.after()

    def read_earlier(self, step: int) -> list[dict[str, Any]]:
        """The rows of the index that an earlier part of the run wrote, up to a step, if their files are there."""
        try:
            found = read_object(self.folder / "index.json")
            rows = [row for row in found["steps"] if (self.folder / FILE.format(row["step"])).is_file()]
            return [row for row in rows if row["step"] <= step] if found["format"] == FORMAT else []
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def write_index(self) -> None:
        """Write the index, then delete what it does not name: a run that resumes records those steps again."""
        write_json(self.folder / "index.json", self.index)
        rows = self.index["steps"]
        for folder, steps in (("", rows), ("weights", [row for row in rows if row["weights"]])):
            names = {FILE.format(row["step"]) for row in steps}
            for path in (self.folder / folder).glob("*.safetensors"):
                if path.name not in names:
                    path.unlink(missing_ok=True)

    def prepare(self, moment: dict[str, Any], total: int, last: bool) -> None:
        """Before the optimiser's step that makes step `moment["step"]` of about `total`: keep what it will change.

        `last`: the run may end with it, which only `end` will know.
        """
        start, self.due = time.perf_counter(), self.is_due(moment["step"], moment["seconds"], total)
        self.pending = moment if self.due or last else None
        if self.pending is None:
            return
        weights = optim.named_weights(self.core)
        self.gradients = [0.0 if p.grad is None else float(p.grad.float().norm()) for p in weights.values()]
        self.copies = {n: p.detach().clone() for n, p in weights.items()}
        self.spent += time.perf_counter() - start

    def is_due(self, step: int, seconds: float, total: int) -> bool:
        """Whether a step is to be recorded: its turn has come, and what is allowed until then covers it."""
        if step in self.settings.steps:
            return True
        if not self.settings.times:
            return False
        known = total < 10**9
        every = max(1, total // self.settings.times) if known else max(1, step // 8)
        double = 2 * self.last if self.last > 0 else 1
        if step < min(double, self.last + every):
            return False
        # early steps are dense: half of what the whole run may spend is there from the start, half comes with time
        whole = seconds / step * total if known else seconds
        left = self.settings.share * (whole + seconds) / 2 - self.spent
        ahead = 2 * self.cost if known else 0.0  # what the last step will need, at worst
        return self.cost <= left and self.cost + ahead <= self.settings.share * whole - self.spent

    def after(self) -> None:
        """Record the step that `prepare` chose, if it did, and report it, or a note where that failed."""
        if self.pending is None or not self.due:
            return
        start, moment = time.perf_counter(), self.pending
        try:
            event = self.record(moment, start)
        except QkvError as e:  # a full disk, or numbers that are not finite: the run is worth more than its record
            text = Message("step {step} was not recorded: {e}", step=moment["step"], e=e)
            event = {"kind": "note", "step": moment["step"], "text": text}
        self.pending, self.copies, self.gradients = None, {}, []
        self.last, self.made, self.spent = moment["step"], self.made + 1, self.spent + time.perf_counter() - start
        self.cost = self.spent / self.made
        self.report(event)

    def end(self, at: checkpoint.Progress, loss: float, lr: float) -> None:
        """Record the last step, at which one looks first; where nothing foretold that it was, not what it moved."""
        if self.last == at.step:
            return
        self.due = True
        if self.pending is None or self.pending["step"] != at.step:
            self.copies, self.gradients = {}, []
            self.pending = {"step": at.step, "epoch": at.epoch, "seconds": at.seconds, "tokens": at.tokens,
                            "loss": loss, "lr": lr}
        self.after()

    def record(self, moment: dict[str, Any], start: float) -> dict[str, Any]:
        """Read everything and write it: arrays and JSON, then the weights, then the index that names them."""
        step, arrays = moment["step"], self.measure_changes()
        said: dict[str, Any] = {**moment, "gradient": math.hypot(*self.gradients) if self.gradients else None}
        for name, reading in self.readings.items():
            said[name], found = reading()
            arrays |= {f"{name}.{key}": t for key, t in found.items()}
        said["took"] = time.perf_counter() - start
        checkpoint.write(self.folder / FILE.format(step), arrays, said)
        kept = self.keep_weights(step)
        outputs = [text["output"] for text in said.get("texts", ())]
        keys = ("step", "epoch", "seconds", "tokens", "loss")
        took = time.perf_counter() - start
        row = {**{k: said[k] for k in keys}, "took": took, "outputs": outputs, "weights": kept}
        self.index["steps"].append(row)
        self.index["spent"] = self.spent + took
        self.drop_weights()
        self.write_index()
        return {"kind": "watch", "step": step, "outputs": outputs, "took": took}

    def measure_changes(self) -> dict[str, Tensor]:
        """The norm of every matrix, of its gradient and of this step's update, and how many rows the step moved."""
        weights = optim.named_weights(self.core)
        found: dict[str, list[float]] = {"weight": [], "gradient": self.gradients, "update": [], "moved": []}
        for name, p in weights.items():
            now, old = p.detach(), self.copies.get(name)
            found["weight"].append(float(now.float().norm()))
            found["update"].append(0.0 if old is None else float((now - old).float().norm()))
            found["moved"].append(0 if old is None else int((now != old).reshape(len(now), -1).any(1).sum()))
        found["gradient"] = found["gradient"] or [0.0] * len(weights)
        kinds = {key: torch.int32 if key == "moved" else torch.float32 for key in found}
        return {f"matrices.{key}": torch.tensor(values, dtype=kinds[key]) for key, values in found.items()}

    def keep_weights(self, step: int) -> bool:
        """Keep the weights of this step on disk; not at all where two of them would pass the limit."""
        weights = checkpoint.weights(self.core)
        self.size = sum(t.numel() * t.element_size() for t in weights.values())
        if 2 * self.size > self.settings.megabytes * 1e6:
            return False
        checkpoint.write(self.folder / "weights" / FILE.format(step), weights, {"step": step})
        return True

    def drop_weights(self) -> None:
        """Let go of weights beyond the limit: of the step whose neighbours are nearest by ratio, never of the ends."""
        kept = [row for row in self.index["steps"] if row["weights"]]
        while len(kept) * self.size > self.settings.megabytes * 1e6:
            if len(kept) < 3:  # not even the ends fit into a limit that was lowered since
                for row in kept:
                    row["weights"] = False
                return
            inner = range(1, len(kept) - 1)
            least = min(inner, key=lambda i: (kept[i + 1]["step"] + 1) / (kept[i - 1]["step"] + 1))
            kept.pop(least)["weights"] = False
