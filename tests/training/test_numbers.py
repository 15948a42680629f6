"""What bench/recipe.py says of finished runs: bits a character of all held-out text, means over seeds, CPU seconds."""

import json
import math
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.training import recipes
from qkv.training.run import Check, Run, Vocabulary, override_run
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    yield import_module("recipe")
    for name in ("recipe", "common"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_bits_a_character_count_characters_and_not_tokens(bench: Any, kind: Any, tmp_path: Path) -> None:
    text = "却说宋江，黛玉却说。" * 12
    run = Run(
        "novel", lambda: Splits(text, text[:40]), Shape("gpt2", width=16, layers=1, heads=2, ffn=32, context=64),
        Vocabulary(kind, 290), Settings(steps=2, tokens=64, precision="fp32", evaluate_every=1),
        Check(prompts=("却说",), longest=3),
    )  # fmt: skip
    began = time.process_time()
    recipes.train(run, out=tmp_path, device="cpu")
    found = bench.reached(run, tmp_path)
    model = qkv.load(tmp_path, device="cpu")
    assert model.tokenizer is not None
    ids = torch.tensor([model.tokenizer.encode(text[:40], special=False)])
    with torch.no_grad():
        logits = model(ids).logits
    assert logits is not None
    logs = logits.log_softmax(-1)[:, :-1]
    bits = -float(logs.gather(2, ids[:, 1:, None]).sum()) / math.log(2)
    assert found["bits_per_character"] == pytest.approx(bits / 40, rel=1e-4)
    assert [prompt for prompt, _ in found["samples"]] == ["却说"]
    assert bench.changes(run, tmp_path) == []
    assert bench.changes(override_run(run, ["model.width=8"]), tmp_path) == ["model.width=16"], "what the run had"
    assert 0 < found["cpu_seconds"] < time.process_time() - began + 0.1, "of this run, not of the process so far"


def test_the_mean_over_seeds_and_its_spread(bench: Any, tmp_path: Path) -> None:
    folders = []
    for seed, right in ((0, 0.75), (1, 0.77), (2, 0.79)):
        folder = tmp_path / f"s{seed}" / "train"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"training": {"seed": seed}}))
        done = {"outcome": {"metrics": {"loss": 0.5}}, "test": {"exact_match": right}}
        (folder / "result.json").write_text(json.dumps(done))
        folders.append(folder.parent)
    found = bench.seeds(folders)
    assert (found["mean"], found["deviation"]) == (77.0, 2.0)  # over n - 1
    assert [one["seed"] for one in found["seeds"]] == [0, 1, 2]
    assert bench.seeds(folders[:1]) == {}
    for folder, loss in zip(folders, (0.4, 0.3, 0.5), strict=True):
        done = json.loads((folder / "train" / "result.json").read_text(encoding="utf-8"))
        done["outcome"]["metrics"]["loss"] = loss
        (folder / "train" / "result.json").write_text(json.dumps(done))
    chosen = bench.seeds([*folders, *reversed(folders)], 2)["chosen"]  # 0, 1; 2, 2; 1, 0
    assert chosen == {"of": 2, "seeds": [1, 2, 1], "each": [77.0, 79.0, 77.0], "mean": 77.67, "deviation": 1.15}
