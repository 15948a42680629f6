"""The key/value heads lab: equal parameters, and a rule that puts a gap beside the seeds' own spread."""

from qkv.cost import count
from qkv.labs import kv_heads_quality, lab
from qkv.labs.lab import Runs


def word(mha, gqa, mqa):
    rows = [{"mha": a, "gqa": b, "mqa": c, "gap": a - c} for a, b, c in zip(mha, gqa, mqa, strict=True)]
    return kv_heads_quality.judge(Runs(tuple(rows))).word


def test_all_kinds_have_as_many_parameters():
    specs = [kv_heads_quality.shape_model(groups).spec for groups in kv_heads_quality.ARMS.values()]
    assert len({count(spec).parameters for spec in specs}) == 1
    assert kv_heads_quality.shape_model(1).spec.decoder.blocks[0].attn.groups == 1


def test_a_gap_counts_only_beyond_the_spread():
    assert word((0.9, 0.9, 0.91), (0.8, 0.8, 0.8), (0.7, 0.71, 0.7)) == "shown"
    assert word((0.9, 0.9, 0.91), (0.6, 0.6, 0.6), (0.7, 0.71, 0.7)) == "true only when"
    assert word((0.9, 0.7, 0.8), (0.8, 0.8, 0.8), (0.75, 0.7, 0.8)) == "not shown"
    assert word((0.9, 0.75, 0.8), (0.8, 0.8, 0.8), (0.7, 0.72, 0.74)) == "not shown"  # ordered, but within the spread
    assert word((0.7, 0.7, 0.7), (0.8, 0.8, 0.8), (0.9, 0.9, 0.9)) == "refuted"
    made = {"mha": 0.9, "gqa": 0.8, "mqa": 0.7, "gap": 0.2}
    assert lab.judge_runs(kv_heads_quality.LAB, Runs((made,) * 3), 10).word == "inconclusive"
