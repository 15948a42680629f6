"""The labs that the page computes: in Node, against the labs themselves in Python with the same weights."""

import importlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.web_models import MODELS, load_unpacked, needs_node, run_node
from website import rerun
from website.pages import LANGS, Site

import qkv
from qkv import labs
from qkv.explore.web_model import write_web_model
from qkv.labs import tiny
from qkv.labs.lab import from_json

# nothing, but for rounding
EQUAL = ("gap", "causal", "written", "demo", "trained_pre", "weight", "change", "shift", "ratio_top_p")


@torch.no_grad()
def silence_right(model: Any) -> dict[str, float]:
    """What a causal mask hides in a bundled model: one word changed, and the weights themselves."""
    ids = torch.tensor(rerun.give("mask-zero", 0)["ids"])
    other, at = ids.clone(), ids.shape[1] // 2
    other[0, at] += 1
    with model.trace(save=["*.pattern"]) as t:
        plain = tiny.guesses(model, ids)
    moved = (tiny.guesses(model, other) - plain)[0].abs().amax(-1)
    hidden = max(float(t[n].triu(1).abs().max()) for n in t.wanted)
    return {"weight": hidden, "change": float(moved[:at].max()), "change_right": float(moved[at:].min())}


@needs_node
def test_the_page_measures_what_the_labs_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODELS:
        write_web_model(qkv.load(name), tmp_path / name, name=name)

    @cache
    def load(name: str) -> Any:
        model = load_unpacked(name, tmp_path / name)
        model.core.double()
        return model

    seeds = (0, 1)
    given = {name: [rerun.give(name, seed) for seed in seeds] for name in rerun.NUMBERS}
    (tmp_path / "given.json").write_text(json.dumps({"base": f"file://{tmp_path}", "labs": given}))
    run_node("labs.mjs", tmp_path / "given.json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    for name, numbers in rerun.NUMBERS.items():
        module = importlib.import_module(f"qkv.labs.{name.replace('-', '_')}")
        if hasattr(module, "load_fp64"):
            monkeypatch.setattr(module, "load_fp64", load)
        for seed, mine in zip(seeds, found[name], strict=True):
            want = silence_right(load("demo-lm")) if name == "mask-zero" else module.run(seed)
            assert mine.keys() == set(numbers), name
            for key, value in mine.items():
                near = pytest.approx(want[key], rel=2e-3, abs=2e-5 if key in EQUAL else 1e-9)
                assert value == near, (name, key, seed)


@pytest.mark.parametrize("lang", LANGS)
def test_every_lab_has_its_table_or_says_why_not(lang: str, tmp_path: Path) -> None:
    site = Site(lang, tmp_path, tmp_path)
    for name in labs.list_names():
        saved = labs.load_result(name)
        assert saved
        text = "".join(rerun.write_rerun(site, f"labs/{name}.md", labs.find_lab(name), from_json(saved, name)))
        assert text.count("data-number=") == len(rerun.NUMBERS.get(name, ()))
        assert ("qkv-lab" in text) == (name in rerun.NUMBERS)
        assert re.search(r"[。.]", text)
