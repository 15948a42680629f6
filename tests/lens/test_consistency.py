"""`check` holds every readout that was saved to the model, and each proof finds a fault of its own."""


import pytest
import torch
from support import zoo

from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import attribution, edit
from qkv.lens.trace import READOUTS, Trace


@pytest.mark.parametrize("name", ["seq2seq", "gqa", "mixed", "experts", "cloze", "carried"])
@torch.no_grad()
def test_all_readouts_of_one_run_agree_with_it(name: str) -> None:
    core = zoo.made(zoo.ALL[name]())
    with Trace(core, save=["check", "lens", "parts"]) as t:
        zoo.run(core, zoo.words(1, 7))
    found = t.check()
    assert {"lens", "parts"} <= set(found)
    assert [k for k in found if k.endswith("moe")] == [f"layers.{i}.moe" for i, b in enumerate(core.spec.stack.blocks)
                                                       if b.moe]
    assert max(found.values()) < 1e-4


@torch.no_grad()
def test_each_proof_finds_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    core = zoo.made(zoo.mixed())
    for change, wrong in (("logits", "lens"), ("layers.2.moe.out", "layers.2.moe"), ("layers.1.attn.out", "parts")):
        with Trace(core, save=["check", "lens", "parts"], edit=[edit.scale(change, 1.5)]) as t:
            zoo.run(core, zoo.words(1, 7))
        assert t.check()[wrong] > 1e-3, change
    monkeypatch.setattr(attribution, "add_heads", lambda book, at, spot: torch.zeros(48, dtype=torch.float64))
    with Trace(core, save=["check", "lens", "parts"]) as t:
        zoo.run(core, zoo.words(1, 7))
    assert t.check()["parts"] > 1e-3


def test_every_readout_can_be_named_in_save_and_is_a_method() -> None:
    core = zoo.made(zoo.experts())
    named = [n for n in READOUTS if n not in ("patterns",)]
    with Trace(core, save=["lens", "walk", *named]) as t:
        generate(core, [[5, 6, 7]], options=DecodeOptions(3))
    assert all(callable(getattr(t, n)) for n in named)
    assert max(t.check().values()) < 1e-4
    assert t.lens(pos=-1).ids.shape == (3, 1, 5)
    assert t.lens(pos=-1).used == (True,)
    assert t.parts(pos=-1, token=5).gap < 1e-4
    assert t.walk("layers.1.attn", head=3, query=4, key=2).reason == "seen"
