"""Do the keys and values of past words change when the text grows? Three trained models, three kinds of mask."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from typing import Any

import torch

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import draw, load_fp64
from qkv.messages import Message

MODELS = {"causal": "demo-lm", "full": "demo-bert", "prefix": "demo-moe"}
TOKENS = 12


@torch.no_grad()
def drift(model: qkv.Model, ids: torch.Tensor, prefix: bool) -> list[float]:
    """After each new token: by how much the keys or values of the tokens before it differ from what they were."""
    before: dict[str, torch.Tensor] = {}
    found: list[float] = []
    for end in range(2, TOKENS + 1):
        how: dict[str, Any] = {"prefix": torch.tensor([end])} if prefix else {}
        with model.trace(save=["*.attn.k", "*.attn.v"]) as t:
            model(ids[:, :end], **how)
        now = {name: t[name] for name in t.wanted}
        if before:
            found.append(max(float((now[n][:, :, : end - 1] - k).abs().max()) for n, k in before.items()))
        before = now
    return found


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    curves: dict[str, list[float]] = {}
    for kind, name in MODELS.items():
        model = load_fp64(name)
        curves[kind] = drift(model, draw(seed, 1, TOKENS, below=900) + 100, kind == "prefix")
    model = load_fp64("demo-moe")
    ids = draw(seed, 1, TOKENS, below=900) + 100
    with model.trace(save=["*.attn.v"]) as t, torch.no_grad():
        for end in (TOKENS - 1, TOKENS):
            model(ids[:, :end], prefix=torch.tensor([TOKENS // 2]))
    written = max(float((t.get(n, run=0) - t.get(n, run=1)[:, :, :-1]).abs().max()) for n in t.wanted)
    return {kind: max(c) for kind, c in curves.items()} | {"written": written} | {f"{k}_curve": c for k, c in curves.items()}


def judge(runs: Runs) -> Verdict:
    frozen, moving = max(runs.max("causal"), runs.max("written")), min(runs.min("full"), runs.min("prefix"))
    says = Message("causal {frozen:.1g}; in an encoder ({full:.2g}) and in a prefix that grows ({prefix:.2g}) they "
                   "change; what is written after a prefix: {written:.1g}", frozen=frozen, full=runs.mean("full"),
                   prefix=runs.mean("prefix"), written=runs.max("written"))
    word = "refuted" if frozen > 1e-9 else "true only when" if moving > 1e-6 else "shown"
    return runs.verdict(word, "causal", says)


def plot(runs: Runs) -> Plot:
    series = {f"{k} ({m})": runs.curve(f"{k}_curve") for k, m in MODELS.items()}
    return Plot("lines", Message("by how much old keys and values change as the text grows"),
                [float(n) for n in range(3, TOKENS + 1)], series, Message("tokens"), Message("change"), "log")


LAB = Lab(
    "exact",
    Message("The keys and values of past words never change, so they can be cached."),
    Message("Texts on the KV cache."),
    Message("A text grows word by word; by how much old keys and values change (fp64): demo-lm (causal), demo-bert "
            "(encoder), demo-moe (prefix)."),
    Message("No change means about 1e-15 (products of another shape round otherwise); control: an encoder must "
            "change."),
    Message("Causal: no change. Encoder, and a prefix that grows: change. What is written after a prefix: no "
            "change."),
    {"causal": Message("causal: largest change"), "full": Message("encoder: largest change"),
     "prefix": Message("a growing prefix: largest change"),
     "written": Message("written after a prefix")},
    run, judge, plot,
)
