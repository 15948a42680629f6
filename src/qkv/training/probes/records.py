"""What a run recorded of itself at chosen steps of training, read lazily. recorder.py writes it.

A record holds arrays and JSON in one safetensors file; `index.json` names the records and the matrices.
Letters: S recorded steps, N matrices, W watched words, D width.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qkv.core.model import Transformer
from qkv.data.collate import Batch
from qkv.errors import QkvError
from qkv.files import to_json, write_text_file
from qkv.json_files import read_json
from qkv.messages import Message
from qkv.training import run_dir
from qkv.training.losses import states

FOLDER = Path(run_dir.FOLDER, "watch")
FORMAT = 1
REQUESTS_FILE, REQUESTS, LONGEST_REQUEST = "wishes.json", 3, 120  # a file, texts in it, characters of a text
PARTS = (  # what a weight is: the first pattern that its name fits says so
    (r"\.bias$", "bias"), (r"layers\..*(attn|cross)\.q\.\w+$", "W_Q"), (r"layers\..*(attn|cross)\.k\.\w+$", "W_K"),
    (r"layers\..*(attn|cross)\.v\.\w+$", "W_V"), (r"layers\..*(attn|cross)\.out\.\w+$", "W_O"),
    (r"^(source_)?embed\.\w+$", "embedding"), (r"layers\..*moe\.router\.\w+$", "router"),
    (r"(norm|_sum|_in|_out)\.\w+$", "norm"), (r"moe\.", "experts"), (r"ffn\.", "FFN"),
    (r"position|segments|relative", "position"), (r"head|labels", "head"),
)


@dataclass(frozen=True)
class WeightChange:
    """How far a matrix went between two steps: rows that are others bit for bit, the distance and the norm before."""

    name: str
    part: str
    rows: int
    moved: int
    distance: float
    norm: float


def kind_of_weight(name: str) -> str:
    """What a weight is, by its name: W_Q … W_O, FFN, embedding, position, head, router, experts, norm, bias, other."""
    return next((part for pattern, part in PARTS if re.search(pattern, name)), "other")


def describe_weights(weights: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """What the index says of each weight, in the order of the arrays `matrices.*`."""
    found: list[dict[str, Any]] = []
    for name, p in weights.items():
        words = name.split(".")
        layer = int(words[words.index("layers") + 1]) if "layers" in words else None
        stack = words[0] if words[0] in ("encoder", "decoder") else ""
        place = {"part": kind_of_weight(name), "stack": stack, "layer": layer, "cross": ".cross." in name}
        found.append({"name": name, **place, "rows": p.shape[0], "columns": p.numel() // max(1, p.shape[0])})
    return found


def find_recorded_runs(folder: Path | str) -> list[Path]:
    """The directories of watched runs: the folder itself or those below it, by name."""
    return sorted(path.parents[2] for path in Path(folder).rglob(str(FOLDER / "index.json")))


def read_requests(folder: Path) -> tuple[str, ...]:
    """The texts asked for in a folder of records; none where the file is not there or not whole."""
    try:
        found = run_dir.read_object(folder / REQUESTS_FILE)["texts"]
        return tuple(str(text) for text in found[:REQUESTS])
    except (KeyError, TypeError):
        return ()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object as a file, whole or not at all; errors as of `write_text_file`."""
    write_text_file(path, to_json(value))


@contextmanager
def open_record(path: Path) -> Iterator[Any]:
    """A safetensors file while it is read; a QkvError where it is broken or gone."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("a directory, a pipe or a device")
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (OSError, SafetensorError, json.JSONDecodeError) as e:
        raise QkvError("{path}: not a complete record of a run ({e}); was it deleted, or the disk full?", path=path,
                       e=e) from None


class Record:
    """What was recorded at one step: `json`, and arrays by name, each read on access.

    Raises:
        QkvError: an array that this record lacks; the error names those that it has.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step
        with open_record(path) as file:
            self.names = tuple(file.keys())

    @cached_property
    def json(self) -> dict[str, Any]:
        """What was recorded besides arrays."""
        with open_record(self.path) as file:
            return json.loads((file.metadata() or {}).get("state", ""))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise QkvError("step {step} has no array {name!r} (it has: {names})", step=self.step, name=name,
                           names=", ".join(self.names))
        with open_record(self.path) as file:
            return file.get_tensor(name)


