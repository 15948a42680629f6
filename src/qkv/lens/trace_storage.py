"""How many bytes a trace will hold, computed before the run; and traces on disk, read tensor by tensor.

A trace on disk is a directory: one safetensors file a call, and index.json. Next: recording.py, which records.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from rich.filesize import decimal as format_bytes
from torch import Tensor

from qkv.arguments import Count, Range
from qkv.checkpoints import storage
from qkv.core.cache import Cache
from qkv.core.masks import AttentionBias
from qkv.core.model import Transformer
from qkv.core.positions import Positions
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.files import replace_dir
from qkv.json_files import read_json
from qkv.lens.taps import Call, Run, of_memory, tap_names, use_tracer
from qkv.messages import Message
from qkv.spec import as_json, from_json

if TYPE_CHECKING:
    from qkv.lens.recording import Recording
    from qkv.lens.trace import Trace

FORMAT = 1
FIELDS = ("start", "mode", "sources", "across", "parents")  # of a call, in the index
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class TapFile(Mapping[str, Tensor]):
    """The taps of one call in a safetensors file; each is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read = {k[4:]: v for k, v in storage.open_safetensors(path).items() if k.startswith("tap.")}

    def __getitem__(self, name: str) -> Tensor:
        return self.read[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.read)

    def __len__(self) -> int:
        return len(self.read)


@dataclass(frozen=True)
class BytePlan:
    """What a trace will hold: bytes in all, and of each tap."""

    bytes: int
    taps: dict[str, int]

    def list_largest(self, count: int = 3) -> str:
        """The largest taps, as text."""
        most = sorted(self.taps, key=self.taps.__getitem__, reverse=True)[:count]
        return ", ".join(f"{name} {format_bytes(self.taps[name])}" for name in most)


def parse_bytes(text: str | int) -> int:
    """Bytes from a number or from words such as "2GB", "60 MB" or "1GiB"."""
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text.lower())
    if not found or not float(found[1]):
        raise QkvError('budget={text!r}: expected bytes, such as budget="2GB"', text=text)
    return int(float(found[1]) * UNITS[found[2] or ""])


@torch.no_grad()
def bytes_per_token(core: Transformer) -> dict[str, int]:
    """Bytes of each tap for one token of its stack, from a pass over two; cross keys and values count the memory's."""
    from qkv.lens.recording import Recording

    ids = torch.zeros(1, 2, dtype=torch.long, device=core.embed.weight.device)
    recorded = [n for n in tap_names(core.spec) if not n.endswith((".score", ".pattern"))]
    with use_tracer(None), Recording(core, save=recorded) as t:
        core(ids, Inputs(source=ids if core.spec.encoder and core.spec.decoder else None))
    return {
        name: x.numel() * x.element_size() // 2
        for run in t.runs for call in run.calls for name, x in call.taps.items()
    }


def count_bytes(t: "Recording", names: Iterable[str], locate: Callable[[str], tuple[int, int, int]]) -> BytePlan:
    """The bytes of selectors, 0 where a tap is rebuilt from others; `locate` gives a tap's rows, first slot, count."""
    each, taps = t.each or bytes_per_token(t.core), dict[str, int]()
    for s in map(t.select, sorted(names)):
        rows, first, count = locate(s.tap)
        heads, every = (1, 1) if s.heads is None else (len(s.heads), t.count_heads(s.tap))
        places = len(s.list_slots(first, count)) if s.pos else count
        taps[s.name] = each.get(s.tap, 0) * heads // every * rows * places
    taps = {name: taken for name, taken in taps.items() if taken}
    return BytePlan(sum(taps.values()), taps)


def plan_bytes(t: "Recording", tokens: Count, *, source: Annotated[int, Range(0)] = 0, rows: Count = 1) -> BytePlan:
    """The bytes that a trace would hold of texts of that many tokens (and of a source), in all and by tap."""
    both = t.core.spec.encoder is not None and t.core.spec.decoder is not None

    def locate_tap(tap: str) -> tuple[int, int, int]:
        return rows, 0, source if both and (tap.startswith("encoder.") or of_memory(tap)) else tokens

    return count_bytes(t, t.needed, locate_tap)


