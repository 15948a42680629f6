"""Do the numbers that texts print follow from each other? Their own logits, scores and tables, worked out."""


import math

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.messages import Message
from qkv.sampling import Sampling, distribution

LOGITS, STATED = (15.8, 5.1, -3.2), (0.85, 0.10, 0.00001)  # "study", "apple" and a third word, of 50,000
MATCH = (9.5, 0.2)  # said to give 98 % and 1 %
TABLE = ((1.0,), (0.13, 0.87), (0.03, 0.10, 0.87), (0.02, 0.05, 0.08, 0.85))  # one query's weights each


def shares(scores: tuple[float, ...], temperature: float = 1.0) -> list[float]:
    return distribution(torch.tensor([scores]), Sampling(temperature))[0].tolist()


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
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
    }


def judge(runs: Runs) -> Verdict:
    says = Message("15.8/5.1/-3.2 give {study:.5f}/{apple:.1e}/{third:.1e}, not 0.85/0.10/0.00001; 0.85 to 0.10 takes "
                   "T = {temperature:.1f}, where the third word is {third_then:.0f} times too likely, so no "
                   "temperature fits. 9.5/0.2 give {match:.2%}, and {match_scaled:.1%} over √4",
                   study=runs.mean("study"), apple=runs.mean("apple"), third=runs.mean("third"),
                   temperature=runs.mean("temperature"), third_then=runs.mean("third_then"), match=runs.mean("match"),
                   match_scaled=runs.mean("match_scaled"))
    wrong = runs.min("study") > 0.999 and runs.min("third_then") > 10
    return runs.verdict("refuted" if wrong else "shown", "study", says)


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("probabilities of logits 15.8 / 5.1 / -3.2"), ("study", "apple", "third"),
                {"softmax": [runs.mean(n) for n in ("study", "apple", "third")], "stated": list(STATED)},
                y_label=Message("probability"), scale="log")


LAB = Lab(
    "exact",
    Message("Logits 15.8, 5.1 and -3.2 become 0.85, 0.10 and 0.00001 by softmax; scores 9.5 and 0.2 become 98 % and 1 "
            "%."),
    Message("Numbers made up to explain, and read as if worked out."),
    Message("The same numbers through our softmax; the temperature at which the ratios would fit; the sums of the 4 x "
            "4 table; -ln 0.1."),
    Message("The ratio of two words depends on the gap of their logits alone, not on the 50,000 others."),
    Message("0.99998, 2.3e-5, 5.6e-9; no temperature fits; 9.5/0.2 is 99.99 %, over √4 99.05 %; the table's rows sum "
            "to 1; 2.303."),
    {"study": Message("P(study)"), "apple": Message("P(apple)"), "third": Message("P(third)"),
     "temperature": Message("temperature for 0.85 to 0.10"),
     "third_then": Message("the third word then, times too likely"),
     "match": Message("9.5 against 0.2"), "match_scaled": Message("over √4"),
     "match_dim": Message("d_k for 98 to 1"), "table": Message("4 x 4 table, rows from 1"),
     "loss": Message("-ln 0.1")},
    run, judge, plot,
)
