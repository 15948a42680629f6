"""A run that was stopped anywhere and goes on is the one that was not, whatever it learns and by whichever settings.

Stopped in the midst of the first epoch, at its end and in the second; weights, what the optimiser remembers, the moving
average, the losses and the outcome are equal to the last bit.
"""

import dataclasses
import json
import math
import random
import re
import sys
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv import files
from qkv.data.order import draw_permutation
from qkv.errors import QkvError
from qkv.training import assemble, checkpoint, control, loop, losses, recipes, run_dir
from qkv.training import step as stepping
from qkv.training.objectives import augment
from qkv.training.plan import Plan
from qkv.training.run import Run, Vocabulary
from qkv.training.shape import Shape
from qkv.training.splits import Splits

sys.path.insert(0, str(Path(__file__).parent))
import test_bpe_dropout_runs as cuts
import test_trust as t
import test_tuning as tuning

BASE = dataclasses.replace(t.BASE, steps=9, accumulate=2, label_smoothing=0.1, clip=0.5, evaluate_every=4)
STOPS = (3, 5, 7)  # an epoch has 5 steps, the last of them a short one
WAYS: dict[str, dict[str, Any]] = {
    "plain": {}, "averages": {"ema": 0.9, "average": 2, "evaluate_every": 2}, "agree": {"rdrop": 2.0},
    "sampled": {"scheduled_sampling": 0.5, "scheduled_sampling_ramp": 9},
    "all": {"rdrop": 1.0, "scheduled_sampling": 0.5, "ema": 0.9},
    "recompute": {"recompute": "blocks"}, "bf16": {"precision": "bf16"}, "muon": {"optimizer": "muon"},
    "adafactor": {"optimizer": "adafactor"}, "wsd": {"schedule": "wsd", "warmup": 3, "floor": 0.1},
    "spikes": {"spike": 3.0, "on_bad_step": "skip"},
}  # fmt: skip
OFTEN = ("plain", "averages", "all", "bf16", "spikes")  # with every test; the others nightly


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ENOUGH", 3)  # steps from which one may be called a spike
    monkeypatch.setattr(loop, "ROW", 99)  # however many follow one another


def some(every: Iterable[Any], often: Container[Any]) -> list[Any]:
    """Cases, of which all but some are nightly."""
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=() if c in often else pytest.mark.nightly)
            for c in every]  # fmt: skip


def plan(objective: str, family: str) -> Plan:
    rows = t.texts(18)

    def order(epoch: int) -> list[tuple[int, ...]]:
        mixed = draw_permutation(len(rows), seed=0, epoch=epoch).tolist()
        return [tuple(mixed[i : i + 2]) for i in range(0, len(rows), 2)]

    return Plan(order, lambda key: t.batch_of(objective, [rows[i] for i in key], family=family), {"rows": len(rows)})


def poisoned(core: Any, batch: Any, **how: Any) -> Any:
    """The loss, which some batches make a spike."""
    loss, busy = losses.step_loss(core, batch, **how)
    return loss * (9 if odd(batch) else 1), busy


def odd(batch: Any) -> bool:
    return int(batch.target.sum()) in (322, 340)  # some of the second epoch's


