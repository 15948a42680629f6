"""Do temperature and top-p do the same? One set of logits, both knobs turned, and what stays the same under each."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

from itertools import pairwise

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import exact, guesses
from qkv.sampling import Sampling, distribution

PROMPTS = ("One, Two,", "书放在桌上，它很", "今天天气")
TEMPERATURES, MASSES = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0), (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def entropy(p: torch.Tensor) -> float:
    return float(-(p * p.clamp_min(1e-30).log()).sum())


def odds(p: torch.Tensor) -> float:
    """How much likelier the best word is than the second best, as a logarithm."""
    best = p.topk(2).values
    return float((best[0] / best[1]).log())


@torch.no_grad()
def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    model = exact("demo-lm")
    logits = guesses(model, torch.tensor([model.ids(PROMPTS[seed % len(PROMPTS)])]))[:, -1]
    whole = distribution(logits, Sampling(1.0))[0]
    warm = [distribution(logits, Sampling(t))[0] for t in TEMPERATURES]
    cut = [distribution(logits, Sampling(1.0, top_p=p))[0] for p in MASSES]
    inside = [c > 0 for c in cut]
    ratios = [float(((c / whole)[i] / (c / whole)[i].max()).log().abs().max()) for c, i in zip(cut, inside, strict=True)]
    return {
        "rises": float(all(entropy(a) < entropy(b) for a, b in pairwise(warm))),
        "best_stays": float(len({int(p.argmax()) for p in warm}) == 1),
        "ratio_top_p": max(ratios), "ratio_temperature": abs(odds(warm[-1]) - odds(warm[0])),
        "kept_top_p": float(inside[4].sum()), "kept_temperature": float((warm[-1] > 0).sum()),
        "sharpens": float(all(entropy(c) <= entropy(whole) + 1e-6 for c in cut)),
        "shift": float((distribution(logits + 5, Sampling(1.0)) - whole).abs().max()),
        "by_temperature": [entropy(p) for p in warm], "by_mass": [entropy(p) for p in cut],
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    says = (f"温度改变比例（{runs.mean('ratio_temperature'):.1f} nat）而保留所有词；top-p 0.9 只留 {runs.mean('kept_top_p'):.0f} 个词，"
            f"留下的词之间比例不变（{runs.high('ratio_top_p'):.1g}），熵只会降",
            f"temperature changes ratios (by {runs.mean('ratio_temperature'):.1f} nats) and keeps every word; top-p 0.9 keeps "
            f"{runs.mean('kept_top_p'):.0f} and their ratios ({runs.high('ratio_top_p'):.1g}), and entropy only falls")  # fmt: skip
    knobs = runs.low("rises") == 1 and runs.low("best_stays") == 1 and runs.low("ratio_temperature") > 0.1
    cuts = runs.high("ratio_top_p") < 1e-4 and runs.low("sharpens") == 1
    return runs.verdict("refuted" if knobs and cuts else "shown" if knobs else "inconclusive", "ratio_top_p", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", ("熵：温度 0.3→2，top-p 0.1→1", "entropy: temperature 0.3 to 2, top-p 0.1 to 1"),
                [float(i + 1) for i in range(6)],
                {"temperature": runs.curve("by_temperature"), "top-p": runs.curve("by_mass")},
                ("第几档", "notch"), ("熵（nat）", "entropy (nats)"))  # fmt: skip


LAB = Lab(
    "exact",
    ("top-p 的作用和温度差不多：让分布更平滑。", "Top-p works much like temperature: it smooths the distribution."),
    ("给应用开发者讲参数的文章。", "Texts on sampling knobs for application developers."),
    ("demo-lm 的真实 logits 上转动两个旋钮：熵、第一名、保留的词数、词与词的概率比。",
     "demo-lm's own logits under both knobs: entropy, the likeliest word, words kept, ratios between words."),
    ("比例不变：0 nat（fp32 约 1e-6）；均匀分布的熵为 7 nat。", "Ratios unchanged: 0 nats (about 1e-6 in fp32); a flat distribution: 7 nats."),
    ("温度：熵上升，第一名不变，比例变。top-p：剪掉尾巴，留下的比例不变，熵不升。",
     "Temperature: entropy rises, the best stays, ratios change. Top-p: the tail goes, ratios stay, entropy never rises."),
    {"rises": ("熵随温度上升（1 为是）", "entropy rises with temperature (1: yes)"), "best_stays": ("第一名不变（1 为是）", "the best stays (1: yes)"),
     "ratio_temperature": ("温度 0.3→2，头两名的比例变化", "temperature 0.3 to 2: change of the best two's ratio"),
     "ratio_top_p": ("top-p 改变的比例", "ratios changed by top-p"), "kept_top_p": ("top-p 0.9 留下的词", "words kept at top-p 0.9"),
     "kept_temperature": ("温度 2 留下的词", "words kept at temperature 2"), "sharpens": ("top-p 从不升熵（1 为是）", "top-p never raises entropy (1: yes)"),
     "shift": ("logits 都加 5 的影响", "effect of adding 5 to all logits")},
    run, judge, plot,
)  # fmt: skip
