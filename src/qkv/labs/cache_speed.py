"""What does the cache save? One new token with it, and by a whole pass over everything before it."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import qkv
from qkv.cost import count
from qkv.hub import spec_of
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import pace

LENGTHS = (16, 64, 128, 256)


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    spec = spec_of("gpt2:124m")
    model, flops = qkv.build(spec, seed=seed), count(spec).flops_per_token
    found = [pace(model, length, seed) for length in LENGTHS]
    factors = [without / with_ for without, with_ in found]
    work = [flops(n).prefill * n / flops(n).decode for n in LENGTHS]
    return {
        "short": factors[0], "long": factors[-1], "flops_long": work[-1], "without": found[-1][0], "with": found[-1][1],
        "factors": factors, "work": work,
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    says = (f"{LENGTHS[0]} 个词时快 {runs.mean('short'):.1f} 倍，{LENGTHS[-1]} 个词时快 {runs.mean('long'):.1f} 倍（计算量少 {runs.mean('flops_long'):.0f} 倍）",
            f"{runs.mean('short'):.1f} times faster at {LENGTHS[0]} tokens, {runs.mean('long'):.1f} times at {LENGTHS[-1]} "
            f"({runs.mean('flops_long'):.0f} times fewer FLOPs)")  # fmt: skip
    grows = runs.low("long") > 2 and runs.low("long") > runs.high("short")
    return runs.verdict("shown" if grows else "not shown", "long", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", ("不用缓存慢多少倍", "times slower without the cache"), [float(n) for n in LENGTHS],
                {"time": runs.curve("factors"), "FLOPs": runs.curve("work")}, ("前文长度", "tokens before"), ("倍", "times"), "log")  # fmt: skip


LAB = Lab(
    "speed",
    ("KV 缓存省去重复计算，前文越长省得越多。", "The KV cache saves repeated work, and the more the longer the text."),
    ("讲推理的文章。", "Texts on inference."),
    ("GPT-2 small 的形状、随机权重、fp32：写一个新词，用缓存，或对全文再做一次前向；时间与计算量。",
     "GPT-2 small's shapes, random weights, fp32: one new token with the cache, or by a pass over the whole text; time and FLOPs."),
    ("没用为 1 倍。时间比计算量省得少：解码受带宽限制。", "No use is a factor of 1. Time falls less than FLOPs: decoding is bound by bandwidth."),
    ("16 个词约 4 倍，256 个词约 12 倍（试验机上）。", "About 4 times at 16 tokens, 12 at 256 (on the pilot's machine)."),
    {"short": (f"{LENGTHS[0]} 词：快多少倍", f"{LENGTHS[0]} tokens: times faster"), "long": (f"{LENGTHS[-1]} 词：快多少倍", f"{LENGTHS[-1]} tokens: times faster"),
     "flops_long": ("计算量少多少倍", "times fewer FLOPs"), "without": ("不用缓存（毫秒）", "ms without"), "with": ("用缓存（毫秒）", "ms with")},
    run, judge, plot,
)  # fmt: skip