def ended(folder: Path, objective: str, family: str, *stops: int, **how: Any) -> dict[str, Any]:
    """All that a run leaves that was stopped so often; each part begins with other weights, and other chance around."""
    end, core = None, None
    for part, stop in enumerate((*stops, 0)):
        torch.manual_seed(part)
        core = t.learner(objective, family, 0.2, seed=part)
        with pytest.MonkeyPatch.context() as patch:
            if "spike" in how:
                patch.setattr(stepping, "step_loss", poisoned)
            end = loop.train(core, plan(objective, family), dataclasses.replace(BASE, **how), directory=folder,
                             evaluate=t.measured, resume=True, stop=lambda step, stop=stop: step == stop)  # fmt: skip
    assert end is not None
    assert core is not None
    left, state = checkpoint.read(folder / "train" / "last.safetensors")
    place = {key: value for key, value in state["progress"].items() if key != "seconds"}
    left |= {f"end:{name}": w for name, w in checkpoint.weights(core).items()}
    told = [e for e in run_dir.read_events(folder / "train" / "log.jsonl") if e["kind"] in ("step", "evaluation")]
    told = [e for e in told if "weights" not in e]  # each part ends with evaluations of its own
    said = [(e["kind"], e["step"], e["loss"], e.get("lr"), e.get("gradient"), e.get("loads")) for e in told]
    how_it_ended = (end.loss, end.metrics, end.weights, end.tokens, end.epochs, end.skipped)
    return {**left, "place": place, "said": said, "outcome": how_it_ended}


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(
        torch.equal(one[key], two[key]) if isinstance(one[key], torch.Tensor) else one[key] == two[key] for key in one
    )


def check(folder: Path, objective: str = "pairs", family: str = "marian", **how: Any) -> None:
    whole = ended(folder / "a", objective, family, **how)
    assert [step for kind, step, *_ in whole["said"] if kind == "step"] == list(range(1, BASE.steps + 1))
    assert bool(whole["outcome"][-1]) == ("spike" in how), "steps are skipped where spikes are looked for"
    assert same(whole, ended(folder / "b", objective, family, *STOPS, **how))


@pytest.mark.parametrize(("objective", "family"), some(t.MATRIX, [("prefixes", "experts"), ("pairs", "lstm")]))
def test_every_family_goes_on_with_every_objective_bit_for_bit(objective: str, family: str, tmp_path: Path) -> None:
    check(tmp_path, objective, family)


@pytest.mark.parametrize("way", some(WAYS, OFTEN))
def test_a_run_goes_on_bit_for_bit_by_any_settings(way: str, tmp_path: Path) -> None:
    check(tmp_path, **WAYS[way])


@pytest.mark.parametrize(("objective", "family"), some(t.MATRIX, t.AGREE[1:]))
def test_every_family_goes_on_with_two_dropouts_bit_for_bit(objective: str, family: str, tmp_path: Path) -> None:
    check(tmp_path, objective, family, rdrop=2.0, ema=0.9)


# not the optimiser's step of each weight: where a checkpoint lacks it, the run's own stands in
LOST = ("exp_avg", "mean", "done", "snapshots", "recent", "weight", "epoch")


