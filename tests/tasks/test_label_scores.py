"""Scores of labels against slow ones: counts by hand, Matthews correlation as that of two matrices, scikit-learn."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.tasks.label_scores import MISTAKES, draw_confusion, score_labels

LABELS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcde")), min_size=1, max_size=40)


def correlate(wanted: list[str], said: list[str]) -> float:
    """The correlation of two matrices of ones and zeros, a row a text and a column a label (Gorodkin 2004)."""
    names = sorted({*wanted, *said})
    x, y = (np.array([[float(label == name) for name in names] for label in labels]) for labels in (wanted, said))
    x, y = x - x.mean(0), y - y.mean(0)
    below = math.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / below) if below > 1e-9 else 0.0


@given(LABELS)
def test_scores_are_the_slow_ones(rows: list[tuple[str, str]]) -> None:
    wanted, said = [a for a, _ in rows], [b for _, b in rows]
    found = score_labels(wanted, said)
    assert found.accuracy == sum(a == b for a, b in rows) / len(rows)
    assert found.majority == max(map(wanted.count, wanted)) / len(rows)
    assert found.matthews == pytest.approx(correlate(wanted, said), abs=1e-9)
    for name in {*wanted, *said}:
        right = sum(a == b == name for a, b in rows)
        precision, recall = right / max(1, said.count(name)), right / max(1, wanted.count(name))
        assert found.f1[name] == pytest.approx(2 * precision * recall / (precision + recall) if right else 0.0)
    assert found.macro_f1 == pytest.approx(sum(found.f1.values()) / len({*wanted, *said}))
    assert {(a, b): n for a, row in found.confusion.items() for b, n in row.items()} == {r: rows.count(r) for r in rows}


def test_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draws = random.Random(0)
    wanted, said = (draws.choices("abcd", (5, 3, 1, 1), k=300) for _ in range(2))
    found = score_labels(wanted, said)
    assert found.matthews == pytest.approx(metrics.matthews_corrcoef(wanted, said))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(wanted, said, average="macro"))


def test_the_table_has_true_labels_down_and_said_ones_across() -> None:
    rows = draw_confusion(score_labels(["a", "a", "b"], ["b", "a", "b"]), corner="x").rows
    assert rows == [["x", "a", "b"], ["a", "1", "1"], ["b", "0", "1"]]
    many = [f"{n}" for n in range(30)]
    rows = draw_confusion(score_labels(many, [*many[1:], "0"]), corner="x").rows
    assert (len(rows), rows[1]) == (1 + MISTAKES, ["0 → 1", "1"])