class ProbeLog:
    """The records of a run's directory; only the index is read until one is accessed.

    Raises:
        QkvError: nothing was recorded there, or no record of a step; the error names the nearest steps.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory, self.folder = Path(directory), Path(directory) / FOLDER
        if not (self.folder / "index.json").exists():
            raise QkvError("{directory}: this run recorded nothing during training; train with watch.times=40, such "
                           "as qkv train demo watch.times=40", directory=self.directory)
        found = read_json(self.folder / "index.json")
        lists = [found.get("steps"), found.get("matrices")]
        rows = [row for some in lists for row in (some if isinstance(some, list) else [None])]
        if not all(isinstance(row, dict) for row in rows):
            raise QkvError("{folder}: expected steps and matrices, a list of objects each",
                           folder=self.folder / "index.json")
        if found.get("format") != FORMAT:
            raise QkvError("{folder}: records of format {format}, expected {format2}", folder=self.folder,
                           format=found.get("format"), format2=FORMAT)
        self.index: dict[str, Any] = found

    @property
    def steps(self) -> list[int]:
        """The recorded steps."""
        return [row["step"] for row in self.index["steps"]]

    @property
    def kept(self) -> list[int]:
        """The steps whose weights were kept."""
        return [row["step"] for row in self.index["steps"] if row["weights"]]

    @property
    def requests(self) -> tuple[str, ...]:
        """The texts that readers of the run asked for while it learns: the next record is the first to have them."""
        return read_requests(self.folder)

    def request_text(self, text: str) -> None:
        """Ask for one more text, the first of them; the oldest one beyond REQUESTS goes.

        Raises:
            QkvError: no text, or one longer than LONGEST_REQUEST characters.
        """
        text = " ".join(text.split())
        if not 0 < len(text) <= LONGEST_REQUEST:
            raise QkvError("a text to watch has 1 to {longest_request} characters, found {text}",
                           longest_request=LONGEST_REQUEST, text=len(text))
        kept = [w for w in self.requests if w != text][: REQUESTS - 1]
        write_json(self.folder / REQUESTS_FILE, {"texts": [text, *kept]})

    def find_nearest(self, step: int) -> int:
        """The recorded step nearest to one; the step itself where there is none."""
        return min(self.steps, key=lambda n: (abs(n - step), n), default=step)

    def read(self, step: int) -> Record:
        """What was recorded at a step."""
        self.check_step(step, self.steps, Message("nothing was recorded"))
        return Record(self.folder / f"{step:06}.safetensors", step)

    def check_step(self, step: int, known: list[int], lack: Message) -> None:
        """A QkvError where a step is not among those known."""
        if step not in known:
            near = ", ".join(map(str, sorted(sorted(known, key=lambda n: abs(n - step))[:5]))) or Message("none")
            raise QkvError("{directory}: {lack} at step {step} (the nearest: {near})", directory=self.directory,
                           lack=lack, step=step, near=near)

    def weights(self, step: int) -> dict[str, Tensor]:
        """All weights after a step."""
        self.check_step(step, self.kept, Message("no weights were kept"))
        with open_record(self.folder / "weights" / f"{step:06}.safetensors") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping

    def series(self, name: str) -> Tensor:
        """One array at every recorded step, [S, …]; their JSON is not read.

        Raises:
            QkvError: a step has no such array.
        """
        return torch.stack([self.read(step)[name] for step in self.steps]) if self.steps else torch.zeros(0)

    def paths(self) -> Tensor:
        """The way of the watched words over the steps [S, W, 2]: their vectors in their two main directions.

        Principal components of all steps and words together (Pearson 1901), so one picture holds the whole way.
        """
        if not (self.steps and self.index.get("words")):
            return torch.zeros(len(self.steps), 0, 2)
        states = self.series("words.vectors").double()  # S W D
        rows = states.flatten(0, 1) - states.mean((0, 1))
        _, _, axes = torch.linalg.svd(rows, full_matrices=False)
        ways = rows @ axes[:2].mT
        return torch.nn.functional.pad(ways, (0, 2 - ways.shape[1])).view(*states.shape[:2], 2).float()

    def compare_weights(self, first: int, last: int) -> list[WeightChange]:
        """What moved between two steps, matrix by matrix in the order of the index; both need their weights."""
        before, after, found = self.weights(first), self.weights(last), list[WeightChange]()
        for name in (m["name"] for m in self.index["matrices"] if m["name"] in after):
            old, now = before[name], after[name]
            moved = int((now != old).reshape(len(old), -1).any(1).sum())
            distance, norm = float((now - old).float().norm()), float(old.float().norm())
            found.append(WeightChange(name, kind_of_weight(name), len(old), moved, distance, norm))
        return found


@torch.no_grad()
def count_forward_changes(core: Transformer) -> tuple[int, int]:
    """How many weights differ after a forward pass, bit for bit, and of how many."""
    before = {name: p.clone() for name, p in core.named_parameters()}
    ids = torch.arange(min(8, core.spec.vocabulary), device=core.embed.weight.device)[None]
    source = ids if core.spec.encoder and core.spec.decoder else None
    states(core, Batch(ids, ids, source))
    return sum(not torch.equal(p, before[name]) for name, p in core.named_parameters()), len(before)


def rank_word_changes(
    w: ProbeLog, first: int, last: int, tokenizer: Any, found: list[WeightChange]
) -> list[tuple[str, float]]:
    """The five words whose embeddings went farthest and the five that went least, by distance."""
    name = next((m.name for m in found if m.part == "embedding"), None)
    if name is None or tokenizer is None:
        return []
    old, new = (w.weights(n)[name].float() for n in (first, last))
    far = (new - old).norm(dim=1)[: len(tokenizer)]
    order = far.argsort(descending=True).tolist()
    return [(tokenizer.pieces([i])[0].strip(), float(far[i])) for i in (*order[:5], *order[-5:])]
