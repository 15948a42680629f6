"""Selectors: heads and positions of a tap are those of the whole, they save their bytes, and a wrong one is named."""

from pathlib import Path

import pytest
import torch
from support import zoo
from torch import Tensor

from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import edit, trace_storage
from qkv.lens.trace import Trace

WROTE = 4


def written(core: Transformer, t: Trace, ids: Tensor) -> Trace:
    """A trace of a prompt and what was written after it, with a cache."""
    with t:
        generate(core, [ids[0].tolist()], options=DecodeOptions(WROTE))
    return t


def both(name: str, cuts: list[str], **how: int) -> tuple[Trace, Trace]:
    """One run traced twice: its taps whole, and cut."""
    core, ids = zoo.made(getattr(zoo, name)(**how)), zoo.words(1, 6)
    taps = sorted({cut.split("@")[0] for cut in cuts})
    return written(core, Trace(core, taps), ids), written(core, Trace(core, cuts), ids)


def numbers(said: str, count: int) -> list[int]:
    """What Python's own slices say."""
    if ":" in said:
        return [*range(count)][slice(*(int(p) if p else None for p in said.split(":")))]
    return [range(count)[int(p)] for p in said.split(",")]


@pytest.mark.parametrize("spec", ["gqa", "stretched", "latent"])
def test_heads_of_a_tap_are_those_of_the_whole(spec: str) -> None:
    saids, taps = ("0:2", "1", "-1", "0,2", "::2"), ("q", "z", "pattern", "v")
    cuts = [f"layers.1.attn.{tap}@heads={said}" for tap in taps for said in (saids if tap != "v" else ("0",))]
    whole, cut = both(spec, cuts)
    for name in cuts:
        tap, _, said = name.partition("@heads=")
        torch.testing.assert_close(cut[name], whole[tap][:, numbers(said, whole[tap].shape[1])], atol=1e-6, rtol=0)
        assert 0 < cut[name].shape[1] < whole[tap].shape[1]


SLOTS = {
    "2:8": [2, 3, 4, 5, 6, 7], "0,7": [0, 7], "7:": [7, 8], ":3": [0, 1, 2], "1::3": [1, 4, 7],
    "-1": [5, 6, 7, 8], "-2:": [4, 5, 6, 7, 8],  # from the end of each call: the prompt's last ones, then each word
}


@pytest.mark.parametrize("spec", ["gqa", "latent", "stretched", "experts", "bare"])
def test_positions_are_those_of_the_run_over_prompt_and_what_was_written(spec: str) -> None:
    taps = ("resid_in", "attn.q", "attn.v", "attn.k", "attn.pattern", "resid_out")
    cuts = [f"layers.1.{tap}@pos={said}" for tap in taps for said in SLOTS]
    whole, cut = both(spec, cuts)
    for name in cuts:
        tap, _, said = name.partition("@pos=")
        axis = 2 if whole[tap].dim() == 4 else 1
        assert cut.slots(name) == whole.slots(name) == SLOTS[said]
        wanted = whole[tap].index_select(axis, torch.tensor(SLOTS[said]))
        torch.testing.assert_close(cut[name], wanted, atol=1e-6, rtol=0)
        assert torch.equal(whole[name], wanted)  # of a whole tap any cut is read


def test_logits_of_the_words_that_were_written() -> None:
    """Generation makes the prompt's last row alone: what was asked for before it is not there."""
    whole, cut = both("gqa", ["logits@pos=3:"])
    assert cut.slots("logits@pos=3:") == [5, 6, 7, 8]
    assert torch.equal(cut["logits@pos=3:"], whole["logits"])
    with pytest.raises(QkvError, match=r"position 2 was not read"):
        whole["logits@pos=2"]


@torch.no_grad()
def test_a_cross_pattern_is_cut_by_head_query_and_memory_position() -> None:
    core = zoo.made(zoo.seq2seq())
    source, target = zoo.words(2, 7), zoo.words(2, 5, seed=1)
    name, memory = "decoder.layers.0.cross.pattern", "decoder.layers.0.cross.v"
    cuts = [f"{name}@heads=1@pos=2,4", f"{memory}@pos=-2:"]
    traces: list[Trace] = []
    for save in ([name, memory], cuts):
        with Trace(core, save) as t:
            held = core.encode(source)
            core(target, Inputs(memory=held))
        traces.append(t)
    whole, cut = traces
    torch.testing.assert_close(cut[cuts[0]], whole[name][:, 1:2, [2, 4]])
    assert torch.equal(cut[cuts[1]], whole[memory][:, :, 5:])
    assert cut.slots(cuts[1]) == [5, 6]


@torch.no_grad()
def test_relative_positions_and_an_opened_score_keep_their_heads() -> None:
    core, ids = zoo.made(zoo.relative()), zoo.words(1, 6)
    name = "encoder.layers.0.attn.pattern"
    cut = [f"{name}@heads=1@pos=1:3"]
    for edits in ((), (edit.cut("encoder.layers.0.attn", heads=1, query=1, key=0),)):
        found: list[Tensor] = []
        for save in ([name], cut):
            with Trace(core, save, edits) as t:
                core.encode(ids)
            found.append(t[save[0]])
        torch.testing.assert_close(found[1], found[0][:, 1:2, 1:3])