def check_budget(t: "Recording", call: "Call", first: bool) -> None:
    """Refuse a call whose taps would not fit into what is left of the budget, before it runs.

    Raises:
        QkvError: with the bytes that are needed, those allowed, and the largest taps.
    """
    rows, tokens = call.ids.shape
    spec = t.core.spec
    side = "encoder." if spec.encoder and spec.decoder and call.stack is t.core.encoder else ""

    def locate_tap(tap: str) -> tuple[int, int, int]:
        return (call.sources * first, 0, call.across) if of_memory(tap) else (rows, call.start, tokens)

    own = {n for n in t.needed if n.startswith("encoder.") == bool(side)}
    wanted = count_bytes(t, own, locate_tap)
    if t.held + wanted.bytes > t.budget:
        kept = Message(" beside {spoken} kept already", spoken=format_bytes(t.held)) if t.held else Message("")
        raise QkvError("trace: {rows} x {tokens} tokens would take {spoken}{kept}, and the budget is {spoken2}; the "
                       "largest are {largest}. Save fewer taps, or write to disk: to=FOLDER", rows=rows, tokens=tokens,
                       spoken=format_bytes(wanted.bytes), kept=kept, spoken2=format_bytes(t.budget),
                       largest=wanted.list_largest())
    t.held += wanted.bytes


def spill_calls(t: "Recording", directory: Path) -> None:
    """Write the taps of every finished call that are still in memory, a file each, and read them from there."""
    directory.mkdir(parents=True, exist_ok=True)
    for call in (c for run in t.runs for c in run.calls if not isinstance(c.taps, TapFile)):
        path = directory / f"{len(list(directory.glob('*.safetensors'))):05d}.safetensors"
        spill_call(call, path)
        call.taps = TapFile(path)
    t.held = 0


def spill_call(call: Call, path: Path) -> None:
    """Write everything of a call that is a tensor, by name."""
    found = {f"tap.{name}": x for name, x in call.taps.items()}
    found |= {"ids": call.ids, **{f"place.{n}": x for n, x in call.place._asdict().items()}}
    found |= {f"mask.{i}": s.bias for i, s in enumerate(call.mask.values()) if s.bias is not None}
    storage.write_safetensors({name: x.contiguous().clone() for name, x in found.items()}, path)


def save_trace(t: "Recording", directory: Path | str) -> Path:
    """Write a trace as a new directory of safetensors with an index, whole or not at all; `model.load_trace` opens it.

    Raises:
        QkvError: the directory is not empty.
    """
    directory = Path(directory)
    require_empty(directory)
    with replace_dir(directory) as aside:
        for n, call in enumerate(c for run in t.runs for c in run.calls):
            spill_call(call, aside / f"{n:05d}.safetensors")
        write_index(t, aside)
    return directory


def write_index(t: "Recording", directory: Path) -> None:
    """Write the index, last: a directory without it is not a trace."""
    rows: list[dict[str, Any]] = []
    for number, run in enumerate(t.runs):
        for call in run.calls:
            spilled = isinstance(call.taps, TapFile) and call.taps.path.parent == directory
            file = call.taps.path.name if spilled else f"{len(rows):05d}.safetensors"  # type: ignore[union-attr]
            masks = [{"causal": s.causal, "bias": s.bias is not None} for s in call.mask.values()]
            rows.append({"run": number, "stack": run.stack, "file": file, "masks": masks,
                         **{field: getattr(call, field) for field in FIELDS}})
    storage.write_json(directory / "index.json", {
        "format": FORMAT, "spec": as_json(t.core.spec), "wanted": sorted(t.wanted), "needed": sorted(t.needed),
        "calls": rows})


def require_empty(directory: Path) -> None:
    """Raise a QkvError where the directory is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise QkvError("{directory}: not empty; give a new directory for the trace", directory=directory)


def load_trace(directory: Path | str, core: Transformer, tokenizer: Any = None) -> "Trace":
    """A trace from disk, of the core that it was recorded from; its taps are read when they are asked for.

    Raises:
        QkvError: there is no trace, it has another format, or its model had another spec.
    """
    from qkv.lens.trace import Trace

    directory = Path(directory)
    index = read_json(directory / "index.json")
    if index.get("format") != FORMAT:
        raise QkvError("{directory}: a trace of format {format}, expected {format2}", directory=directory,
                       format=index.get("format"), format2=FORMAT)
    if from_json(type(core.spec), index["spec"]) != core.spec:
        raise QkvError("{directory}: was recorded from a model of another spec than the one given", directory=directory)
    trace = Trace(core, tokenizer=tokenizer)
    trace.wanted, trace.needed = set(index["wanted"]), set(index["needed"])
    for row in index["calls"]:
        path = directory / row["file"]
        read, stack = storage.open_safetensors(path), getattr(core, row["stack"])
        masks = {rule: AttentionBias(read[f"mask.{i}"]() if mask["bias"] else None, mask["causal"])
                 for i, (rule, mask) in enumerate(zip(stack.masks, row["masks"], strict=True))}
        place = Positions(*(read[f"place.{n}"]() for n in Positions._fields))
        call = Call(stack, read["ids"](), mask=masks, place=place, taps=TapFile(path),
                    **{field: row.get(field) for field in FIELDS})
        if row["run"] == len(trace.runs):
            trace.runs.append(Run(row["stack"], Cache()))
        trace.runs[row["run"]].calls.append(call)
    return trace
