"""Does the cache change the text? Write with it and without it, and compare every number on the way."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice


from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import exact

PROMPTS = ("One, Two,", "书放在桌上，它很", "Once upon a time,")
TOKENS = 100


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    model, prompt = exact("demo-lm"), PROMPTS[seed % len(PROMPTS)]
    model.special = type(model.special)(forbid=model.special.eos)  # it writes on to the last token
    found = []
    for cache in (True, False):
        found.append(model.generate(prompt, max_new_tokens=TOKENS, temperature=1.0, seed=seed, cache=cache))
    gaps = [abs(a - b) for a, b in zip(found[0].logprobs, found[1].logprobs, strict=True)]
    start = len(model.ids(prompt))
    reads = [float(start + i) for i in range(TOKENS)]
    return {
        "same": sum(a == b for a, b in zip(found[0].tokens, found[1].tokens, strict=True)) / TOKENS,
        "gap": max(gaps), "read_without": sum(reads), "read_with": float(start + TOKENS - 1),
        "reads": reads[::10],
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    less = runs.mean("read_without") / runs.mean("read_with")
    says = (f"{TOKENS} 个词元中 {runs.low('same'):.0%} 相同，对数概率最多差 {runs.high('gap'):.1g}；读入的位置少 {less:.0f} 倍",
            f"{runs.low('same'):.0%} of {TOKENS} tokens the same, log-probabilities at most {runs.high('gap'):.1g} apart; "
            f"{less:.0f} times fewer positions read")  # fmt: skip
    return runs.verdict("shown" if runs.low("same") == 1 and runs.high("gap") < 1e-9 else "refuted", "gap", says)


def plot(runs: Runs) -> Plot:
    without = runs.curve("reads")
    return Plot("lines", ("写一个新词要读入多少个位置", "positions read to write one new token"),
                [float(10 * i) for i in range(len(without))], {"without cache": without, "with cache": [1.0] * len(without)},
                ("已写的词", "tokens written"), ("位置", "positions"))  # fmt: skip


LAB = Lab(
    "exact",
    ("用 KV 缓存写出的文本与不用时完全相同。", "Text written with the KV cache is exactly the text written without it."),
    ("“缓存并重复”：讲推理的文章。", "“Cache and repeat”: texts on inference."),
    ("demo-lm 以温度 1、同一种子写 100 个词元，有缓存与无缓存（fp64）：词元与对数概率。",
     "demo-lm writes 100 tokens at temperature 1 from the same seed, with and without the cache (fp64): tokens and "
     "log-probabilities."),
    ("相同：100%，差约 1e-14；fp32 下近乎并列的词可能翻转。",
     "The same: 100 % and about 1e-14; in fp32 near-ties may flip."),
    ("完全相同；新词只读 1 个位置，而不是全部。", "Exactly the same; a new token reads 1 position instead of all."),
    {"same": ("相同词元的比例", "share of equal tokens"), "gap": ("对数概率的最大差", "largest gap of log-probabilities"),
     "read_without": ("无缓存时读入的位置", "positions read without"), "read_with": ("有缓存时读入的位置", "positions read with")},
    run, judge, plot,
)  # fmt: skip
