"""How many bytes a trace will hold, computed before the run; and traces on disk, read tensor by tensor.

A trace on disk is a directory: one safetensors file a call, and index.json. Next: trace.py, which records.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.checkpoints import storage
from qkv.core.cache import Cache
from qkv.core.masks import AttentionBias
from qkv.core.model import Transformer
from qkv.core.positions import Positions
from qkv.core.step import Inputs, active_tracer
from qkv.errors import QkvError
from qkv.lens import selectors
from qkv.messages import Message
from qkv.spec import as_json, from_json

if TYPE_CHECKING:
    from qkv.lens.trace import Call, Trace

FORMAT = 1
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class TapFile(Mapping[str, Tensor]):
    """The taps of one call in a safetensors file; each is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path, tensors = path, storage.open_safetensors(path)
        self.read = {k[4:]: v for k, v in tensors.items() if k.startswith("tap.")}

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
    if not found:
        raise QkvError('budget={text!r}: expected bytes, such as budget="2GB"', text=text)
    return int(float(found[1]) * UNITS[found[2] or ""])


def format_bytes(count: float) -> str:
    """Bytes as text."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


@contextmanager
def pause_tracing() -> Iterator[None]:
    """No tracer records what runs inside."""
    token = active_tracer.set(None)
    try:
        yield
    finally:
        active_tracer.reset(token)


@torch.no_grad()
def bytes_per_token(core: Transformer) -> dict[str, int]:
    """Bytes of each tap for one token of its stack, from a pass over two; cross keys and values count the memory's."""
    from qkv.lens.trace import Trace, tap_names

    ids = torch.zeros(1, 2, dtype=torch.long, device=core.embed.weight.device)
    recorded = [n for n in tap_names(core.spec) if not n.endswith((".score", ".pattern"))]
    with pause_tracing(), Trace(core, save=recorded) as t:
        core(ids, Inputs(source=ids if core.spec.encoder and core.spec.decoder else None))
    return {
        name: x.numel() * x.element_size() // 2
        for run in t.runs for call in run.calls for name, x in call.taps.items()
    }


def of_memory(name: str) -> bool:
    """Whether a tap is made once from the memory and not from each token."""
    return ".cross." in name and name.endswith((".k_pre", ".v"))


def plan_bytes(trace: "Trace", tokens: int, *, source: int = 0, rows: int = 1) -> BytePlan:
    """What a trace would hold of `rows` texts of `tokens` tokens (and of `source` tokens that an encoder reads)."""
    each = trace.each or bytes_per_token(trace.core)
    both = trace.core.spec.encoder is not None and trace.core.spec.decoder is not None
    from_source = {n for n in each if both and (n.startswith("encoder.") or of_memory(n))}
    counts = {n: source if selectors.parse_selector(n)[0] in from_source else tokens for n in sorted(trace.needed)}
    slots = {n: selectors.resolve_slots(selectors.parse_selector(n)[1], 0, count) for n, count in counts.items()}
    taps = {n: bytes_per_selector(trace, n, each) * rows * len(slots[n]) for n in counts}
    taps = {n: taken for n, taken in taps.items() if taken}
    return BytePlan(sum(taps.values()), taps)


def bytes_per_selector(trace: "Trace", name: str, each: Mapping[str, int]) -> int:
    """Bytes that a selector keeps of one token, 0 where its tap is rebuilt from others."""
    tap, cut = selectors.parse_selector(name)
    count = trace.count_heads(tap)
    return each.get(tap, 0) * len(selectors.resolve_heads(name, count)) // count if cut.heads else each.get(tap, 0)


def check_budget(trace: "Trace", call: "Call", first: bool) -> None:
    """Refuse a call whose taps would not fit into what is left of the budget, before it runs.

    Raises:
        QkvError: with the bytes that are needed, those allowed, and the largest taps.
    """
    side = next((s for s in ("encoder", "decoder") if getattr(trace.core, s, None) is call.stack), "")
    both = trace.core.spec.encoder is not None and trace.core.spec.decoder is not None
    own = {n for n in trace.needed if not both or n.startswith("encoder.") == (side == "encoder")}
    rows, tokens = call.ids.shape
    taps: dict[str, int] = {}
    for n in own:
        tap, cut = selectors.parse_selector(n)
        of, at, count = (call.sources * first, 0, call.across) if of_memory(tap) else (rows, call.start, tokens)
        taps[n] = bytes_per_selector(trace, n, trace.each) * of * len(selectors.resolve_slots(cut, at, count))
    wanted = BytePlan(sum(taps.values()), taps)
    if trace.held + wanted.bytes > trace.budget:
        kept = Message("")
        if trace.held:
            kept = Message(" beside {spoken} kept already", spoken=format_bytes(trace.held))
        raise QkvError("trace: {rows} x {tokens} tokens would take {spoken}{kept}, and the budget is {spoken2}; the "
                       "largest are {largest}. Save fewer taps, or write to disk: to=FOLDER", rows=rows, tokens=tokens,
                       spoken=format_bytes(wanted.bytes), kept=kept, spoken2=format_bytes(trace.budget),
                       largest=wanted.list_largest())
    trace.held += wanted.bytes


