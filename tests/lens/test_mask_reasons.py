"""The reasons told from a run are those of the rules themselves, for every rule and over cached calls."""


import pytest
import torch
from support import zoo
from support.reasons import find_reasons

from qkv.core.cache import Static
from qkv.core.masks import REASONS, MaskContext
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import mask_reasons
from qkv.lens.trace import Trace
from qkv.spec import Mask

SLOTS = torch.arange(9)
LEFT = torch.tensor([[True] * 9, [False] * 2 + [True] * 7])
RIGHT = torch.tensor([[True] * 9, [True] * 6 + [False] * 3])
PACKED = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2, 2]])


@torch.no_grad()
def told(name: str, given: Inputs, row: int, path: str | None = None) -> torch.Tensor:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(2, 9)
    with Trace(core) as t:
        core(ids, given)
    return t.mask(path, row=row).cells


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("real", [None, LEFT, RIGHT], ids=["whole", "left", "right"])
def test_every_cell_has_the_reason_of_its_rule(row: int, real: torch.Tensor | None) -> None:
    pick = row if real is not None else 0
    for name, rule, given in (
        ("gqa", Mask("causal"), Inputs(padding_mask=real)), ("encoder", Mask("full"), Inputs(padding_mask=real)),
        ("learned", Mask("causal"), Inputs(padding_mask=real, document_ids=PACKED)),
        ("parallel", Mask("prefix"), Inputs(padding_mask=real, prefix_len=torch.tensor([4, 3]))),
    ):
        free = None
        if given.prefix_len is not None:
            free = given.prefix_len if real is None else given.prefix_len + real.int().argmax(1)
        wanted = find_reasons(rule, MaskContext(SLOTS, SLOTS, real, given.document_ids, free))
        got = told(name, given, row)
        assert torch.equal(got, wanted[pick if len(wanted) == 1 else row]), (name, row)
    windowed = find_reasons(Mask("causal", 3), MaskContext(SLOTS, SLOTS, real))
    got = told("window", Inputs(padding_mask=real), row, "layers.1.attn")
    assert torch.equal(got, windowed[row if len(windowed) > 1 else 0])
    assert REASONS.index("window") in got


def test_a_rule_that_takes_padding_for_the_future_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_reasons, "classify_hidden", lambda hidden, kind, window: hidden.to(torch.uint8))
    with pytest.raises(AssertionError):
        test_every_cell_has_the_reason_of_its_rule(1, LEFT)


@torch.no_grad()
def test_a_cached_run_has_the_mask_of_one_pass_and_memory_hides_padding() -> None:
    core, ids, cache = zoo.made(zoo.gqa(window=3)), zoo.words(2, 9), Static(3)
    with Trace(core) as whole:
        core(ids)
    with Trace(core) as t:
        for a, b in ((0, 4), (4, 6), (6, 7), (7, 9)):
            core(ids[:, a:b], cache=cache)
    for path in ("layers.0.attn", "layers.1.attn"):
        assert torch.equal(t.mask(path).cells, whole.mask(path).cells)
        assert torch.equal(t.bias(path)[0], whole.bias(path)[0])
    both, real = zoo.made(zoo.seq2seq()), torch.tensor([[True] * 4, [True] * 3 + [False]])
    source = zoo.words(2, 4, seed=9)
    with Trace(both) as t:
        memory = both.encode(source, Inputs(padding_mask=real))
        both(ids, Inputs(memory=memory, source_padding_mask=real))
    why = t.mask("decoder.layers.0.cross", row=1)
    assert why.cells.shape == (9, 4)
    assert why.row_reasons(5) == ["seen", "seen", "seen", "padding"]
    assert t.mask("encoder.layers.2.attn", row=1).reason(3, 3) == "padding"
    assert t.mask(row=1).reason(2, 5) == "future"
    with pytest.raises(QkvError, match=r"no attention is called .layers\.0\.attn"):
        t.mask("layers.0.attn")


def test_a_prompt_and_its_continuation_form_one_triangle() -> None:
    core = zoo.made(zoo.gqa())
    with Trace(core) as t:
        generate(core, [[1, 8, 9]], options=DecodeOptions(5))
    assert torch.equal(t.mask().cells > 0, torch.ones(7, 7).triu(1).bool())
