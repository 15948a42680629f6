"""What the benchmarks share: the machine's description, rounds in turn, the physical limits, the JSON beside it."""

import argparse
import datetime
import gc
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ISA = (
    "avx2",
    "avx512f",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "bf16",
    "i8mm",
)

MULTI30K = {"2016": "test.2016", "2017": "test.2017", "coco": "test.coco"}


def options(claim: str, **more: tuple[Any, str]) -> argparse.Namespace:
    """The command line of a script: --smoke, --rounds, --threads, --out, and `more` as name=(default, help)."""
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: shows that the script runs, measures nothing")
    parser.add_argument("--rounds", type=int, default=5, help="how often each competitor runs, in turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads for everybody")
    parser.add_argument("--out", type=Path, help="the JSON file (default: bench/results/NAME.json, none with --smoke)")
    for name, (default, text) in more.items():
        flag = {"action": "store_true"} if default is False else {"type": type(default), "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **flag)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)  # before torch is imported
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if given.smoke:
        given.rounds = 1
    return given


def peer(name: str, skipped: dict[str, str]) -> Any:
    """The module of a peer, or None and a line in `skipped` where it is not installed or does not start."""
    try:
        return importlib.import_module(name)
    except Exception as e:  # a peer's broken wheel is no reason to stop
        skipped[name] = f"not measured: {type(e).__name__}: {e}"
        print(f"skipped {name}: {e}")
        return None


def in_turn(
    runs: Mapping[str, Callable[[], Any]], rounds: int, *, warm: bool = True
) -> dict[str, list[tuple[float, Any]]]:
    """Seconds and result of each competitor in each round; rounds begin with another one each, the first warms up."""
    names, found = list(runs), {name: list[tuple[float, Any]]() for name in runs}
    for number in range(-1 if warm else 0, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            start = time.perf_counter()
            result = runs[name]()
            spent = time.perf_counter() - start
            if number >= 0:
                found[name].append((spent, result))
    return found


def middle(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)


def summary(values: list[float], digits: int = 6) -> dict[str, Any]:
    """Median and every value, in the order of the rounds."""
    return {"median": round(middle(values), digits), "all": [round(v, digits) for v in values]}


def cpu() -> tuple[str, list[str]]:
    """The processor's name and those of its instruction sets that matter here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        name = platform.processor() or platform.machine()
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        return name, []
    pairs = dict(reversed([[p.strip() for p in line.split(":", 1)] for line in lines if ":" in line]))
    flags = set((pairs.get("flags") or pairs.get("Features") or "").split())
    return pairs.get("model name", platform.machine()), [f for f in ISA if f in flags]


def machine() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    import torch

    name, isa = cpu()
    return {
        "cpu": name,
        "cores": os.cpu_count(),
        "isa": isa,
        "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def limits(smoke: bool) -> dict[str, float]:
    """What the machine gives at best, measured now: products in fp32 and bf16 (FLOP/s), reading memory (bytes/s)."""
    import torch

    from qkv.adapt import onednn_linear

    size, found = 256 if smoke else 2048, {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
        ways = {"torch": lambda a=a, b=b: a @ b}
        if onednn_linear.fits(b):  # PyTorch's own product may use half of the processor
            ways["oneDNN"] = lambda a=a, b=b: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        with torch.inference_mode():
            best = min(t for turns in in_turn(ways, 5).values() for t, _ in turns)
        found[f"{name}_flops"] = 2 * size**3 / best
    x = torch.ones((1 if smoke else 128) * 2**20)
    found["read_bytes"] = 4 * x.numel() / min(t for t, _ in in_turn({"x": lambda: x.sum()}, 5)["x"])
    return found


def write(script: str, claim: str, given: argparse.Namespace, **content: Any) -> None:
    """Print the results, and write them with claim, command and machine."""
    own = {k: v for k, v in vars(given).items() if k != "out"}
    record = {
        "claim": claim.strip().split("\n")[0],
        "command": f"python bench/{script}.py",
        "options": own,
        "machine": machine(),
        **content,
    }
    print(json.dumps(content, indent=2, ensure_ascii=False, default=str))
    path = given.out or (None if given.smoke else RESULTS / f"{script}.json")
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        print(f"written: {path}")


def judged(directory: Path, *others: Path) -> dict[str, float]:
    """BLEU of Multi30k's three test sets, English to German, of one model or of several together."""
    import qkv
    from qkv.training.splits import find_data_file

    model, bleu = qkv.load(directory), {}
    how = {"tokenize": "none", "joint": "@@ ", "beam": 5, "length_penalty": 1.0}
    how |= {"ensemble": [qkv.load(other) for other in others]}
    for year, key in MULTI30K.items():
        files = tuple(str(find_data_file("mt", "multi30k_bpe_en_de", f"{key}.{side}")) for side in ("en", "de"))
        bleu[year] = round(model.eval(bleu=files, **how).bleu, 2)
    return bleu


def quiet(transformers: types.ModuleType) -> None:
    """No progress bars and no advice from transformers."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
