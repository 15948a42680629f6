"""Do fewer key/value heads write faster? One decoded token at contexts from 128 to 8192, with 12, 4 and 1 of them."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.core.cache import Static
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, clock, draw

CONTEXTS, GROUPS, LAYERS, HEADS, SIZE = (128, 1024, 8192), (12, 4, 1), 4, 12, 64


@torch.no_grad()
def written(groups: int, context: int, seed: int) -> float:
    """Milliseconds for one token after a cache of random keys and values."""
    small = Tiny(layers=LAYERS, width=HEADS * SIZE, heads=HEADS, groups=groups, vocabulary=64, positions="none", context=10_000)
    model = small.model(seed, torch.float32)
    cache, ids = Static(LAYERS, capacity=context + 1), draw(seed, 1, 1)
    for layer in range(LAYERS):
        cache.append(layer, *torch.randn(2, 1, groups, context, SIZE, generator=torch.Generator().manual_seed(layer)))

    def write() -> None:
        cache.truncate(context)
        model.core(ids, cache=cache, mode="decode")

    return clock(write, 15)


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    took = {g: [written(g, c, seed) for c in CONTEXTS] for g in GROUPS}
    return {
        "short": took[12][0] / took[1][0], "long": took[12][-1] / took[1][-1], "long_gqa": took[12][-1] / took[4][-1],
        **{f"kv_{g}": row for g, row in took.items()},
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    says = (f"前文 {CONTEXTS[0]} 词：12 个 KV 头与 1 个之比 {runs.mean('short'):.2f}；{CONTEXTS[-1]} 词：{runs.mean('long'):.1f}（4 个：{runs.mean('long_gqa'):.1f}）",
            f"12 key/value heads against 1: {runs.mean('short'):.2f} times the time at {CONTEXTS[0]} tokens, {runs.mean('long'):.1f} at "
            f"{CONTEXTS[-1]} (against 4: {runs.mean('long_gqa'):.1f})")  # fmt: skip
    if runs.low("long") < 1.3:
        return runs.verdict("not shown", "long", says)
    return runs.verdict("true only when" if runs.low("long") > 1.2 * runs.high("short") else "shown", "long", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", ("写一个词的毫秒数", "milliseconds to write one token"), [float(c) for c in CONTEXTS],
                {f"{g} KV": runs.curve(f"kv_{g}") for g in GROUPS}, ("前文长度", "context"), ("毫秒", "ms"), "log")  # fmt: skip


LAB = Lab(
    "speed",
    ("MQA 和 GQA 让写得更快，因为要搬的 K、V 更少。", "MQA and GQA write faster, for fewer keys and values are moved."),
    ("Shazeer 2019，及所有转述。", "Shazeer 2019, and all who retell it."),
    ("4 层、宽 768、12 个头，KV 头 12、4、1；缓存里放随机数，写一个词的中位毫秒。",
     "4 layers of width 768 with 12 heads, and 12, 4 or 1 key/value heads; the cache filled at random; median milliseconds for a token."),
    ("没差别为 1。批大小为 1。", "No difference is 1. The batch is 1."),
    ("前文短：没有差别，权重占主要；前文越长差别越大。", "Short context: none, the weights weigh more; the longer, the more."),
    {"short": (f"{CONTEXTS[0]} 词：MHA/MQA", f"{CONTEXTS[0]} tokens: MHA over MQA"), "long": (f"{CONTEXTS[-1]} 词：MHA/MQA", f"{CONTEXTS[-1]} tokens: MHA over MQA"),
     "long_gqa": (f"{CONTEXTS[-1]} 词：MHA/GQA-4", f"{CONTEXTS[-1]} tokens: MHA over GQA-4")},
    run, judge, plot,
)  # fmt: skip
