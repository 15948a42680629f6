"""Readouts say what a computation by hand says."""

import pytest
import torch
from support.small import IDS, SOURCE, encoder, lm, made, run, seq2seq

from qkv.errors import QkvError
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import logit_lens
from qkv.lens.trace import Trace
from qkv.spec import Spec


@pytest.mark.parametrize(
    "spec", [seq2seq(), lm(), lm(parallel=True), encoder()], ids=["seq2seq", "lm", "parallel", "encoder"]
)
@torch.no_grad()
def test_the_last_row_of_the_lens_is_the_models_logits_and_others_are_not(spec: Spec) -> None:
    core = made(spec)
    with Trace(core, save=["lens"]) as t:
        logits = run(core, IDS, SOURCE)
    names, rows = logit_lens.layer_logits(t)
    assert len(names) == len(rows) == len(spec.stack.blocks) + 1
    assert (rows[-1] - logits[0]).abs().max() < 1e-5
    assert (rows[-2] - logits[0]).abs().max() > 1e-3
    found = logit_lens.guess_by_layer(t, top=3)
    assert torch.equal(found.ids[-1], logits[0].topk(3, -1).indices)
    assert (found.chances[-1] - logits[0].softmax(-1).topk(3, -1).values).abs().max() < 1e-6
    assert found.used == (False, False, False, True)
    assert logit_lens.guess_by_layer(t, prompt=2).used == (False, True, True, True)


def test_a_lens_without_the_final_norm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    core = made(lm())
    with torch.no_grad(), Trace(core, save=["lens"]) as t:
        logits = run(core, IDS, SOURCE)
    monkeypatch.setattr(core.decoder, "final_norm", torch.nn.Identity())
    assert (logit_lens.layer_logits(t)[1][-1] - logits[0]).abs().max() > 1e-3


def test_guesses_inside_the_prompt_are_thrown_away_and_later_ones_are_said() -> None:
    core = made(lm())
    with Trace(core, save=["lens"]) as t:
        written = generate(core, [[1, 8, 9]], options=DecodeOptions(4))[0].tokens
    found = logit_lens.guess_by_layer(t)
    assert found.used == (False, False, True, True, True, True)
    assert found.ids[-1, 2:, 0].tolist() == written
    with Trace(core, save=["logits"]) as bare:
        generate(core, [[1, 8, 9]], options=DecodeOptions(2))
    with pytest.raises(QkvError, match=r'save=\["lens"\]'):
        logit_lens.guess_by_layer(bare)


@torch.no_grad()
def test_one_position_of_the_lens_is_that_column_of_the_whole() -> None:
    core = made(lm())
    with Trace(core, save=["lens"]) as t:
        run(core, IDS, SOURCE)
    whole = logit_lens.guess_by_layer(t)
    for pos in (-1, 0, 2):
        one = t.lens(pos)
        assert torch.equal(one.ids[:, 0], whole.ids[:, pos])
        assert (one.chances[:, 0] - whole.chances[:, pos]).abs().max() < 1e-6
        assert one.used == (whole.used[pos],)
