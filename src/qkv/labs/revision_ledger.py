"""Is the last state the input plus all revisions? Add up what every sub-layer wrote, in pre-norm and in post-norm."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw, exact

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


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    ids = draw(seed, 2, 12)
    pre, pre_sizes = ledger(Tiny(layers=LAYERS).model(seed), ids)
    post, post_sizes = ledger(Tiny(layers=LAYERS, norm="post").model(seed), ids)
    learnt = draw(seed, 2, 12, below=900) + 100
    return {
        "pre": pre, "post": post, "trained_pre": ledger(exact("demo-lm"), learnt)[0],
        "trained_post": ledger(exact("demo-bert"), learnt)[0],
        "growth_pre": pre_sizes[-1] / pre_sizes[0], "growth_post": post_sizes[-1] / post_sizes[0],
        "pre_sizes": pre_sizes, "post_sizes": post_sizes,
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    kept, broken = max(runs.high("pre"), runs.high("trained_pre")), min(runs.low("post"), runs.low("trained_post"))
    says = (f"pre-norm：差 {kept:.1g}；post-norm（原论文）：差 {broken:.0%} 以上，而且每一层都被压平",
            f"pre-norm: {kept:.1g} apart; post-norm, as in the paper: {broken:.0%} or more, for each norm rescales the sum")
    word = "refuted" if kept > 1e-9 else "true only when" if broken > 0.01 else "shown"
    return runs.verdict(word, "post", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", ("每层之后状态的长度", "size of the states after each layer"), [float(i + 1) for i in range(LAYERS)],
                {"pre-norm": runs.curve("pre_sizes"), "post-norm": runs.curve("post_sizes")},
                ("层", "layer"), ("长度", "norm"))  # fmt: skip


LAB = Lab(
    "exact",
    ("最后的状态 = 输入 + 每一层的修改之和。", "The last state is the input plus all revisions, one from each layer."),
    ("用“不断修改草稿”解释残差的文章。", "Texts that explain residuals as a draft that is revised again and again."),
    ("嵌入 + 每个子层的输出之和，与最后状态的相对差；pre-norm 与 post-norm，随机模型与 demo-lm、demo-bert。",
     "The embedding plus what each sub-layer wrote, against the last state; pre-norm and post-norm, random models, demo-lm "
     "and demo-bert."),
    ("相等约 1e-16（fp64）。", "Equal means about 1e-16 (fp64)."),
    ("pre-norm 精确；post-norm 不成立，而原论文正是 post-norm。每层有两笔账：注意力和前馈。",
     "Exact in pre-norm; not in post-norm, which the paper has. Each layer makes two entries: attention and feed-forward."),
    {"pre": ("pre-norm，随机", "pre-norm, random"), "trained_pre": ("pre-norm，demo-lm", "pre-norm, demo-lm"),
     "post": ("post-norm，随机", "post-norm, random"), "trained_post": ("post-norm，demo-bert", "post-norm, demo-bert"),
     "growth_pre": ("状态变长多少倍，pre-norm", "growth of the state, pre-norm"),
     "growth_post": ("同上，post-norm", "the same, post-norm")},
    run, judge, plot,
)  # fmt: skip
