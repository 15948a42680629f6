"""Devices and dtypes by the names that people type: auto, cuda:0, fp32, bf16."""

import torch

from qkv import memory
from qkv.errors import QkvError, nearest


def parse_device(name: str) -> torch.device:
    """The device of a name: auto takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise QkvError("unknown device {name!r} (known: auto, cpu, cuda, cuda:0, mps)", name=name) from None
    count = {"cuda": torch.cuda.device_count, "mps": torch.backends.mps.is_available}.get(device.type)
    if count and (device.index or 0) >= (there := int(count())):
        raise QkvError("device {name!r}: this machine, or this build of PyTorch, has {there} of these; use --device "
                       "cpu",
                       name=name, there=there)
    return device


def read_free_memory(name: str) -> int | None:
    """The bytes that are free on a device; None where nobody says."""
    device = parse_device(name)
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory.read_free()


DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def parse_dtype(name: str) -> torch.dtype | None:
    """The dtype of a name; auto is None: the checkpoint decides."""
    if name not in DTYPES:
        raise QkvError("unknown dtype {name!r}{hint} (known: {dtypes})", name=name, hint=nearest(name, DTYPES),
                       dtypes=", ".join(DTYPES))
    return DTYPES[name]