@pytest.mark.parametrize("lost", some(LOST, LOST[:5]))
def test_whatever_a_checkpoint_forgets_is_found(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = checkpoint.read

    def forgetful(path: Path) -> Any:
        tensors, state = true(path)
        if sys._getframe(1).f_code.co_name != "load":
            return tensors, state
        fresh = vars(checkpoint.Progress())
        if lost in fresh:
            state["progress"][lost] = fresh[lost]
        if lost == "weight":
            return {n: w * (1 - n.startswith("weight:")) for n, w in tensors.items()}, state
        return {n: w for n, w in tensors.items() if not n.startswith(f"{lost}:")}, state

    monkeypatch.setattr(checkpoint, "read", forgetful)
    with pytest.raises((AssertionError, KeyError)) as error:
        check(tmp_path, **WAYS["spikes" if lost == "recent" else "averages"])
    assert "are skipped" not in str(error.value)


def test_a_run_that_had_ended_ends_again_as_it_did(tmp_path: Path) -> None:
    one, two = (ended(tmp_path, "pairs", "marian", **WAYS["averages"]) for _ in range(2))
    assert same(one, two)
    assert math.isfinite(two["outcome"][0])


@pytest.mark.parametrize(("objective", "family"), [("pairs", "marian"), ("prefixes", "experts"), ("labels", "bert")])
def test_learning_neither_asks_nor_moves_the_chance_of_others(objective: str, family: str, tmp_path: Path) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        core = t.learner(objective, family, 0.2)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
        settings = dataclasses.replace(BASE, rdrop=1.0, steps=3)
        loop.train(core, plan(objective, family), settings, directory=tmp_path / str(seed), evaluate=t.measured)
        after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
        found.append({name: w.clone() for name, w in checkpoint.weights(core).items()})
    assert same(*found)


# -- the same of whole recipes, whose texts are cut and thinned anew in each epoch -------------------------------------


def talking(objective: str, **training: Any) -> Run:
    run = tuning.run_of(objective, "gpt2", accumulate=2, tokens=96, **training)
    return dataclasses.replace(run, model=dataclasses.replace(run.model, dropout=0.1))


def cut(objective: str, **training: Any) -> Run:
    how = {"rdrop": 2.0, "accumulate": 2, "tokens": 128, **training}
    if objective == "pairs":
        return cuts.run_of(0.3, ema=0.9, **({"scheduled_sampling": 0.3} | how))
    if objective != "text":
        how["word_dropout"] = 0.3
    return cuts.other(objective, 0.3, **how)


RECIPES: dict[str, Callable[..., Run]] = {
    **{objective: lambda objective=objective, **how: cut(objective, **how)
       for objective in ("pairs", "text", "labels", "similarity", "choice")},
    "blurred pairs": lambda **how: cut("pairs", scheduled_sampling=0.0, word_dropout=0.3, **how),
    **{objective: lambda objective=objective, **how: talking(objective, **how) for objective in ("documents", "chat")},
}  # fmt: skip


def last(folder: Path) -> dict[str, Any]:
    return checkpoint.read(folder / "train" / "last.safetensors")[0]


@pytest.mark.parametrize("objective", some(RECIPES, ("pairs", "blurred pairs", "labels", "choice", "chat")))
def test_a_recipe_with_all_its_dropouts_goes_on_bit_for_bit(objective: str, tmp_path: Path) -> None:
    make = RECIPES[objective]
    whole = recipes.train(make(steps=9, evaluate_every=4), out=tmp_path / "a", device="cpu")
    assert whole.outcome.epochs > 1
    for steps in (2, 5):  # evaluated at other times, which changes nothing that is learnt
        torch.manual_seed(steps)
        recipes.train(make(steps=steps, evaluate_every=steps), out=tmp_path / "b", device="cpu", resume=True)
    again = recipes.train(make(steps=9, evaluate_every=4), out=tmp_path / "b", device="cpu", resume=True)
    assert same(last(tmp_path / "a"), last(tmp_path / "b"))
    assert again.outcome.loss == whole.outcome.loss


@pytest.mark.parametrize("objective", ["labels", "blurred pairs"])
def test_words_left_out_by_consumed_chance_would_be_found(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, chance = augment.make_generator, np.random.default_rng(0)
    monkeypatch.setattr(
        augment, "make_generator", lambda **key: chance if key["seed"] == augment.WORD_STREAM else draw(**key)
    )
    with pytest.raises(AssertionError):
        test_a_recipe_with_all_its_dropouts_goes_on_bit_for_bit(objective, tmp_path)


def test_what_is_kept_of_a_run_is_whole_and_strict_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "result.json"
    run_dir.write_json(path, {"loss": math.nan, "in": Path("a"), "also": [1.5, (math.inf,)]})
    told = path.read_text(encoding="utf-8")
    assert json.loads(told) == {"loss": None, "in": "a", "also": [1.5, [None]]}

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "fsync_path", full)
    with pytest.raises(QkvError, match=r"result\.json: could not be written"):
        run_dir.write_json(path, {"loss": 1.0})
    assert path.read_text(encoding="utf-8") == told
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


# -- another run ------------------------------------------------------------------------------------------------------

ROWS = [(f"text {i} of {i % 7} words", str(i % 2)) for i in range(40)]


def judge(rows: list[tuple[str, str]] = ROWS, size: int = 300, objective: str = "labels", **training: Any) -> Run:
    shape = Shape("bert", width=16, layers=1, heads=2, ffn=32, context=64)
    settings = dataclasses.replace(cuts.run_of().training, metric="loss", **{"steps": 2, **training})
    return Run("other", lambda: Splits(rows, rows[:5]), shape, Vocabulary("bpe", size), settings, objective=objective)


OTHERS: list[tuple[str, Callable[[], Run], str]] = [
    ("a word", lambda: judge([("another 0", "0"), *ROWS[1:]]), r"data\.(ids|crc): was \d+, now \d+"),
    ("a label", lambda: judge([(ROWS[0][0], "1"), *ROWS[1:]]), r"data\.labels: was \d+, now \d+"),
    ("two labels", lambda: judge([(a, str(1 - int(b))) for a, b in ROWS]), r"data\.labels: was"),
    ("an order", lambda: judge(ROWS[::-1]), r"data\.crc: was"),
    ("a vocabulary", lambda: judge(size=310), r"data\.tokenizer\.size: was 300, now 310"),
    ("a seed", lambda: judge(seed=5), r"data\.seed: was 0, now 5"),
    ("a batch", lambda: judge(tokens=128), r"data\.batch: was 256, now 128"),
    ("a step", lambda: judge(accumulate=2), r"training\.accumulate \* processes: was 1, now 2"),
    ("words", lambda: judge(word_dropout=0.1), r"data\.word_dropout: was null, now 0\.1"),
    ("rare words", lambda: judge(rare_words=1.0), r"data\.rare_words: was null, now 1\.0"),
    ("an objective", lambda: judge(objective="masked"), r"data\.objective: was \"labels\", now \"masked\""),
]


@pytest.mark.parametrize(("run", "told"), [o[1:] for o in OTHERS], ids=[o[0] for o in OTHERS])
@pytest.mark.parametrize("learns", ["labels", "masked"])
def test_another_run_is_refused_with_what_differs(
    learns: str, run: Callable[[], Run], told: str, tmp_path: Path
) -> None:
    other = run()
    if learns == "masked" and (other.objective == "masked" or other.training.word_dropout or other.training.rare_words):
        pytest.skip("the same, or of labels alone")
    other = dataclasses.replace(other, objective=learns if other.objective == "labels" else other.objective)
    first = judge(objective=learns)
    recipes.train(first, out=tmp_path, device="cpu")
    kept = (tmp_path / "train" / "last.safetensors").read_bytes()
    longer = dataclasses.replace(other, training=dataclasses.replace(other.training, steps=4))
    with pytest.raises(QkvError, match=rf"last\.safetensors: this checkpoint belongs to another run: .*{told}"):
        recipes.train(longer, out=tmp_path, device="cpu", resume=True)
    assert (tmp_path / "train" / "last.safetensors").read_bytes() == kept


def test_a_tokenizer_that_was_exchanged_is_found(tmp_path: Path) -> None:
    recipes.train(judge(), out=tmp_path / "a", device="cpu")
    recipes.train(judge(ROWS[::-1][:9], size=290), out=tmp_path / "b", device="cpu")
    (tmp_path / "a" / "tokenizer.json").write_bytes((tmp_path / "b" / "tokenizer.json").read_bytes())
    with pytest.raises(QkvError, match=r"data\.(ids|crc)|spec\.vocabulary"):
        recipes.train(judge(steps=4), out=tmp_path / "a", device="cpu", resume=True)


# -- what is too long -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "family", "becomes"),
    [("pairs", "marian", "they are left out"), ("prefixes", "prefix", "they are left out"),
     ("masked", "bert", "they are left out"), ("labels", "bert", "their ends are left out"),
     ("choice", "openai_gpt", "their ends are left out")],
)  # fmt: skip
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_texts_that_are_longer_than_is_learnt_are_counted_and_told(
    objective: str, family: str, becomes: str, dropout: float, tmp_path: Path
) -> None:
    if dropout and objective in ("prefixes", "masked"):
        pytest.skip("these are not cut anew")
    long = "word " * 80
    rows = [(f"one {i}", f"two {i}") for i in range(30)]
    spoilt = [*rows, (long, "two"), (long, long)]
    if objective in ("labels", "choice"):
        mark = " ||| no ||| " if objective == "choice" else " "
        rows, spoilt = ([(f"{a}{mark}{b}", "01"[i % 2]) for i, (a, b) in enumerate(many)] for many in (rows, spoilt))
    shape = Shape(family, width=16, layers=1, heads=2, ffn=64, context=40)  # type: ignore[arg-type]
    for given, count in ((rows, 0), (spoilt, 4 if objective == "choice" else 2)):
        run = Run("long", lambda given=given: Splits(given, rows[:6]), shape, Vocabulary("bpe", 300, dropout),
                  dataclasses.replace(cuts.run_of().training, metric="loss", steps=1), objective=objective)  # fmt: skip
        told: list[dict[str, Any]] = []
        done = recipes.train(run, device="cpu", report=told.append)
        notes = [e["text"] for e in told if e["kind"] == "note" and "longer than" in e["text"]]
        assert len(notes) == bool(count)
        if count:
            assert re.fullmatch(rf"{count} of \d+ texts or pairs are longer than 40 tokens: {becomes}; .*", notes[0])
        assert done.outcome.steps == 1


