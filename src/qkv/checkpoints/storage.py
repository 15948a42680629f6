"""Files of a model directory: safetensors (one or sharded), foreign .bin weights-only, JSON; nothing is ever lost."""

import errno
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv.errors import QkvError, nearest
from qkv.files import name_missing_bytes
from qkv.gguf_file import KINDS, open_gguf
from qkv.json_files import read_json
from qkv.messages import Message
from qkv.paths import is_gguf

SHARD_BYTES = 5_000_000_000
Tensors = Mapping[str, Callable[[], Tensor]]  # each is read when it is called for


@dataclass(frozen=True)
class Stored:
    """A tensor of a safetensors file, read when it is called for; its shape stands in the header."""

    file: Any
    name: str
    path: Path

    def __call__(self) -> Tensor:
        found: Tensor = self.file.get_tensor(self.name)
        if found.is_complex():
            raise refuse_complex(self.path, self.name, found)
        return found

    @property
    def shape(self) -> list[int]:
        """The shape by the header."""
        return list(self.file.get_slice(self.name).get_shape())


def open_tensors(directory: Path) -> Tensors:
    """The weights of a directory by name, each read when it is called for (memory-mapped where the format allows).

    Raises:
        QkvError: no weights, a broken file, or an index that names a missing file or one outside the directory.
    """
    if is_gguf(directory):
        return open_gguf(directory).tensors
    for single, index, open_file in (
        ("model.safetensors", "model.safetensors.index.json", open_safetensors),
        ("pytorch_model.bin", "pytorch_model.bin.index.json", open_foreign),
    ):
        if (directory / single).is_file():
            return open_file(directory / single)
        if (directory / index).is_file():
            return open_shards(directory, directory / index, open_file)
    here = ", ".join(sorted(p.name for p in directory.glob("*"))[:8]) or "nothing"
    raise QkvError("{directory}: no model.safetensors and no pytorch_model.bin (found: {here})", directory=directory,
                   here=here)


def open_shards(directory: Path, index: Path, open_file: Callable[[Path], Tensors]) -> Tensors:
    """The union of the shards that an index names, each tensor where the index says."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise QkvError("{index}: found no 'weight_map', expected one that names the file of each tensor", index=index)
    shards: dict[str, Tensors] = {}
    for file in dict.fromkeys(map(str, places.values())):
        if Path(file).name != file:
            raise QkvError("{index}: names {file!r}, which lies outside the directory; refused", index=index, file=file)
        if not (directory / file).is_file():
            raise QkvError("{index}: names {file!r}, which is not there; was the download complete?", index=index,
                           file=file)
        shards[file] = open_file(directory / file)
    for name, file in places.items():
        if name not in shards[file]:
            raise QkvError("{index}: says that {name!r} is in {file!r}; it is not{hint}", index=index, name=name,
                           file=file, hint=nearest(name, shards[file]))
    return {name: shards[file][name] for name, file in places.items()}


def open_safetensors(path: Path) -> Tensors:
    """The tensors of one safetensors file, memory-mapped."""
    try:
        file = safe_open(str(path), framework="pt").__enter__()
    except (SafetensorError, OSError) as e:
        raise QkvError("{path}: not a complete safetensors file ({e}); was the download or the copy complete?",
                       path=path, e=e) from None
    if not file.keys():
        raise QkvError("{path}: holds no tensors", path=path)
    return {name: Stored(file, name, path) for name in file.keys()}  # noqa: SIM118


def refuse_complex(path: Path, name: str, found: Tensor) -> QkvError:
    """What to say of weights with an imaginary part."""
    return QkvError("{path}: {name}: found numbers of type {found}, expected real ones", path=path, name=name,
                    found=str(found.dtype).removeprefix("torch."))


def open_foreign(path: Path) -> Tensors:
    """The tensors of a foreign .bin or .pt file: the one place that reads such a file, weights only, never code."""
    try:
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as e:
        raise QkvError("{path}: cannot be read as plain weights ({e}); use a safetensors file", path=path,
                       e=str(e).splitlines()[0]) from None
    if not isinstance(values, dict):
        raise QkvError("{path}: found a {kind}, expected tensors by name", path=path, kind=type(values).__name__)
    tensors = {name: t for name, t in cast("dict[Any, Any]", values).items() if isinstance(t, Tensor)}
    for name, t in tensors.items():
        if not isinstance(name, str) or t.layout is not torch.strided or t.is_quantized or t.is_meta:
            raise QkvError("{path}: {name!r} is sparse, quantised, without data or has no text for its name; expected "
                           "plain tensors by name", path=path, name=name)
        if t.is_complex():
            raise refuse_complex(path, name, t)
    if not tensors:
        raise QkvError("{path}: found {keys}, expected tensors by name; if they lie inside one of these, save that "
                       "alone", path=path, keys=", ".join(map(str, list(values)[:8])) or Message("nothing"))
    return {name: lambda t=t: t for name, t in tensors.items()}


def read_shapes(tensors: Mapping[str, Any]) -> dict[str, list[int]]:
    """The shape of every tensor, from the headers alone where the format has them."""
    return {name: list(getattr(t, "shape", None) or t().shape) for name, t in tensors.items()}


def stored_dtype(directory: Path) -> torch.dtype | None:
    """The type of the first tensor's numbers that are not packed; None for a GGUF file whose matrices are."""
    if not is_gguf(directory):
        kinds = (read().dtype for read in open_tensors(directory).values())
        return next((kind for kind in kinds if kind.is_floating_point and kind.itemsize > 1), None)
    largest = max(open_gguf(directory).tensors.values(), key=lambda t: t.raw.size)
    how = KINDS[largest.kind].unpack
    return how if isinstance(how, torch.dtype) else None


