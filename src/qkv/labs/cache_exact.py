"""Does the cache change the text? Write with it and without it, and compare every number on the way."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice


from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import load_fp64
from qkv.messages import Message

PROMPTS = ("One, Two,", "书放在桌上，它很", "Once upon a time,")
TOKENS = 100


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    model, prompt = load_fp64("demo-lm"), PROMPTS[seed % len(PROMPTS)]
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
    }


def judge(runs: Runs) -> Verdict:
    less = runs.mean("read_without") / runs.mean("read_with")
    says = Message("{same:.0%} of {tokens} tokens the same, log-probabilities at most {gap:.1g} apart; {less:.0f} "
                   "times fewer positions read", same=runs.min("same"), tokens=TOKENS, gap=runs.max("gap"),
                   less=less)
    return runs.verdict("shown" if runs.min("same") == 1 and runs.max("gap") < 1e-9 else "refuted", "gap", says)


def plot(runs: Runs) -> Plot:
    without = runs.curve("reads")
    return Plot("lines", Message("positions read to write one new token"),
                [float(10 * i) for i in range(len(without))], {"without cache": without, "with cache": [1.0] * len(without)},
                Message("tokens written"), Message("positions"))


LAB = Lab(
    "exact",
    Message("Text written with the KV cache is exactly the text written without it."),
    Message("“Cache and repeat”: texts on inference."),
    Message("demo-lm writes 100 tokens at temperature 1 from the same seed, with and without the cache (fp64): tokens "
            "and log-probabilities."),
    Message("The same: 100 % and about 1e-14; in fp32 near-ties may flip."),
    Message("Exactly the same; a new token reads 1 position instead of all."),
    {"same": Message("share of equal tokens"), "gap": Message("largest gap of log-probabilities"),
     "read_without": Message("positions read without"), "read_with": Message("positions read with")},
    run, judge, plot,
)
