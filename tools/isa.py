"""The tests under other instruction sets: `python tools/isa.py [PYTEST ARGUMENTS]` runs pytest once for each.

Rounding follows the processor: how wide its vectors are, in which order a kernel sums. A test that passes under one
set alone was fitted to it. Sets that this machine lacks are named, and not run.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Variant:
    """What PyTorch's kernels (ATEN), oneDNN and MKL are told, and the processor flag that this presupposes."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    needs: str = ""


AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
VARIANTS = (
    Variant("one thread, all that the processor has", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}),
    Variant("AVX-512 without AMX", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "amx_tile"),
    Variant("AVX2 without AVX-512", AVX2, "avx512f"),
    Variant("AVX2", AVX2, "avx2"),
    Variant("no vector kernels", {"ATEN_CPU_CAPABILITY": "default"}),
)


def flags() -> set[str]:
    """What the processor says it can do; nothing where the system does not tell."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((set(line.split(":")[1].split()) for line in lines if line.startswith(("flags", "Features"))), set())


def choose(has: set[str]) -> Iterator[tuple[Variant, bool]]:
    """Each variant and whether this machine can run it; one environment is run once."""
    done: list[dict[str, str]] = []
    for variant in VARIANTS:
        able = not variant.needs or variant.needs in has
        if variant.environment not in done:
            yield variant, able
        if able:
            done.append(variant.environment)


def run(variant: Variant, arguments: list[str]) -> int:
    """The exit status of pytest under a variant."""
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variant.environment}, check=False).returncode


def main() -> int:
    """Run pytest under each variant that there is here; 1 where one fails."""
    arguments, results = sys.argv[1:] or ["-q", "-n", "auto", "--dist", "worksteal"], list[str]()
    failed = 0
    for variant, able in choose(flags()):
        said = " ".join(f"{key}={value}" for key, value in variant.environment.items())
        if not able:
            results.append(f"not here  {variant.name} (the processor has no {variant.needs})")
            continue
        print(f"── {variant.name}: {said}", flush=True)
        began = time.monotonic()
        status = run(variant, arguments)
        failed += status != 0
        verdict = "FAILED" if status else "passed"
        results.append(f"{verdict}    {variant.name}, {time.monotonic() - began:.0f} s: {said}")
    print("\n".join(results))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
