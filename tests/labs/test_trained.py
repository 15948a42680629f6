"""Three trained labs in a shortened form, one seed each: the effect is there, and a fault takes it away."""

import math

import pytest

from qkv import labs
from qkv.core.model import Block
from qkv.labs import cot_serial, induction_heads, lab, residual_depth, six_layers, warm_up
from qkv.labs.lab import Runs

OURS = ("cot-serial", "cot-depth", "residual-depth", "induction-heads", "warm-up", "six-layers")


def many(name, **numbers):
    """The verdict of a lab over three seeds that all gave these numbers."""
    return labs.find_lab(name).judge(Runs((numbers,) * 3)).word


def test_thinking_aloud_in_short(monkeypatch):
    monkeypatch.setattr(cot_serial, "ARMS", ("not_fed_back", "aloud"))
    found = cot_serial.run(0, steps=labs.find_lab("cot-serial").enough)
    assert found["aloud"] >= 0.95
    assert found["not_fed_back"] <= 0.35


def test_aloud_fails_when_what_was_written_cannot_be_read(monkeypatch):
    whole = cot_serial.write_products

    def deaf(model, ids):
        first = whole(model, ids)[:, :1]
        return first.expand(-1, ids.shape[1])

    monkeypatch.setattr(cot_serial, "write_products", deaf)
    monkeypatch.setattr(cot_serial, "ARMS", ("aloud",))
    assert cot_serial.run(0, steps=20)["aloud"] < 0.5


def test_residuals_in_short(monkeypatch):
    monkeypatch.setattr(residual_depth, "RATES", (3e-3,))
    monkeypatch.setattr(residual_depth, "ARMS", {"with": ("serial", 16), "without": ("none", 16)})
    found = residual_depth.run(0, steps=labs.find_lab("residual-depth").enough)
    assert found["with"] >= 0.95
    assert found["without"] < 0.2


def test_a_residual_that_is_lost_is_noticed(monkeypatch):
    monkeypatch.setattr(Block, "add_update", lambda self, x, h, update, step: update)
    monkeypatch.setattr(residual_depth, "ARMS", {"with": ("serial", 16)})
    assert residual_depth.run(0, steps=80)["with"] < 0.2


def test_layers_are_read_out_in_short(monkeypatch):
    monkeypatch.setattr(six_layers, "DEPTHS", (1, 2))
    monkeypatch.setattr(six_layers, "TEST", 20)
    found = six_layers.run(0, steps=30)
    assert found["loss_2"] < 6.5 < 7.1
    assert [len(found[f"by_layer_{n}"]) for n in (1, 2)] == [2, 3]
    assert found["by_layer_2"][-1] == found["right_2"]


def test_warm_up_in_short(monkeypatch):
    monkeypatch.setattr(warm_up, "ARMS", {"none": (1e-2, 1), "long": (1e-2, 60)})
    found = warm_up.run(0, steps=150)
    assert found["post_none"] < 0.2 < 0.9 < found["pre_none"]
    assert found["post_long"] > found["post_none"] + 0.3


def test_what_counts_as_shown_and_what_does_not():
    assert many("cot-serial", direct=0.17, not_fed_back=0.2, aloud=1.0) == "shown"
    assert many("cot-serial", direct=0.17, not_fed_back=0.6, aloud=1.0) == "true only when"
    assert many("cot-serial", direct=0.17, not_fed_back=0.9, aloud=1.0) == "not shown"
    plain = {"slope_with": 1.0, "slope_without": 0.5}
    assert many("residual-depth", **{"with": 1.0}, without=0.07, **plain) == "shown"
    assert many("residual-depth", **{"with": 1.0}, without=0.5, **plain) == "not shown"
    losses = lambda *x: dict(zip((f"loss_{n}" for n in six_layers.DEPTHS), x, strict=True))  # noqa: E731
    layers = {f"right_{n}": 0.5 for n in six_layers.DEPTHS} | {"by_layer_6": [0.1] * 7}
    assert many("six-layers", **losses(4, 3, 2, 1), **layers) == "shown"
    assert many("six-layers", **losses(4, 3, 2, 3), **layers) == "true only when"
    assert many("six-layers", **losses(1, 2, 2, 3), **layers) == "not shown"
    arms = {"post_long": 1.0, "pre_none": 1.0}
    assert many("warm-up", post_none=0.1, post_low=0.1, **arms) == "shown"
    assert many("warm-up", post_none=0.1, post_low=1.0, **arms) == "true only when"
    assert many("warm-up", post_none=0.9, post_low=1.0, **arms) == "not shown"
    deep = {"silent4_1": 0.3, "silent8_8": 0.2, "aloud8_1": 1.0}
    assert many("cot-depth", silent4_8=0.9, **deep) == "shown"
    assert many("cot-depth", silent4_8=0.3, **deep) == "true only when"
    heads = {"prefix_1": 0.03, "score_1": -1.0, "score_2": -3.0, "loss_drop_2": 300.0}
    assert many("induction-heads", prefix_2=0.9, prefix_rise_2=300.0, **heads) == "shown"
    assert many("induction-heads", prefix_2=0.9, prefix_rise_2=600.0, **heads) == "true only when"
    assert many("induction-heads", prefix_2=0.1, prefix_rise_2=300.0, **heads) == "not shown"


def test_permutations_are_composed_one_after_another():
    ids, so_far = cot_serial.draw_products(3, 5, 4)
    table = cot_serial.compose()
    assert sorted(table[0].tolist()) == list(range(6))
    for row in range(5):
        product = ids[row, 0]
        for i in range(1, 4):
            product = table[ids[row, i], product]
            assert so_far[row, i] == product
    associative = table[table[1, 2], 3] == table[1, table[2, 3]]
    assert bool(associative)
    assert table[1, 3] != table[3, 1]  # S3 does not commute, so order counts


def test_a_head_that_matches_scores_one_and_a_bare_model_has_no_ffn():
    model = induction_heads.build_attention_only(2, 0)
    assert all(float(p.abs().sum()) == 0 for n, p in model.core.named_parameters() if ".ffn." in n)
    loss, score, match = induction_heads.look(model, 1)
    assert loss == pytest.approx(math.log(32), abs=1.0)
    assert abs(score) < 0.5
    assert match < 0.1
    ids, count = induction_heads.draw_batch(0, 4)
    for row in range(4):
        n = int(count[row])
        assert len(set(ids[row, :n].tolist())) == n
        assert ids[row, n:].tolist() == ids[row, :-n].tolist()
    assert induction_heads.find_steepest([4.0, 3.5, 3.4, 1.0, 0.9], -50) == 150


def test_the_published_figures_stand_beside_ours_with_their_source():
    for name in ("cot-depth", "induction-heads", "warm-up"):
        kept = labs.load_result(name)
        assert kept is not None
        plot = labs.find_lab(name).plot(Runs(tuple(kept["numbers"])))
        assert plot.beside is not None
        assert "et al." in plot.beside.source
        assert all(len(row) == len(plot.beside.x) for row in plot.beside.series.values())


@pytest.mark.parametrize("name", OURS)
def test_committed_results_are_whole(name):
    kept = labs.load_result(name)
    assert kept is not None
    assert len(kept["seeds"]) >= 3
    assert not kept["stopped"]
    result = lab.from_json(kept, name)
    found = labs.find_lab(name)
    assert lab.judge_runs(found, Runs(result.numbers), result.steps) == result.verdict
    assert lab.differences(found, result, result) == []