def write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """A JSON value into a file, readable by people."""
    data = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
    with name_missing_bytes(path, len(data)):
        path.write_bytes(data)


def write_safetensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """One safetensors file, readable as the umask allows: the library itself would make it private.

    Raises:
        OSError: it cannot be written; on a full disk with the bytes that are missing.
    """
    path.touch()
    mode = path.stat().st_mode
    with name_missing_bytes(path, sum(t.nbytes for t in tensors.values())):
        try:
            save_file(tensors, path, metadata=metadata or {"format": "pt"})
        except SafetensorError as e:
            found = re.search(r"(?:I/O error: )?([^:]*) \(os error (\d+)\)", str(e))
            raise OSError(int(found[2]) if found else errno.EIO, found[1] if found else str(e), str(path)) from e
    path.chmod(mode)


def write_tensors(directory: Path, named: Mapping[str, Tensor], *, shard_bytes: int = SHARD_BYTES) -> None:
    """Tensors as one model.safetensors, or as shards with an index where they are larger than `shard_bytes`."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in named.items():
        more = tensor.numel() * tensor.element_size()
        if shards[-1] and size + more > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += more
    if len(shards) == 1:
        write_safetensors(shards[0], directory / "model.safetensors")
        return
    places: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(shard, directory / file)
        places |= dict.fromkeys(shard, file)
    total = sum(t.numel() * t.element_size() for t in named.values())
    write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


def hash_files(directory: Path) -> dict[str, str]:
    """The SHA-256 of each file that holds weights, vocabulary or config, by its name."""
    found: dict[str, str] = {}
    for path in [directory] if directory.is_file() else sorted(p for p in directory.iterdir() if p.is_file()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def count_nonfinite(directory: Path, file: str = "") -> dict[str, int]:
    """How many numbers of each tensor of a model, or of one safetensors `file`, are NaN or infinite; 0 is left out."""
    tensors = open_safetensors(directory / file) if file else open_tensors(directory)
    counts = {name: int((~torch.isfinite(read())).sum()) for name, read in tensors.items()}
    return {name: n for name, n in counts.items() if n}
