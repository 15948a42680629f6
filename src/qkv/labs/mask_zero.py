"""Does nothing to the right ever influence the left? Every Jacobian of every layer, and the masked weights themselves."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw, exact, guesses, influence

TOKENS = 8


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    model, ids = Tiny(layers=3).model(seed), draw(seed, 1, TOKENS)
    ahead = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)  # (reader, read): read stands to the right
    reach = influence(model, ids, seed).amax((0, 2))
    free = influence(Tiny(mask="full", layers=3).model(seed), ids, seed).amax((0, 2))
    trained = exact("demo-lm")
    learnt = influence(trained, trained_ids := torch.tensor([trained.ids("One, Two,")]), seed).amax((0, 2))
    count = trained_ids.shape[1]
    with model.trace(save=["*.pattern"]) as t, torch.no_grad():
        changed, plain = ids.clone(), guesses(model, ids)
    changed[0, TOKENS // 2] = (changed[0, TOKENS // 2] + 1) % 32
    with torch.no_grad():
        moved = (guesses(model, changed) - plain)[0].abs().amax(-1)
    return {
        "leak": float(reach[ahead].max()),
        "weight": max(float(t[n][0, :, ahead].max()) for n in t.wanted),
        "change": float(moved[: TOKENS // 2].max()),
        "change_right": float(moved[TOKENS // 2 :].min()),
        "trained": float(learnt[torch.ones(count, count, dtype=torch.bool).triu(1)].max()),
        "itself": float(reach.diagonal().min()),
        "control": float(free[ahead].min()),
        "grid": reach.flatten().tolist(),
    }


def judge(runs: Runs) -> Verdict:
    leak = max(runs.high(n) for n in ("leak", "weight", "change", "trained"))
    says = (f"右边对左边的影响最大 {leak:g}；去掉掩码后至少 {runs.low('control'):.2g}；每个词也看自己",
            f"from right to left at most {leak:g}, without the mask at least {runs.low('control'):.2g}; "
            "each word sees itself too")  # fmt: skip
    if leak == 0 and runs.low("control") > 0 and runs.low("itself") > 0:
        return runs.verdict("shown", "leak", says)
    return runs.verdict("refuted" if leak > 0 else "inconclusive", "leak", says)


def plot(runs: Runs) -> Plot:
    grid, names = runs.curve("grid"), [f"{i + 1}" for i in range(TOKENS)]
    rows = {n: grid[i * TOKENS : (i + 1) * TOKENS] for i, n in enumerate(names)}
    return Plot("grid", ("谁影响谁：行是读者，列是被读的词", "who influences whom: rows read, columns are read"), names, rows,
                ("被读的位置", "position read"), ("读者", "reader"))  # fmt: skip


LAB = Lab(
    "exact",
    ("因果掩码让右边的词对左边毫无影响：权重正好是 0。",
     "A causal mask keeps what stands right from influencing what stands left: the weight is exactly 0."),
    ("讲解码器的文章；也常说成“答案只来自左边”，漏了词自己。",
     "Texts on decoders; often as “answers come only from the left”, which forgets the word itself."),
    ("所有层、所有位置对的 Jacobian；掩码位置的注意力权重；改一个词后左边 logits 的变化。随机模型和 demo-lm。",
     "The Jacobians of all pairs of positions in all layers; the masked weights; the left's logits after one word is "
     "changed. A random model, and demo-lm."),
    ("正好 0，不是很小；对照：没有掩码的同样模型不为 0。", "Exactly 0, not small; control: the same model unmasked is not 0."),
    ("0、0、0；每个词能看到自己。", "0, 0 and 0; each word sees itself."),
    {"leak": ("右→左的最大 Jacobian", "largest Jacobian, right to left"),
     "weight": ("掩码处的最大权重", "largest masked weight"), "change": ("改一个词，左边的变化", "a word changed: its left"),
     "change_right": ("改一个词，它和右边的变化", "a word changed: itself and its right"),
     "trained": ("demo-lm 的最大 Jacobian，右→左", "demo-lm's largest Jacobian, right to left"),
     "itself": ("对自己的最小 Jacobian", "least Jacobian to itself"),
     "control": ("对照：无掩码时的最小值", "control: the least without a mask")},
    run, judge, plot,
)  # fmt: skip
