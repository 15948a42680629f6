"""What a state depends on is what moves it when changed; what ran when is what the calls did."""


import pytest
import torch
from support import zoo

from qkv.core.step import Inputs
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import edit, wavefront
from qkv.lens.trace import Trace

STATES = ["layers.*.resid_out"]


@pytest.mark.parametrize("name", ["gqa", "window", "parallel", "encoder"])
@torch.no_grad()
def test_a_state_rests_on_exactly_the_states_that_move_it(name: str) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(1, 7)
    layers = len(core.spec.stack.blocks)
    given = Inputs(prefix_len=torch.tensor([3])) if name == "parallel" else Inputs()

    def states(*changes: edit.Edit) -> torch.Tensor:
        with Trace(core, save=STATES, edit=changes) as t:
            core(ids, given)
        return torch.stack([t[f"layers.{i}.resid_out"][0] for i in range(layers)])  # L T D

    with Trace(core) as t:
        core(ids, given)
    found, plain = t.wavefront(), states()
    push = torch.randn(48, generator=torch.Generator().manual_seed(0))
    for layer in range(layers - 1):
        for token in range(7):
            moved = (states(edit.add(f"layers.{layer}.resid_out", push, pos=token)) - plain).abs().amax(-1) > 1e-6
            for above in range(layer + 1, layers):
                for other in range(7):
                    rests = bool(found.find_ancestors(above, other)[layer, token])
                    assert rests == bool(moved[above, other]), (layer, token, above, other)
    assert found.needs(1, 2) == [(0, s) for s in range(7) if t.mask("layers.1.attn").reason(2, s) == "seen"]


def test_a_grid_that_forgets_the_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = wavefront.explain_mask
    monkeypatch.setattr(wavefront, "explain_mask", lambda t, path, **how: right(t, "layers.0.attn", **how))
    with pytest.raises(AssertionError):
        test_a_state_rests_on_exactly_the_states_that_move_it("window")


def test_a_prompt_is_read_in_rows_and_words_are_written_one_by_one() -> None:
    core = zoo.made(zoo.gqa())  # three layers
    with Trace(core) as t:
        generate(core, [[1, 8, 9, 4]], options=DecodeOptions(3))
    found = t.wavefront()
    assert found.triangle.tolist() == [[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]]
    assert found.ran.tolist() == [[0, 0, 0, 0, 3, 6], [1, 1, 1, 1, 4, 7], [2, 2, 2, 2, 5, 8]]
    assert torch.equal(found.earliest, found.ran), "no order could be sooner than the one that ran"
    whole = wavefront.earliest_ticks(torch.ones(12, 16, 16).tril().bool(), 16)
    assert int(whole.max()) + 1 == 12, "16 tokens, 12 layers: 12 ticks in rows"
    assert int((torch.arange(12)[:, None] + torch.arange(16)).max()) + 1 == 12 + 16 - 1, "27 in the triangle"


@torch.no_grad()
def test_an_encoder_makes_every_word_of_a_layer_at_once() -> None:
    core = zoo.made(zoo.ALL["seq2seq"]())
    with Trace(core) as t:
        core(zoo.words(1, 3), Inputs(source=zoo.words(1, 6)))
    found = t.wavefront().encoder
    assert found is not None
    assert found.tolist() == [[layer] * 6 for layer in range(len(core.spec.encoder.blocks))]