# -- other held-out data ----------------------------------------------------------------------------------------------


def judged_by(rows: list[tuple[str, str]], **training: Any) -> Run:
    return dataclasses.replace(judge(evaluate_every=2, **training), splits=lambda: Splits(ROWS, rows))


@pytest.mark.parametrize("changed", [True, False])
def test_a_run_goes_on_with_other_held_out_data_and_says_so(changed: bool, tmp_path: Path) -> None:
    recipes.train(judged_by(ROWS[:5], steps=4), out=tmp_path, device="cpu")
    path = tmp_path / "train" / "last.safetensors"
    tensors, state = checkpoint.read(path)
    state["progress"]["best"] = {"loss": -1.0, "step": 4}  # which nothing after it can beat
    checkpoint.write(path, tensors, state)
    told: list[str] = []
    other = [(text, str(1 - int(label))) for text, label in ROWS[:5]] if changed else ROWS[:5]
    run = judged_by(other, steps=6)
    done = recipes.train(run, out=tmp_path, device="cpu", resume=True, report=lambda e: told.append(str(e.get("text"))))
    assert any("the held-out data have changed" in text for text in told) is changed
    assert (done.outcome.metrics["loss"] > 0) is changed, "the best weights are chosen anew by what is held out now"


def test_a_checkpoint_that_says_nothing_of_its_held_out_data_goes_on(tmp_path: Path) -> None:
    recipes.train(judged_by(ROWS[:5], steps=2), out=tmp_path, device="cpu")
    path = tmp_path / "train" / "last.safetensors"
    tensors, state = checkpoint.read(path)
    del state["judged"]
    checkpoint.write(path, tensors, state)
    told: list[str] = []
    recipes.train(judged_by(ROWS[5:9], steps=4), out=tmp_path, device="cpu", resume=True,
                  report=lambda e: told.append(str(e.get("text"))))  # fmt: skip
    assert told
    assert not any("held-out" in text for text in told)


def test_held_out_labels_that_training_lacks_are_told() -> None:
    strange = [("a text", "7"), ("another", "8"), ("a third", "7"), ROWS[0]]
    notes = assemble.assemble(judged_by(strange), device="cpu").plan.notes
    assert any("3 held-out texts have a label that no training text has ('7', '8')" in note for note in notes)
    assert not any("held-out" in note for note in assemble.assemble(judged_by(ROWS[:5]), device="cpu").plan.notes)
