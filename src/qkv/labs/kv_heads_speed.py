"""Do fewer key/value heads write faster? One decoded token at contexts from 128 to 8192, with 12, 4 and 1 of them."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.core.cache import Static
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, clock, draw
from qkv.messages import Message

CONTEXTS, GROUPS, LAYERS, HEADS, SIZE = (128, 1024, 8192), (12, 4, 1), 4, 12, 64


@torch.no_grad()
def time_token(groups: int, context: int, seed: int) -> float:
    """Milliseconds for one token after a cache of random keys and values."""
    small = Tiny(layers=LAYERS, width=HEADS * SIZE, heads=HEADS, groups=groups, vocabulary=64, positions="none", context=10_000)
    model = small.model(seed, torch.float32)
    cache, ids = Static(LAYERS, capacity=context + 1), draw(seed, 1, 1)
    for layer in range(LAYERS):
        cache.append(layer, *torch.randn(2, 1, groups, context, SIZE, generator=torch.Generator().manual_seed(layer)))

    def write_token() -> None:
        cache.truncate(context)
        model.core(ids, cache=cache, mode="decode")

    return clock(write_token, 15)


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    took = {g: [time_token(g, c, seed) for c in CONTEXTS] for g in GROUPS}
    return {
        "short": took[12][0] / took[1][0], "long": took[12][-1] / took[1][-1], "long_gqa": took[12][-1] / took[4][-1],
        **{f"kv_{g}": row for g, row in took.items()},
    }


def judge(runs: Runs) -> Verdict:
    says = Message("12 key/value heads against 1: {short:.2f} times the time at {contexts} tokens, {long:.1f} at "
                   "{contexts2} (against 4: {long_gqa:.1f})", short=runs.mean("short"), contexts=CONTEXTS[0],
                   long=runs.mean("long"), contexts2=CONTEXTS[-1], long_gqa=runs.mean("long_gqa"))
    if runs.min("long") < 1.3:
        return runs.verdict("not shown", "long", says)
    return runs.verdict("true only when" if runs.min("long") > 1.2 * runs.max("short") else "shown", "long", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("milliseconds to write one token"), [float(c) for c in CONTEXTS],
                {f"{g} KV": runs.curve(f"kv_{g}") for g in GROUPS}, Message("context"), Message("ms"), "log")


LAB = Lab(
    "speed",
    Message("MQA and GQA write faster, for fewer keys and values are moved."),
    Message("Shazeer 2019, and all who retell it."),
    Message("4 layers of width 768 with 12 heads, and 12, 4 or 1 key/value heads; the cache filled at random; median "
            "milliseconds for a token."),
    Message("No difference is 1. The batch is 1."),
    Message("Short context: none, the weights weigh more; the longer, the more."),
    {"short": Message("{contexts} tokens: MHA over MQA", contexts=CONTEXTS[0]), "long": Message(
        "{contexts} tokens: MHA over MQA", contexts=CONTEXTS[-1]),
     "long_gqa": Message("{contexts} tokens: MHA over GQA-4", contexts=CONTEXTS[-1])},
    run, judge, plot,
)
