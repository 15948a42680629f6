"""Is the last state the input plus all revisions? Add up what every sub-layer wrote, in pre-norm and in post-norm."""


import torch

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, load_fp64
from qkv.messages import Message

LAYERS = 6


@torch.no_grad()
def ledger(model: qkv.Model, ids: torch.Tensor) -> tuple[float, list[float]]:
    """The relative gap between the last state and the sum of the entries; and the state's size after each layer."""
    with model.trace(save=["embed", "*.attn.out", "*.ffn.out", "layers.*.resid_out"]) as t:
        model(ids)
    count = len(model.spec.stack.blocks)
    entries = [t["embed"], *(t[f"layers.{i}.{part}.out"] for i in range(count) for part in ("attn", "ffn"))]
    last = t[f"layers.{count - 1}.resid_out"]
    sizes = [float(t[f"layers.{i}.resid_out"].norm(dim=-1).mean()) for i in range(count)]
    return float((sum(entries) - last).norm() / last.norm()), sizes


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    ids = draw(seed, 2, 12)
    pre, pre_sizes = ledger(Tiny(layers=LAYERS).model(seed), ids)
    post, post_sizes = ledger(Tiny(layers=LAYERS, norm="post").model(seed), ids)
    learnt = draw(seed, 2, 12, below=900) + 100
    return {
        "pre": pre, "post": post, "trained_pre": ledger(load_fp64("demo-lm"), learnt)[0],
        "trained_post": ledger(load_fp64("demo-bert"), learnt)[0],
        "growth_pre": pre_sizes[-1] / pre_sizes[0], "growth_post": post_sizes[-1] / post_sizes[0],
        "pre_sizes": pre_sizes, "post_sizes": post_sizes,
    }


def judge(runs: Runs) -> Verdict:
    kept, broken = max(runs.max("pre"), runs.max("trained_pre")), min(runs.min("post"), runs.min("trained_post"))
    says = Message("pre-norm: {kept:.1g} apart; post-norm, as in the paper: {broken:.0%} or more, for each norm "
                   "rescales the sum", kept=kept, broken=broken)
    word = "refuted" if kept > 1e-9 else "true only when" if broken > 0.01 else "shown"
    return runs.verdict(word, "post", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("size of the states after each layer"), [float(i + 1) for i in range(LAYERS)],
                {"pre-norm": runs.curve("pre_sizes"), "post-norm": runs.curve("post_sizes")},
                Message("layer"), Message("norm"))


LAB = Lab(
    "exact",
    Message("The last state is the input plus all revisions, one from each layer."),
    Message("Texts that explain residuals as a draft that is revised again and again."),
    Message("The embedding plus what each sub-layer wrote, against the last state; pre-norm and post-norm, random "
            "models, demo-lm and demo-bert."),
    Message("Equal means about 1e-16 (fp64)."),
    Message("Exact in pre-norm; not in post-norm, which the paper has. Each layer makes two entries: attention and "
            "feed-forward."),
    {"pre": Message("pre-norm, random"), "trained_pre": Message("pre-norm, demo-lm"),
     "post": Message("post-norm, random"), "trained_post": Message("post-norm, demo-bert"),
     "growth_pre": Message("growth of the state, pre-norm"),
     "growth_post": Message("the same, post-norm")},
    run, judge, plot,
)
