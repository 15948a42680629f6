"""Devices and dtypes by the names that people type: auto, cuda:0, fp32, bf16."""

import torch

from qkv.errors import QkvError, nearest


def parse_device(name: str) -> torch.device:
    """The device of a name: auto takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise QkvError(f"unknown device {name!r} (known: auto, cpu, cuda, cuda:0, mps)",
                       zh=f"没有设备 {name!r}（有的：auto、cpu、cuda、cuda:0、mps）") from None  # fmt: skip
    count = {"cuda": torch.cuda.device_count, "mps": torch.backends.mps.is_available}.get(device.type)
    if count and (device.index or 0) >= (there := int(count())):
        raise QkvError(f"device {name!r}: this machine, or this build of PyTorch, has {there} such; take --device cpu",
                       zh=f"设备 {name!r}：这台机器或这个 PyTorch 有 {there} 个；请用 --device cpu")  # fmt: skip
    return device


DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}  # fmt: skip


def parse_dtype(name: str) -> torch.dtype | None:
    """The dtype of a name; auto is None: the checkpoint decides."""
    if name not in DTYPES:
        raise QkvError(f"unknown dtype {name!r}{nearest(name, DTYPES)} (known: {', '.join(DTYPES)})",
                       zh=f"没有数值类型 {name!r}{nearest(name, DTYPES).zh}（有的：{', '.join(DTYPES)}）")  # fmt: skip
    return DTYPES[name]