def spill_calls(trace: "Trace", directory: Path) -> None:
    """Write the taps of every finished call that are still in memory, a file each, and read them from there."""
    directory.mkdir(parents=True, exist_ok=True)
    for call in (c for run in trace.runs for c in run.calls if not isinstance(c.taps, TapFile)):
        path = directory / f"{len(list(directory.glob('*.safetensors'))):05d}.safetensors"
        storage.write_safetensors(collect_tensors(call), path)
        call.taps = TapFile(path)
    trace.held = 0


def collect_tensors(call: "Call") -> dict[str, Tensor]:
    """Everything of a call that is a tensor, by name."""
    found = {f"tap.{name}": x for name, x in call.taps.items()}
    found |= {"ids": call.ids, **{f"place.{n}": x for n, x in call.place._asdict().items()}}
    found |= {f"mask.{i}": s.bias for i, s in enumerate(call.mask.values()) if s.bias is not None}
    return {name: x.contiguous().clone() for name, x in found.items()}


def save_trace(trace: "Trace", directory: Path | str) -> Path:
    """Write a trace as a new directory that `load` reads, whole or not at all.

    Raises:
        QkvError: the directory is not empty.
    """
    directory = Path(directory)
    require_empty(directory)
    with storage.replace_dir(directory) as aside:
        for n, call in enumerate(c for run in trace.runs for c in run.calls):
            storage.write_safetensors(collect_tensors(call), aside / f"{n:05d}.safetensors")
        write_index(trace, aside)
    return directory


def write_index(trace: "Trace", directory: Path) -> None:
    """Write the index, last: a directory without it is not a trace."""
    calls = [(number, run.stack, call) for number, run in enumerate(trace.runs) for call in run.calls]
    rows = [{"run": number, "stack": stack, "file": name_call_file(call, n, directory), **describe_call(call)}
            for n, (number, stack, call) in enumerate(calls)]
    names = {"wanted": sorted(trace.wanted), "needed": sorted(trace.needed)}
    content = {"format": FORMAT, "spec": as_json(trace.core.spec), **names, "calls": rows}
    storage.write_json(directory / "index.json", content)


def name_call_file(call: "Call", n: int, directory: Path) -> str:
    """The file of a call in a directory: where it was spilled, else by its number."""
    spilled = isinstance(call.taps, TapFile) and call.taps.path.parent == directory
    return call.taps.path.name if spilled else f"{n:05d}.safetensors"  # type: ignore[union-attr]


def describe_call(call: "Call") -> dict[str, Any]:
    """The fields of a call that are not tensors."""
    masks = [{"causal": s.causal, "bias": s.bias is not None} for s in call.mask.values()]
    return {"start": call.start, "mode": call.mode, "sources": call.sources, "across": call.across, "masks": masks,
            "parents": call.parents}


def require_empty(directory: Path) -> None:
    """Raise a QkvError where the directory is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise QkvError("{directory}: not empty; give a new directory for the trace",
                       directory=directory)


def load_trace(directory: Path | str, core: Transformer, tokenizer: Any = None) -> "Trace":
    """A trace from disk, of the core that it was recorded from; its taps are read when they are asked for.

    Raises:
        QkvError: there is no trace, it has another format, or its model had another spec.
    """
    from qkv.lens.trace import Call, Run, Trace

    directory = Path(directory)
    index = storage.read_json(directory / "index.json")
    if index.get("format") != FORMAT:
        raise QkvError("{directory}: a trace of format {format}, expected {format2}", directory=directory,
                       format=index.get("format"), format2=FORMAT)
    if from_json(type(core.spec), index["spec"]) != core.spec:
        raise QkvError("{directory}: was recorded from a model of another spec than the one given",
                       directory=directory)
    trace = Trace(core, tokenizer=tokenizer)
    trace.wanted, trace.needed = set(index["wanted"]), set(index["needed"])
    for row in index["calls"]:
        path = directory / row["file"]
        read, stack = storage.open_safetensors(path), getattr(core, row["stack"])
        masks = {rule: AttentionBias(read[f"mask.{i}"]() if mask["bias"] else None, mask["causal"])
                 for i, (rule, mask) in enumerate(zip(stack.masks, row["masks"], strict=True))}
        place = Positions(*(read[f"place.{n}"]() for n in Positions._fields))
        call = Call(stack, read["ids"](), row["start"], row["mode"], masks, row["sources"], place, row["across"],
                    TapFile(path), row.get("parents"))
        if row["run"] == len(trace.runs):
            trace.runs.append(Run(row["stack"], Cache()))
        trace.runs[row["run"]].calls.append(call)
    return trace
