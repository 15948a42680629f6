"""What does the cache save? One new token with it, and by a whole pass over everything before it."""


import qkv
from qkv.cost import count
from qkv.hub import spec_of
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import pace
from qkv.messages import Message

LENGTHS = (16, 64, 128, 256)


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    spec = spec_of("gpt2:124m")
    model, flops = qkv.build(spec, seed=seed), count(spec).flops_per_token
    found = [pace(model, length, seed) for length in LENGTHS]
    factors = [without / with_ for without, with_ in found]
    work = [flops(n).prefill * n / flops(n).decode for n in LENGTHS]
    return {
        "short": factors[0], "long": factors[-1], "flops_long": work[-1], "without": found[-1][0], "with": found[-1][1],
        "factors": factors, "work": work,
    }


def judge(runs: Runs) -> Verdict:
    says = Message("{short:.1f} times faster at {lengths} tokens, {long:.1f} times at {lengths2} ({flops_long:.0f} "
                   "times fewer FLOPs)", short=runs.mean("short"), lengths=LENGTHS[0], long=runs.mean("long"),
                   lengths2=LENGTHS[-1], flops_long=runs.mean("flops_long"))
    grows = runs.min("long") > 2 and runs.min("long") > runs.max("short")
    return runs.verdict("shown" if grows else "not shown", "long", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("times slower without the cache"), [float(n) for n in LENGTHS],
                {"time": runs.curve("factors"), "FLOPs": runs.curve("work")}, Message("tokens before"), Message(
                    "times"), "log")


LAB = Lab(
    "speed",
    Message("The KV cache saves repeated work, and the more the longer the text."),
    Message("Texts on inference."),
    Message("GPT-2 small's shapes, random weights, fp32: one new token with the cache, or by a pass over the whole "
            "text; time and FLOPs."),
    Message("No use is a factor of 1. Time falls less than FLOPs: decoding is bound by bandwidth."),
    Message("About 4 times at 16 tokens, 12 at 256 (on the pilot's machine)."),
    {"short": Message("{lengths} tokens: times faster", lengths=LENGTHS[0]), "long": Message(
        "{lengths} tokens: times faster", lengths=LENGTHS[-1]),
     "flops_long": Message("times fewer FLOPs"), "without": Message("ms without"), "with": Message(
         "ms with")},
    run, judge, plot,
)
