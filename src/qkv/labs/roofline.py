"""Is reading bound by computing and writing by memory? Speeds of both against what this machine can do at best, by batch."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.core.cache import Static
from qkv.cost import count
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, clock, draw
from qkv.messages import Message

BATCHES, CONTEXT, WIDTH, LAYERS = (1, 4, 16), 32, 768, 4  # 113 MB of weights: more than the caches of most processors


def ceilings() -> tuple[float, float]:
    """What the machine does at best: GFLOP/s of a large matrix product, and GB/s of a matrix that is read for one vector."""
    a, b = torch.randn(2, 1024, 1024)
    table, v = torch.randn(8192, 4096), torch.randn(4096)  # 134 MB
    return 2 * 1024**3 / clock(lambda: a @ b, 5) / 1e6, table.numel() * 4 / clock(lambda: table @ v, 5) / 1e6


@torch.no_grad()
def speeds(model: qkv.Model, rows: int, seed: int) -> tuple[float, float]:
    """Tokens for each millisecond: read (`CONTEXT` for each row in one pass), and written (one for each row)."""
    ids = draw(seed, rows, CONTEXT + 1)
    cache = Static(LAYERS, capacity=CONTEXT + 1)
    start, new = ids[:, :-1], ids[:, -1:]

    def run_prefill() -> None:
        cache.truncate(0)
        model.core.hidden(start, cache=cache, mode="prefill")

    def run_decode() -> None:
        cache.truncate(CONTEXT)
        model.core(new, cache=cache, mode="decode")

    return rows * CONTEXT / clock(run_prefill, 3), rows / clock(run_decode, 5)


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    small = Tiny(layers=LAYERS, width=WIDTH, heads=12, vocabulary=32)
    model, weights = small.model(seed, torch.float32), count(small.spec).parameters
    flops, bytes_ = ceilings()
    tell(f"{flops:.0f} GFLOP/s, {bytes_:.1f} GB/s at best")
    reads, writes = zip(*(speeds(model, rows, seed) for rows in BATCHES), strict=True)
    read_flops, write_flops = (2 * weights * pace[0] / 1e6 for pace in (reads, writes))  # GFLOP/s at batch 1
    model.core.to(torch.bfloat16)
    half_read, half_write = speeds(model, 1, seed)
    return {
        "best_flops": flops, "best_bytes": bytes_,
        "read_flops": read_flops / flops, "write_flops": write_flops / flops, "write_bytes": 4 * weights * writes[0] / 1e6 / bytes_,
        "read_gain": reads[-1] / reads[0], "write_gain": writes[-1] / writes[0],
        "half_read": half_read / reads[0], "half_write": half_write / writes[0],
        "reads": [r / reads[0] for r in reads], "writes": [w / writes[0] for w in writes],
    }


def judge(runs: Runs) -> Verdict:
    says = Message("reading reaches {read_flops:.0%} of the best computing; writing at batch 1 reaches "
                   "{write_flops:.0%} of it, but {write_bytes:.0%} of the best bandwidth; from batch 1 to {batches} "
                   "writing gains {write_gain:.1f} times, reading {read_gain:.1f}; half the bytes (bf16): writing "
                   "{half_write:.1f} times, reading {half_read:.1f}", read_flops=runs.mean("read_flops"),
                   write_flops=runs.mean("write_flops"), write_bytes=runs.mean("write_bytes"), batches=BATCHES[-1],
                   write_gain=runs.mean("write_gain"), read_gain=runs.mean("read_gain"),
                   half_write=runs.mean("half_write"), half_read=runs.mean("half_read"))
    writes = runs.mean("write_flops") < 0.5 * runs.mean("read_flops") and runs.mean("write_gain") > 2 * runs.mean("read_gain")
    reads = runs.mean("read_gain") < 2
    return runs.verdict("shown" if writes and reads else "true only when" if writes else "not shown", "write_gain", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("tokens for each millisecond, batch 1 as 1"), [float(n) for n in BATCHES],
                {"reads": runs.curve("reads"), "writes": runs.curve("writes")}, Message("batch"), Message(
                    "times"),
                names={"reads": Message("reading"), "writes": Message("writing")})


LAB = Lab(
    "speed",
    Message("Reading a prompt is bound by computing, writing word by word by memory bandwidth."),
    Message("Texts on fast inference; the roofline of Williams et al. 2009, Pope et al. 2022."),
    Message("{layers} layers of width {width}, random weights (113 MB, fp32): the pace of reading {context} tokens "
            "and of writing one, at batches 1, 4, 16; against this machine's large matrix product and its product "
            "with one vector; then in bf16.", layers=LAYERS, width=WIDTH, context=CONTEXT),
    Message("No difference is 1. Where caches hold all weights, bandwidth is no bound."),
    Message("Reading reaches over half of the computing and gains nothing by batch; writing a tenth or so, and 8 "
            "times or more at 16; bf16 nearly doubles writing, reading only where the processor computes in "
            "bf16."),
    {"best_flops": Message("best of this machine (GFLOP/s)"), "best_bytes": Message(
        "best of this machine (GB/s)"),
     "read_flops": Message("reading: of the computing"), "write_flops": Message("writing: of the computing"),
     "write_bytes": Message("writing: of the bandwidth"), "read_gain": Message(
         "reading: batch {batches} over 1", batches=BATCHES[-1]),
     "write_gain": Message("writing: batch {batches} over 1", batches=BATCHES[-1]), "half_read": Message(
         "reading: bf16 over fp32"),
     "half_write": Message("writing: bf16 over fp32")},
    run, judge, plot,
)
