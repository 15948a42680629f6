"""What the benchmarks share: programs side by side in processes of their own, rounds in turn, the machine, its limits.

A peer's libraries may slow ours where both are in one process (docs/benchmarks.md), so `compete` starts each competitor
in a process of its own, bound to the same cores, with as many threads; while one runs, the others sleep. A competitor
is a function that prepares everything and gives the function that is timed; it runs in its process alone:

    def ours(given, folder): ...; return run        # run() -> {"seconds": …, whatever else is to be told}
    found = compete(given, {"qkv": ours, "peer": theirs}, prepare=write_model)
"""

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
import tempfile
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

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

Maker = Callable[[Any, Path], Callable[[], dict[str, Any]]]
PREPARE = "qkv: prepare"

MULTI30K = {"2016": "test.2016", "2017": "test.2017", "coco": "test.coco"}


def options(claim: str, **more: tuple[Any, str]) -> argparse.Namespace:
    """The command line of a script: --smoke, --rounds, --threads, --out, and `more` as name=(default, help)."""
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: shows that the script runs, measures nothing")
    parser.add_argument("--quick", action="store_true", help="one round after the warm-up, for a look")
    parser.add_argument("--peers", default=sys.executable, help="a Python that has the other programs, if not this one")
    parser.add_argument("--only", default="", help="competitors whose names contain this")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5, help="how often each competitor runs, in turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads for everybody")
    parser.add_argument("--out", type=Path, help="the JSON file (default: bench/results/NAME.json, none with --smoke)")
    for name, (default, text) in more.items():
        flag = {"action": "store_true"} if default is False else {"type": type(default), "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", help=text.replace("%", "%%"), **flag)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)  # before torch is imported
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if given.smoke or given.quick:
        given.rounds = 1
    return given


class Absent(Exception):
    """A competitor cannot run here; the message says in one line how to get it."""


def need(*modules: str, install: str = "") -> Any:
    """The first of these modules; Absent where one is not installed or does not start, with pip's command."""
    try:
        found = [importlib.import_module(name) for name in modules]
    except Exception as e:  # a peer's broken wheel is no reason to stop
        raise Absent(f"{type(e).__name__}: {e}; pip install {install or modules[0]}") from None
    return found[0]


def compete(
    given: argparse.Namespace, makers: Mapping[str, Maker], *, prepare: Callable[[Any, Path], Any] | None = None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """What each competitor told in each round, and why some do not run; `prepare` makes files in a folder before.

    All are started and warmed up, then each takes its turn; rounds begin with another one each. In the process of a
    competitor this call serves and never comes back.
    """
    if given.child == PREPARE:
        sys.exit(prepare(given, Path(given.folder)) if prepare else None)
    if given.child:
        serve(makers[given.child], given)
    with tempfile.TemporaryDirectory() as folder:
        if prepare:
            subprocess.run(child_command(given, PREPARE, folder), check=True, stdout=subprocess.DEVNULL)
        wanted = [name for name in makers if given.only in name]
        children = {name: Child(given, name, folder) for name in wanted}
        try:
            skipped = {name: said for name, child in children.items() if (said := child.begin())}
            running = [name for name in wanted if name not in skipped]
            found = {name: list[dict[str, Any]]() for name in running}
            for number in range(-1, given.rounds):
                turn = number % max(1, len(running))
                for name in running[turn:] + running[:turn]:
                    told = children[name].run()
                    if number >= 0:
                        found[name].append(told)
        finally:
            for child in children.values():
                child.process.kill()
    for name, said in skipped.items():
        print(f"skipped {name}: {said}")
    return found, skipped


def child_command(given: argparse.Namespace, name: str, folder: str) -> list[str]:
    """The command of a competitor's process: this script again, by the peers' Python where it is a peer."""
    ours = name.startswith("qkv") and "," not in name
    python = sys.executable if ours else given.peers
    return [python, *sys.argv, "--child", name, "--folder", folder]


class Child:
    """A competitor's process, which says that it is ready and then answers each line with what it measured."""

    def __init__(self, given: argparse.Namespace, name: str, folder: str) -> None:
        self.process = subprocess.Popen(child_command(given, name, folder), text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE if given.smoke else None)

    def begin(self) -> str | None:
        """Wait until it is ready; why it cannot run, or None."""
        return self.hear().get("absent")

    def run(self) -> dict[str, Any]:
        """One turn. Threads of the one before may still spin for a moment."""
        time.sleep(0.3)
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """What it says next."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            said = self.process.stderr.read()[-2000:] if self.process.stderr else ""
            raise SystemExit(f"{self.process.args}: ended{said}")
        return json.loads(line)


def serve(maker: Maker, given: argparse.Namespace) -> NoReturn:
    """The life of a competitor's process: prepare, say so, then a turn for each line that comes in."""
    says = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    try:
        run = maker(given, Path(given.folder))
        told: dict[str, Any] = {}
    except Absent as e:
        run, told = None, {"absent": str(e)}
    print(json.dumps(told), file=says, flush=True)
    for _ in sys.stdin if run else ():
        gc.collect()
        print(json.dumps(run()), file=says, flush=True)
    os._exit(0)  # some libraries do not end cleanly


def clocked(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds of a call, those that this process had a processor for, and what it gave."""
    begun = time.process_time()
    spent, result = timed(run)
    return spent, time.process_time() - begun, result


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, and what it gave."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def in_turn(
    runs: Mapping[str, Callable[[], Any]], rounds: int, *, warm: bool = True
) -> dict[str, list[tuple[float, Any]]]:
    """Seconds and result of each competitor in each round; rounds begin with another one each, the first warms up."""
    names, found = list(runs), {name: list[tuple[float, Any]]() for name in runs}
    for number in range(-1 if warm else 0, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            spent = timed(runs[name])
            if number >= 0:
                found[name].append(spent)
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
    """What the machine gives at best, measured now: products in fp32 and bf16 (FLOP/s), reading memory (bytes/s).

    Memory is read by PyTorch's sum and by our own product of one row, whichever is faster.
    """
    import torch

    from qkv.adapt import native, onednn_linear
    from qkv.adapt.row_products import Matrix, multiply

    size, found = 256 if smoke else 2048, {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
        ways, low = {"torch": lambda a=a, b=b: a @ b}, dtype == torch.bfloat16
        if low and not onednn_linear.has_bf16_products():  # PyTorch's own loop takes minutes
            ways = {"in fp32": lambda a=a, b=b: (a.float() @ b.float()).to(torch.bfloat16)}
        elif low or onednn_linear.is_mkl_slow():  # PyTorch's own product may use half of the processor
            ways["oneDNN"] = lambda a=a, b=b: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        with torch.inference_mode():
            best = min(t for turns in in_turn(ways, 5).values() for t, _ in turns)
        found[f"{name}_flops"] = 2 * size**3 / best
    size = 256 if smoke else 8192
    x, kernels = torch.ones(2 * size, size), native.library()
    ways = {"sum": lambda: x.sum()}
    if kernels:
        held = Matrix("int8", x.view(torch.int8).view(2 * size, -1), torch.ones(2 * size, 1))
        row = torch.ones(1, held.weight.shape[1]).bfloat16()
        ways["row"] = lambda: multiply(kernels, row, held)
    best = min(t for turns in in_turn(ways, 5).values() for t, _ in turns)
    found["read_bytes"] = 4 * x.numel() / best
    return found


def write(script: str, claim: str, given: argparse.Namespace, **content: Any) -> None:
    """Print the results, and write them with claim, command and machine."""
    own = {k: v for k, v in vars(given).items() if k not in ("out", "child", "folder", "peers")}
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
