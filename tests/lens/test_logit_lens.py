"""Readouts say what a computation by hand says."""

import pytest
import torch
from torch import Tensor

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import logit_lens
from qkv.lens.trace import Trace
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table


def seq2seq() -> Spec:
    n, ff = Norm("layer"), Ffn(80, "relu", bias=True)
    enc = Block(Attention(4, 4, 8, Mask("full"), True, True), ff, norm_sum=n)
    dec = Block(Attention(4, 4, 8, Mask("causal")), ff, cross=Attention(4, 2, 8, Mask("memory")), norm_sum=n)
    t = Table("sinusoid", 64)
    return Spec(53, encoder=Stack(32, (enc,) * 3, t, 6.0), decoder=Stack(32, (dec,) * 2, t, 6.0), init=Init("xavier"))


def lm(*, parallel: bool = False) -> Spec:
    b = Block(
        Attention(4, 2, 8, Mask("causal"), rotary=Rotary(8)), Ffn(48, "silu", gated=True), norm_in=Norm("rms", 1e-6),
        residual="parallel" if parallel else "serial",
    )
    return Spec(53, decoder=Stack(32, (b,) * 3, final_norm=Norm("rms", 1e-6), context=64), head=Head("untied"))


def encoder() -> Spec:
    b = Block(Attention(2, 2, 16, Mask("full")), Ffn(48, "gelu"), norm_sum=Norm("layer"))
    return Spec(53, encoder=Stack(32, (b,) * 2, Table("learned", 64)), head=Head(bias=True))


def made(spec: Spec) -> Transformer:
    core = Transformer(spec).eval()
    initialise(core, 0)
    with torch.no_grad():
        for p in core.parameters():
            p.mul_(3.0 if p.dim() > 1 and spec.init.kind == "normal" else 1.0)
    return core


def run(core: Transformer, ids: Tensor, source: Tensor) -> Tensor:
    given = Inputs()
    if core.spec.encoder and core.spec.decoder:
        given = Inputs(memory=core.encode(source))
    return core(ids, given).logits


SOURCE, IDS = torch.tensor([[3, 4, 5, 6, 7]]), torch.tensor([[1, 8, 9, 10]])


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
