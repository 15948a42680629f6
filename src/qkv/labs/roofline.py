"""Is reading bound by computing and writing by memory? Speeds of both against what this machine can do at best, by batch."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.core.cache import Static
from qkv.cost import count
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, clock, draw

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

    def read() -> None:
        cache.truncate(0)
        model.core.hidden(start, cache=cache, mode="prefill")

    def write() -> None:
        cache.truncate(CONTEXT)
        model.core(new, cache=cache, mode="decode")

    return rows * CONTEXT / clock(read, 3), rows / clock(write, 5)


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
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
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    says = (f"读用到算力上限的 {runs.mean('read_flops'):.0%}；写一批一句时只用到 {runs.mean('write_flops'):.0%}，却用到带宽上限的 {runs.mean('write_bytes'):.0%}；"
            f"批从 1 到 {BATCHES[-1]}：写快 {runs.mean('write_gain'):.1f} 倍，读 {runs.mean('read_gain'):.1f} 倍；权重减半（bf16）：写 {runs.mean('half_write'):.1f} 倍，"
            f"读 {runs.mean('half_read'):.1f} 倍",
            f"reading reaches {runs.mean('read_flops'):.0%} of the best computing; writing at batch 1 reaches {runs.mean('write_flops'):.0%} of it, but "
            f"{runs.mean('write_bytes'):.0%} of the best bandwidth; from batch 1 to {BATCHES[-1]} writing gains {runs.mean('write_gain'):.1f} times, reading "
            f"{runs.mean('read_gain'):.1f}; half the bytes (bf16): writing {runs.mean('half_write'):.1f} times, reading {runs.mean('half_read'):.1f}")  # fmt: skip
    writes = runs.mean("write_flops") < 0.5 * runs.mean("read_flops") and runs.mean("write_gain") > 2 * runs.mean("read_gain")
    reads = runs.mean("read_gain") < 2
    return runs.verdict("shown" if writes and reads else "true only when" if writes else "not shown", "write_gain", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", ("每毫秒的词数，批为 1 时记作 1", "tokens for each millisecond, batch 1 as 1"), [float(n) for n in BATCHES],
                {"reads": runs.curve("reads"), "writes": runs.curve("writes")}, ("批大小", "batch"), ("倍", "times"),
                names={"reads": ("读", "reading"), "writes": ("写", "writing")})  # fmt: skip


LAB = Lab(
    "speed",
    ("读提示词受算力限制，逐词写受内存带宽限制。", "Reading a prompt is bound by computing, writing word by word by memory bandwidth."),
    ("讲推理加速的文章；Williams 2009 的屋顶线模型，Pope 2022。", "Texts on fast inference; the roofline of Williams et al. 2009, Pope et al. 2022."),
    (f"{LAYERS} 层、宽 {WIDTH}、随机权重（113 MB，fp32）：读 {CONTEXT} 个词与写一个词的速度，批 1、4、16；与本机的大矩阵乘和大矩阵乘向量相比；再换成 bf16。",
     f"{LAYERS} layers of width {WIDTH}, random weights (113 MB, fp32): the pace of reading {CONTEXT} tokens and of writing one, at batches 1, 4, 16; against this machine's "
     "large matrix product and its product with one vector; then in bf16."),
    ("没差别为 1 倍。缓存比权重大的机器上，写不受带宽限制。", "No difference is 1. Where caches hold all weights, bandwidth is no bound."),
    ("读用到算力的一半以上，批大了不再加快；写只用一成左右，批 16 时快 8 倍以上；bf16 让写快近一倍，读看机器有没有 bf16 指令。",
     "Reading reaches over half of the computing and gains nothing by batch; writing a tenth or so, and 8 times or more at 16; bf16 nearly doubles writing, reading "
     "only where the processor computes in bf16."),
    {"best_flops": ("本机算力（GFLOP/s）", "best of this machine (GFLOP/s)"), "best_bytes": ("本机带宽（GB/s）", "best of this machine (GB/s)"),
     "read_flops": ("读：占算力", "reading: of the computing"), "write_flops": ("写：占算力", "writing: of the computing"),
     "write_bytes": ("写：占带宽", "writing: of the bandwidth"), "read_gain": (f"读：批 {BATCHES[-1]} 比 1", f"reading: batch {BATCHES[-1]} over 1"),
     "write_gain": (f"写：批 {BATCHES[-1]} 比 1", f"writing: batch {BATCHES[-1]} over 1"), "half_read": ("读：bf16 比 fp32", "reading: bf16 over fp32"),
     "half_write": ("写：bf16 比 fp32", "writing: bf16 over fp32")},
    run, judge, plot,
)  # fmt: skip
