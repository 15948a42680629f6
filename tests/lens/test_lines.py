"""Rows that move are followed: each hypothesis of a beam and each text of a batch is what it is alone, uncached."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import zoo
from torch import Tensor

import qkv
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation.beam import Search, beam
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import trace_storage
from qkv.lens.trace import Trace
from qkv.tasks.types import start_ids

SOURCES = [[9, 8, 7, 3, 4], [5, 6], [11, 2, 30, 4, 8]]


def translated(core: Transformer, source: list[int], target: list[int], save: list[str]) -> Trace:
    """One pass over a finished text, without a cache."""
    x, y = torch.tensor([source]), torch.tensor([target])
    with torch.no_grad(), Trace(core, save) as t:
        memory = core.encode(x)
        core(y, Inputs(memory=memory))
    return t


def same(mine: Trace, alone: Trace, name: str, real: int) -> None:
    """The last `real` positions of a tap agree to 1e-5 of their size, whatever padding stood before them or behind."""
    a, b = mine[name], alone[name]
    if name.endswith(".pattern"):
        width = b.shape[-1]
        keys = slice(0, width) if ".cross." in name or name.startswith("encoder.") else slice(a.shape[-1] - width, None)
        a = a[..., keys]
    axis = 2 if a.dim() == 4 else 1
    first = 0 if name.startswith("encoder.") else a.shape[axis] - real
    near = 1e-5 * max(1.0, float(b.abs().max()))
    torch.testing.assert_close(a.narrow(axis, first, min(real, a.shape[axis])), b, atol=near, rtol=0)


WIDE: dict[str, Any] = {"search": Search(beams=4), "options": DecodeOptions(7, start=(0,))}
NAMES = ["encoder.layers.0.attn.pattern", "decoder.layers.1.attn.pattern", "decoder.layers.0.cross.pattern",
         "decoder.layers.1.cross.z", "decoder.layers.1.resid_out", "decoder.layers.0.attn.k"]


def test_every_hypothesis_of_a_beam_is_what_it_is_alone() -> None:
    core = zoo.made(zoo.seq2seq(), 5)
    with Trace(core, NAMES) as t:
        best = beam(core, SOURCES[:1], **WIDE)
    found = t.lines()
    assert len(found) > 8  # some were given up on the way
    assert [2, 1, 2, 2] in [call.parents for call in t.run("decoder.layers.1.resid_out").calls]
    for n, line in enumerate(found):
        one = t.line(n)
        assert one.ran().ids[0].tolist() == list(line.ids)
        alone = translated(core, SOURCES[0], list(line.ids), NAMES)
        for name in NAMES:
            same(one, alone, name, len(line.ids) if not name.startswith("encoder.") else len(SOURCES[0]))
    read = [0, *best[0][0].tokens[:-1]]
    assert t.line(read).ran().ids[0].tolist() == read


@pytest.mark.parametrize("spec", ["gqa", "latent", "experts", "stretched"])
def test_a_text_that_left_its_batch_early_is_what_it_is_alone(spec: str) -> None:
    core = zoo.made(getattr(zoo, spec)())
    names = ["layers.1.attn.pattern", "layers.1.resid_out", "layers.1.attn.z"]
    stop = generate(core, [SOURCES[0]], options=DecodeOptions(6))[0].tokens[2]
    with Trace(core, names) as t:
        written = generate(core, SOURCES, options=DecodeOptions(6, eos=(stop,)))
    if len({len(w.tokens) for w in written}) == 1:
        pytest.skip("all texts ended together")
    with pytest.raises(QkvError, match=r"t.line\(0\)"):
        t["layers.1.resid_out"]
    for row, (prompt, said) in enumerate(zip(SOURCES, written, strict=True)):
        read = [*prompt, *said.tokens[:-1]]
        one, ids = t.line(read, origin=row), torch.tensor([read])
        with torch.no_grad(), Trace(core, names) as alone:
            core(ids, Inputs())
        for name in names if spec != "stretched" else ():  # dynamic angles depend on how far the batch has read
            same(one, alone, name, len(read))
        assert one.ran().ids[0].tolist()[-len(read) :] == read


def test_lines_are_the_same_from_disk_and_wrong_ones_are_named(tmp_path: Path) -> None:
    core = zoo.made(zoo.seq2seq())
    with Trace(core, NAMES) as t:
        beam(core, SOURCES[:1], search=Search(beams=2), options=DecodeOptions(4, start=(0,)))
    read = trace_storage.load_trace(t.save(tmp_path / "t"), core)
    assert read.lines() == t.lines()
    assert torch.equal(read.line(1)[NAMES[3]], t.line(1)[NAMES[3]])
    with pytest.raises(QkvError, match=r"line 99: this run has \d+ texts, 0 to \d+"):
        t.line(99)
    with pytest.raises(QkvError, match=r"no text of prompt 0 read the ids \[50, 51\]"):
        t.line([50, 51])


def test_a_lost_parent_would_be_noticed() -> None:
    core = zoo.made(zoo.seq2seq(), 5)
    with Trace(core, NAMES) as t:
        beam(core, SOURCES[:1], **WIDE)
    call = t.run("decoder.layers.1.resid_out").calls[-2]
    assert call.parents == [2, 1, 2, 2]
    call.parents = [0, 1, 2, 3]
    wrong: list[Tensor] = []
    for n, line in enumerate(t.lines()):
        alone = translated(core, SOURCES[0], list(line.ids), NAMES)
        gap = t.line(n)[NAMES[4]] - alone[NAMES[4]]
        wrong += [gap] if float(gap.abs().max()) > 1e-3 else []
    assert wrong


@pytest.mark.parametrize("name", ["demo-moe", "demo"])
def test_texts_of_a_batch_in_a_prefix_decoder_and_in_a_translator(name: str) -> None:
    model = qkv.load(name, device="cpu", dtype="fp32")
    dot = "decoder." if model.encoder_decoder else ""
    names = [f"{dot}layers.1.{tap}" for tap in ("attn.pattern", "resid_out")]
    names += [f"{dot}layers.1.cross.pattern"] if dot else ["layers.1.moe.weight"]
    texts = ["书和茶都在桌上，我看完了它。", "我爱喝茶。"]
    with model.trace(save=names) as t:
        said = model.translate(texts, beam=1) if dot else model.generate(texts, max_new_tokens=12)
    for row, (text, result) in enumerate(zip(texts, said, strict=True)):
        ids, start = model.ids(text), list(start_ids(model))
        read = [*([] if dot else ids), *start, *result.tokens[:-1]]
        source, target = torch.tensor([ids]), torch.tensor([read])
        with torch.no_grad(), model.trace(save=names) as alone:
            if dot:
                model(source=source, target=target)
            else:
                model(target, prefix=torch.tensor([len(ids)]))
        one = t.line(read, origin=row)
        for tap in names:
            if ".cross." in tap:  # sources are padded behind
                torch.testing.assert_close(one[tap][..., : len(ids)], alone[tap], atol=1e-5, rtol=0)
            else:
                same(one, alone, tap, len(read))
