"""Do the numbers that texts print follow from each other? Their own logits, scores and tables, worked out."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import math

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.sampling import Sampling, distribution

LOGITS, STATED = (15.8, 5.1, -3.2), (0.85, 0.10, 0.00001)  # "study", "apple" and a third word, of 50,000
MATCH = (9.5, 0.2)  # said to give 98 % and 1 %
TABLE = ((1.0,), (0.13, 0.87), (0.03, 0.10, 0.87), (0.02, 0.05, 0.08, 0.85))  # one query's weights each


def shares(scores: tuple[float, ...], temperature: float = 1.0) -> list[float]:
    return distribution(torch.tensor([scores]), Sampling(temperature))[0].tolist()


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    said, wanted = shares(LOGITS), math.log(STATED[0] / STATED[1])
    fitting = (LOGITS[0] - LOGITS[1]) / wanted  # the temperature at which the first two are 0.85 to 0.10
    warm = shares(LOGITS, fitting)
    needed = (MATCH[0] - MATCH[1]) / math.log(98 / 1)
    return {
        "study": said[0], "apple": said[1], "third": said[2], "temperature": fitting,
        "third_then": warm[2] / warm[0] * STATED[0] / STATED[2],
        "match": shares(MATCH)[0], "match_scaled": shares(MATCH, 2.0)[0], "match_dim": needed**2,
        "table": max(abs(sum(row) - 1) for row in TABLE), "loss": -math.log(0.1),
        "fit": [shares(LOGITS, float(t))[0] for t in (1, 2, 3, 4, 5, 6, 8)],
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    says = (f"15.8/5.1/-3.2 给出 {runs.mean('study'):.5f}/{runs.mean('apple'):.1e}/{runs.mean('third'):.1e}，不是 0.85/0.10/0.00001；"
            f"要 0.85:0.10 需 T = {runs.mean('temperature'):.1f}，那时第三个词大了 {runs.mean('third_then'):.0f} 倍：没有温度能配上。"
            f"9.5/0.2 给出 {runs.mean('match'):.2%}，除以 √4 才是 {runs.mean('match_scaled'):.1%}",
            f"15.8/5.1/-3.2 give {runs.mean('study'):.5f}/{runs.mean('apple'):.1e}/{runs.mean('third'):.1e}, not "
            f"0.85/0.10/0.00001; 0.85 to 0.10 takes T = {runs.mean('temperature'):.1f}, where the third word is "
            f"{runs.mean('third_then'):.0f} times too likely, so no temperature fits. 9.5/0.2 give {runs.mean('match'):.2%}, "
            f"and {runs.mean('match_scaled'):.1%} over √4")  # fmt: skip
    wrong = runs.low("study") > 0.999 and runs.low("third_then") > 10
    return runs.verdict("refuted" if wrong else "shown", "study", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", ("logits 15.8 / 5.1 / -3.2 的概率", "probabilities of logits 15.8 / 5.1 / -3.2"), ("study", "apple", "third"),
                {"softmax": [runs.mean(n) for n in ("study", "apple", "third")], "stated": list(STATED)},
                y_label=("概率", "probability"), scale="log")  # fmt: skip


LAB = Lab(
    "exact",
    ("logits 15.8、5.1、-3.2 经过 softmax 得到 0.85、0.10、0.00001；分数 9.5、0.2 得到 98%、1%。",
     "Logits 15.8, 5.1 and -3.2 become 0.85, 0.10 and 0.00001 by softmax; scores 9.5 and 0.2 become 98 % and 1 %."),
    ("为了讲解而编的数字，被当作算出来的。", "Numbers made up to explain, and read as if worked out."),
    ("同样的数经过我们的 softmax；求使比例相符的温度；4×4 表每行之和；-ln 0.1。",
     "The same numbers through our softmax; the temperature at which the ratios would fit; the sums of the 4 x 4 table; -ln 0.1."),
    ("两词之比只取决于 logits 之差，与其余五万词无关。",
     "The ratio of two words depends on the gap of their logits alone, not on the 50,000 others."),
    ("0.99998、2.3e-5、5.6e-9；没有温度能配上；9.5/0.2 是 99.99%，除以 √4 为 99.05%；表每行为 1；2.303。",
     "0.99998, 2.3e-5, 5.6e-9; no temperature fits; 9.5/0.2 is 99.99 %, over √4 99.05 %; the table's rows sum to 1; 2.303."),
    {"study": ("study 的概率", "P(study)"), "apple": ("apple 的概率", "P(apple)"), "third": ("第三个词", "P(third)"),
     "temperature": ("使 0.85:0.10 成立的温度", "temperature for 0.85 to 0.10"),
     "third_then": ("那时第三个词大多少倍", "the third word then, times too likely"),
     "match": ("9.5 对 0.2", "9.5 against 0.2"), "match_scaled": ("除以 √4", "over √4"),
     "match_dim": ("使 98:1 成立的 d_k", "d_k for 98 to 1"), "table": ("4×4 表每行与 1 之差", "4 x 4 table, rows from 1"),
     "loss": Message("-ln 0.1")},
    run, judge, plot,
)  # fmt: skip
