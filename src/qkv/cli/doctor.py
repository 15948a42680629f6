"""`qkv doctor`: what this machine gives, measured in about a second where measuring is the only honest answer."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, count_cores, verb
from qkv.messages import Message

GIB = 2**30


@verb("Report what this machine can do: PyTorch version, devices, CPU instructions, measured fp32 and bf16 speed, "
      "memory, disk and cache.",
      examples=("qkv doctor", "qkv doctor --json", "qkv doctor --threads 1"))
def command(common: Common) -> None:
    report = examine()
    common.print_result(report, list_parts(common, report))


TITLES = {"versions": Message("versions"), "machine": Message("machine"), "kernels": Message("what will run"),
          "space": Message("space"), "cache": Message("cache")}
WORDS = {"None": "-", "True": "yes", "False": "no"}


def list_parts(common: Common, report: dict[str, Any]) -> Iterator[str]:
    """The report as people read it, part by part."""
    for part, title in TITLES.items():
        yield click.style(common.say(title), bold=True)
        for key, value in report[part].items():
            yield f"  {key.replace('_', ' '):<21} {WORDS.get(str(value), value)}"
    if others := report["kernels"]["own_openmp"]:
        yield common.say("{others} bring an OpenMP runtime of their own. Idle threads of one keep the cores from "
                         "another: where they work in turn with this, give each a process of its own.", others=others)


def examine() -> dict[str, Any]:
    """Everything that `qkv doctor` prints, as one object; sizes in GiB, speeds in GFLOP/s."""
    import torch

    from qkv import __version__
    from qkv.adapt import native, row_layers
    from qkv.devices import find_openmp, list_openmp, parse_device, read_free
    from qkv.training.machine import measure_peak

    device, free = parse_device("auto").type, read_free()
    speed = {name: round(measure_peak("cpu", name) / 1e9, 1) for name in ("fp32", "bf16")}
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    names = ("torch", "safetensors", "tokenizers", "huggingface_hub", "numpy", "transformers")
    return {
        "versions": {"qkv": __version__, "python": platform.python_version(), **{n: _version(n) for n in names}},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}", "device": device,
            "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
            "cpus": count_cores(), "torch_threads": torch.get_num_threads(), "cuda_build": torch.version.cuda,
        },
        "kernels": {
            "torch_cpu": torch.backends.cpu.get_cpu_capability(), **read_cpu_flags(),
            "native": str(native.find_library()), **row_layers.name_kernels(),
            "openmp": ", ".join(Path(path).name for path in list_openmp()),
            "own_openmp": ", ".join(find_openmp()),
            "onednn_limit": os.environ.get("ONEDNN_MAX_CPU_ISA"),
            "fp32_gflops": speed["fp32"], "bf16_gflops": speed["bf16"],
            "cpu_dtype": "bf16" if speed["bf16"] > 1.5 * speed["fp32"] else "fp32",
        },
        "space": {"memory_free_gib": None if free is None else round(free / GIB, 1),
                  "disk_free_gib": round(shutil.disk_usage(".").free / GIB, 1)},
        "cache": {
            "folder": str(cache), "there": cache.is_dir(),
            "offline": os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"),
        },
    }


def read_cpu_flags() -> dict[str, bool | None]:
    """Whether the CPU multiplies bf16 in hardware; None where the system does not say."""
    wanted = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return dict.fromkeys(wanted)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set[str]())
    return {name: name in flags for name in wanted}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
