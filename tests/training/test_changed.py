"""A run that goes on with other settings than it began with does what those say, and loses nothing on the way."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.core.model import Transformer
from qkv.training import checkpoint, loop, run_dir
from qkv.training.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))
from test_loop import BASE, core_of, plan_of, reversals, same, translator, values

PLAN = plan_of(reversals(60), 4)  # 15 steps an epoch


def trained(folder: Path | None, settings: Settings, *, stop: int = 0, **how: Any) -> tuple[loop.Outcome, Transformer]:
    core = core_of(translator())
    end = loop.train(core, PLAN, settings, directory=folder, resume=True, stop=lambda step: step == stop, **how)
    return end, core


def notes(folder: Path) -> str:
    return "\n".join(e["text"] for e in run_dir.read_events(folder / "train" / "log.jsonl") if e["kind"] == "note")


@pytest.mark.parametrize(("first", "then"), [("bf16", "fp32"), ("fp32", "bf16")])
def test_a_precision_that_is_asked_for_counts(first: Any, then: Any, tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, steps=6, precision=first)
    trained(tmp_path, settings, stop=3)
    assert trained(tmp_path, dataclasses.replace(settings, precision=then, steps=5), stop=4)[0].precision == then
    assert trained(tmp_path, dataclasses.replace(settings, precision="auto"))[0].precision == then, "as it was"


@pytest.mark.parametrize("then", ["adam", "adamw", "muon", "adafactor"])
@pytest.mark.parametrize("first", ["adam", "muon", "adafactor"])
def test_another_optimizer_remembers_nothing_of_the_first_and_says_so(first: Any, then: Any, tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, steps=6, optimizer=first)
    trained(tmp_path, settings, stop=3)
    end, _ = trained(tmp_path, dataclasses.replace(settings, optimizer=then))
    assert end.steps == 6
    forgets = {first, then} not in ({"adam"}, {"muon"}, {"adafactor"}, {"adam", "adamw"})
    assert (f"{then} cannot use the state that {first} kept" in notes(tmp_path)) == forgets


def falling(core: Transformer, step: int) -> dict[str, Any]:
    return {"loss": 100.0 - step}


def test_snapshots_stay_until_no_checkpoint_names_them(tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, steps=13, average=2, evaluate_every=2, save_every=6)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, settings, evaluate=stopping(11))
    named = checkpoint.read(tmp_path / "train" / "last.safetensors")[1]["progress"]["snapshots"]
    assert named == [4, 6]
    there = {int(path.stem) for path in (tmp_path / "train" / "snapshots").iterdir()}
    assert there >= set(named), "steps 8 and 10 came after"
    end, _ = trained(tmp_path, dataclasses.replace(settings, steps=6), evaluate=falling)
    assert end.steps == 6
    trained(tmp_path, settings, evaluate=falling)
    assert {int(path.stem) for path in (tmp_path / "train" / "snapshots").iterdir()} == {10, 12}


def stopping(after: int) -> Any:
    """An evaluation that is killed at the first one after a step."""

    def evaluate(core: Transformer, step: int) -> dict[str, Any]:
        if step > after:
            raise KeyboardInterrupt
        return falling(core, step)

    return evaluate


def test_an_average_that_is_no_longer_wanted_is_not_taken(tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, steps=6, average=3, evaluate_every=2)
    assert trained(tmp_path, settings)[0].weights == "average"
    end, core = trained(tmp_path, dataclasses.replace(settings, average=0, steps=8))
    assert end.weights == "last"
    _, other = trained(None, dataclasses.replace(settings, average=0, steps=8))
    assert same(values(core), values(other))


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_step_without_labels_leaves_all_as_it_was(optimizer: Any) -> None:
    settings = dataclasses.replace(BASE, steps=6, optimizer=optimizer, weight_decay=0.1, ema=0.5)

    def make(key: Any) -> Any:
        batch = PLAN.make(key)
        none = key == PLAN.order(0)[5]
        return dataclasses.replace(batch, labels=torch.full_like(batch.labels, -100), tokens=0) if none else batch

    one, two = core_of(translator()), core_of(translator())
    end = loop.train(one, dataclasses.replace(PLAN, make=make), settings)
    loop.train(two, PLAN, dataclasses.replace(settings, steps=5))
    assert (end.steps, end.empty) == (6, 1)
    assert same(values(one), values(two))
