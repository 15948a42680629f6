"""The weights that a run keeps: read from its files, checked, and put into a core."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.messages import Message, join

Tensors = dict[str, Tensor]


def collect_weights(core: nn.Module) -> Tensors:
    """What training moves, by name: the weights that learn, a tied matrix once, and what steers routers; not copies."""
    learning = ((name, p) for name, p in core.named_parameters() if p.requires_grad)
    return {name: p.detach() for name, p in (*learning, *core.named_buffers())}


def fill_weights(core: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put weights into a core, all of them and no others."""
    own = collect_weights(core)
    wrong = sorted(n for n in own.keys() & values.keys() if own[n].shape != values[n].shape)
    if own.keys() != values.keys() or wrong:
        missing, extra = sorted(own.keys() - values.keys()), sorted(values.keys() - own.keys())
        lacks, besides = ", ".join(missing[:5]), ", ".join(extra[:5])
        found = [Message("it lacks {lacks}", lacks=lacks)] if missing else []
        found += [Message("it has {besides} in addition", besides=besides)] if extra else []
        found += [Message("{n} was {shape}, now {shape2}", n=n, shape=list(values[n].shape),
                          shape2=list(own[n].shape)) for n in wrong[:5]]
        raise QkvError("checkpoint: its weights belong to another model, or to another training.lora: {found}. Give "
                       "another --out to start a new run", found=join("; ", found))
    for name, tensor in own.items():
        tensor.copy_(values[name])


def read_checkpoint(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the JSON of a checkpoint file; QkvError where it is not one."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("a directory, a pipe or a device")
        with safe_open(str(path), framework="pt") as file:
            found = file.metadata() or {}
            state = json.loads(found.get("state", ""))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if found.get("crc32", now := checksum(tensors, found["state"])) != now:
            raise QkvError("{path}: corrupted since it was saved (its checksum differs); continue from a copy, or "
                           "delete it to start a new run", path=path)
        return tensors, state
    except (OSError, SafetensorError, json.JSONDecodeError) as e:
        raise QkvError("{path}: not a complete checkpoint of a run ({e}); delete it to start a new run", path=path,
                       e=e) from None


def checksum(tensors: Mapping[str, Tensor], said: str) -> str:
    """A checksum of all that a checkpoint holds: corruption by a disk or a copy is found, not trained on."""
    found = zlib.crc32(said.encode("utf-8"))
    for name in sorted(tensors):
        found = zlib.crc32(name.encode("utf-8"), found)
        found = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"
