"""Is reading faster than writing? Milliseconds for each token read in one pass, and for each written with the cache."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import qkv
from qkv.hub import spec_of
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import pace

LENGTHS = (16, 64, 128, 256)


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    model = qkv.build(spec_of("gpt2:124m"), seed=seed)
    reads, writes = [], []
    for length in LENGTHS:
        read, write = pace(model, length, seed)
        reads.append(read / length)
        writes.append(write)
        tell(f"{length} tokens: {read / length:.2f} ms to read one, {write:.2f} to write one")
    factors = [w / r for w, r in zip(writes, reads, strict=True)]
    return {"short": factors[0], "long": factors[-1], "read": reads[-1], "write": writes[-1], "reads": reads, "writes": writes}


def judge(runs: Runs) -> Verdict:
    says = (f"{LENGTHS[0]} 个词时写比读慢 {runs.mean('short'):.1f} 倍，{LENGTHS[-1]} 个词时 {runs.mean('long'):.1f} 倍：倍数随长度变，没有一个数",
            f"writing is {runs.mean('short'):.1f} times slower than reading at {LENGTHS[0]} tokens, {runs.mean('long'):.1f} times at "
            f"{LENGTHS[-1]}: it depends on the length, there is no one factor")  # fmt: skip
    if runs.low("long") < 1.5:
        return runs.verdict("not shown", "long", says)
    return runs.verdict("true only when" if runs.low("long") > 1.3 * runs.high("short") else "shown", "long", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", ("每个词的毫秒数", "milliseconds for each token"), [float(n) for n in LENGTHS],
                {"read": runs.curve("reads"), "write": runs.curve("writes")}, ("提示词长度", "length of the prompt"),
                ("毫秒", "ms"), "log")  # fmt: skip


LAB = Lab(
    "speed",
    ("每个词，读比写快约十倍。", "Per token, reading is about ten times faster than writing."),
    ("讲提示词的书；云端的定价也这样分。", "A book on prompts; the prices of services too."),
    ("GPT-2 small 的形状、随机权重、fp32：一次读入的每词毫秒，与用缓存写一个词的毫秒；中位数。",
     "GPT-2 small's shapes, random weights, fp32: milliseconds for each token read in one pass, and for one written with the "
     "cache; medians."),
    ("相同为 1 倍。倍数取决于长度、批大小和机器。", "Alike is a factor of 1; it depends on length, batch and machine."),
    ("16 个词约 5 倍，256 个词约 20 倍（试验机上）；随长度增大。", "About 5 times at 16 tokens and 20 at 256 (on the pilot's machine); it grows."),
    {"short": (f"{LENGTHS[0]} 词：写/读", f"{LENGTHS[0]} tokens: write over read"), "long": (f"{LENGTHS[-1]} 词：写/读", f"{LENGTHS[-1]} tokens: write over read"),
     "read": ("读一个词（毫秒）", "ms to read one"), "write": ("写一个词（毫秒）", "ms to write one")},
    run, judge, plot,
)  # fmt: skip
