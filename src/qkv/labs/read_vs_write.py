"""Is reading faster than writing? Milliseconds for each token read in one pass, and for each written with the cache."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import qkv
from qkv.hub import spec_of
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import pace
from qkv.messages import Message

LENGTHS = (16, 64, 128, 256)


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
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
    says = Message("writing is {short:.1f} times slower than reading at {lengths} tokens, {long:.1f} times at "
                   "{lengths2}: it depends on the length, there is no one factor", short=runs.mean("short"),
                   lengths=LENGTHS[0], long=runs.mean("long"), lengths2=LENGTHS[-1])
    if runs.min("long") < 1.5:
        return runs.verdict("not shown", "long", says)
    return runs.verdict("true only when" if runs.min("long") > 1.3 * runs.max("short") else "shown", "long", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("milliseconds for each token"), [float(n) for n in LENGTHS],
                {"read": runs.curve("reads"), "write": runs.curve("writes")}, Message("length of the prompt"),
                Message("ms"), "log")


LAB = Lab(
    "speed",
    Message("Per token, reading is about ten times faster than writing."),
    Message("A book on prompts; the prices of services too."),
    Message("GPT-2 small's shapes, random weights, fp32: milliseconds for each token read in one pass, and for one "
            "written with the cache; medians."),
    Message("Alike is a factor of 1; it depends on length, batch and machine."),
    Message("About 5 times at 16 tokens and 20 at 256 (on the pilot's machine); it grows."),
    {"short": Message("{lengths} tokens: write over read", lengths=LENGTHS[0]), "long": Message(
        "{lengths} tokens: write over read", lengths=LENGTHS[-1]),
     "read": Message("ms to read one"), "write": Message("ms to write one")},
    run, judge, plot,
)