def held(t: Trace) -> int:
    """The bytes of the storage that a trace keeps alive."""
    kept = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
            for r in t.runs for c in r.calls for x in c.taps.values()}
    return sum(kept.values())


def test_bytes_of_a_cut_are_its_share_and_the_plan_knows_them() -> None:
    core, ids = zoo.made(zoo.gqa()), zoo.words(1, 12)
    plans: dict[str, int] = {}
    for cut in ("", "@heads=0:2", "@pos=-1", "@heads=1@pos=0:3"):
        t = Trace(core, [f"layers.*.attn.z{cut}"], budget="1MB")
        plans[cut] = t.plan(12).bytes
        with torch.no_grad(), t:
            core(ids, Inputs())
        assert held(t) == plans[cut] == t.held
    heads = core.spec.stack.blocks[0].attn.heads
    assert plans["@heads=0:2"] * heads == plans[""] * 2
    assert plans["@pos=-1"] * 12 == plans[""]
    assert plans["@heads=1@pos=0:3"] * heads * 4 == plans[""]


def test_a_pattern_of_one_head_keeps_the_keys_of_its_group_alone() -> None:
    core = zoo.made(zoo.gqa())
    at = core.spec.stack.blocks[0].attn
    whole, one = (Trace(core, [f"layers.0.attn.pattern{cut}"]).plan(10).bytes for cut in ("", "@heads=0"))
    size = 10 * 4 * at.head_dim  # type: ignore[union-attr]
    assert (whole, one) == (size * (at.heads + at.groups), size * 2)  # type: ignore[union-attr]


def test_a_readout_of_patterns_takes_a_cut_and_others_say_that_they_do_not() -> None:
    core, ids = zoo.made(zoo.gqa()), zoo.words(1, 6)
    t = written(core, Trace(core, ["patterns@heads=0@pos=-1"]), ids)
    assert t["layers.1.attn.pattern@heads=0@pos=-1"].shape == (1, 1, WROTE, 9)
    with pytest.raises(QkvError, match=r"'lens@pos=-1': lens reads whole taps"):
        Trace(core, ["lens@pos=-1"])


def test_a_cut_trace_is_the_same_from_disk(tmp_path: Path) -> None:
    core, ids = zoo.made(zoo.gqa()), zoo.words(1, 6)
    names = ["layers.0.attn.pattern@heads=1:3@pos=4:", "layers.1.resid_out@pos=-1"]
    t = written(core, Trace(core, names, to=tmp_path / "spilled"), ids)
    kept = written(core, Trace(core, names), ids)
    for folder in (tmp_path / "spilled", kept.save(tmp_path / "saved")):
        read = trace_storage.load_trace(folder, core)
        for name in names:
            assert torch.equal(read[name], t[name])
            assert torch.equal(read[name], kept[name])


@pytest.mark.parametrize(("selector", "said"), [
    ("layers.*.attn.q@heads=9", r"layers.0.attn.q has \d heads, 0 to \d; found heads=9"),
    ("layers.0.attn.k@heads=3", r"layers.0.attn.k has 2 heads, 0 to 1; found heads=3"),
    ("layers.0.attn.q@heads=7:", r"layers.0.attn.q has \d heads, 0 to \d; found heads=7:"),
    ("layers.0.resid_out@heads=0", r"layers.0.resid_out has no heads; leave @heads out"),
    ("layers.0.attn.q@head=0", r"found @head; did you mean 'heads'\?; a selector has @heads and @pos, each once"),
    ("layers.0.attn.q@heads=a", r"heads=a; expected numbers or a slice, such as @heads=0,3"),
    ("layers.0.attn.q@heads=0@heads=1", r"found @heads.*each once"),
    ("layers.0.atn.q@heads=0", r"no tap matches 'layers.0.atn.q'; did you mean 'layers.0.attn.q'\?"),
])
def test_a_wrong_selector_is_named_before_the_run(selector: str, said: str) -> None:
    with pytest.raises(QkvError, match=said):
        Trace(zoo.made(zoo.gqa()), [selector])


def test_what_was_not_kept_and_positions_that_never_came_are_named() -> None:
    core, ids = zoo.made(zoo.gqa()), zoo.words(1, 6)
    t = written(core, Trace(core, ["layers.0.attn.q@heads=0", "embed@pos=3,40", "layers.0.attn.z@pos=50:"]), ids)
    with pytest.raises(QkvError, match=r"attn.q was not saved; of it there is layers.0.attn.q@heads=0; add it"):
        t["layers.0.attn.q"]
    with pytest.raises(QkvError, match=r"position 40 was not read; this run has 0 to 8"):
        t["embed@pos=3,40"]
    with pytest.raises(QkvError, match=r"position 50: was not read; this run has 0 to 8"):
        t["layers.0.attn.z@pos=50:"]
    with pytest.raises(QkvError, match=r"layers.0.attn.q has \d heads"):
        t["layers.0.attn.q@heads=11"]
