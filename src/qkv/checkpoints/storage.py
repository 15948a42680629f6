"""Files of a model directory: safetensors (one or sharded), foreign .bin weights-only, JSON; nothing is ever lost."""

import errno
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv.errors import QkvError, nearest
from qkv.files import name_missing_bytes
from qkv.gguf_file import KINDS, open_gguf
from qkv.paths import is_gguf

SHARD_BYTES = 5_000_000_000
Tensors = dict[str, Callable[[], Tensor]]  # each is read when it is called for


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; QkvError names the file, and the line where it breaks."""
    value = parse_json(path)
    if not isinstance(value, dict):
        raise QkvError("{path}: found a {kind}, expected a JSON object", path=path, kind=type(value).__name__)
    return value


def parse_json(path: Path) -> Any:
    """What a JSON file holds; errors as of `read_json`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        raise QkvError("{path}: no such file{hint}", path=path, hint=nearest(path.name, beside)) from None
    except UnicodeDecodeError as e:
        raise QkvError("{path}: not UTF-8 at byte {start}", path=path, start=e.start) from None
    except json.JSONDecodeError as e:
        raise QkvError("{path}, line {lineno}: not JSON ({msg})", path=path, lineno=e.lineno, msg=e.msg) from None


def open_tensors(directory: Path) -> Tensors:
    """The weights of a directory by name, each read when it is called for (memory-mapped where the format allows).

    Raises:
        QkvError: no weights, a broken file, or an index that names a missing file or one outside the directory.
    """
    if is_gguf(directory):
        return {name: tensor.unpack for name, tensor in open_gguf(directory).tensors.items()}
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
    return {name: lambda name=name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def open_foreign(path: Path) -> Tensors:
    """The tensors of a foreign .bin or .pt file: the one place that reads such a file, weights only, never code."""
    try:
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as e:
        raise QkvError("{path}: cannot be read as plain weights ({e}); use a safetensors file", path=path,
                       e=str(e).splitlines()[0]) from None
    return {name: lambda t=t: t for name, t in values.items() if isinstance(t, Tensor)}


def read_shapes(directory: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor of the safetensors (or GGUF) files, from the headers alone."""
    if is_gguf(directory):
        return {name: list(tensor.shape) for name, tensor in open_gguf(directory).tensors.items()}
    found: dict[str, list[int]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            found |= {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return found


def stored_dtype(directory: Path) -> torch.dtype | None:
    """The type of the first tensor's numbers; None for a GGUF file whose matrices are packed."""
    if not is_gguf(directory):
        return next(iter(open_tensors(directory).values()))().dtype
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
