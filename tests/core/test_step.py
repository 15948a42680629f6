"""What travels beside x: at most nine fields, dropout by counter, taps that cost nothing and break no graph."""

import dataclasses
import threading
from typing import Any

import pytest
import torch
from support import zoo
from support.rounding import assert_same
from torch import nn

from qkv.core import dropout
from qkv.core.dropout import make_dropout, no_dropout
from qkv.core.model import build_step
from qkv.core.step import Inputs, Step, active_tracer, pass_through


class Ear:
    """Remembers what it hears."""

    needs_eager_attention = False

    def __init__(self) -> None:
        self.heard: dict[str, torch.Tensor] = {}

    def tap(self, module: nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
        self.heard[f"{module.path}.{name}".strip(".")] = x
        return x


def test_step_has_at_most_nine_fields() -> None:
    assert len(dataclasses.fields(Step)) <= 9


both_kinds = pytest.mark.parametrize("traceable", [False, True], ids=["bytes", "counted"])


@both_kinds
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_mean(p: float, traceable: bool) -> None:
    x = torch.ones(1000, 401)
    out = make_dropout(1, 0, 0, 0, traceable=traceable)(x, p)
    exact = round(p * 256) / 256
    assert abs((out == 0).float().mean().item() - exact) < 0.005
    assert abs(out.mean().item() - 1.0) < 0.02
    assert torch.allclose(out[out != 0], torch.tensor(1 / (1 - exact)))


@both_kinds
def test_dropout_is_a_function_of_its_key_alone(traceable: bool) -> None:
    x = torch.ones(64, 65)
    one = make_dropout(1, 2, 3, 4, traceable=traceable)
    first = [one(x, 0.3), one(x, 0.3)]
    torch.rand(100)
    two = make_dropout(1, 2, 3, 4, traceable=traceable)
    assert all(torch.equal(a, two(x, 0.3)) for a in first)
    assert not torch.equal(*first), "two places of one pass differ"
    state = torch.get_rng_state()
    make_dropout(9, traceable=traceable)(x, 0.5)
    assert torch.equal(state, torch.get_rng_state()), "the global generator is not touched"
    keys = [(1, 2, 3, 4), (1, 2, 4, 3), (2, 2, 3, 4), (1, 2, 3, 5), (0, 2, 3, 4), (1, 2, 3)]
    drawn = {tuple(make_dropout(*key, traceable=traceable)(torch.ones(64), 0.5).tolist()) for key in keys}
    assert len(drawn) == len(keys)


@both_kinds
def test_every_eighth_of_a_draw_is_as_random_as_the_others(traceable: bool) -> None:
    kept = (make_dropout(5, traceable=traceable)(torch.ones(80_000), 0.5) != 0).float().view(-1, 8)
    assert ((kept.mean(0) - 0.5).abs() < 0.02).all()
    assert (torch.corrcoef(kept.T) - torch.eye(8)).abs().max() < 0.05


@both_kinds
def test_draws_of_one_pass_and_of_neighbouring_steps_are_independent(traceable: bool) -> None:
    steps = [make_dropout(0, 0, n, 0, traceable=traceable) for n in range(4)]
    drawn = torch.stack([drop(torch.ones(40_000), 0.5) != 0 for drop in steps for _ in range(3)]).float()
    shifted = torch.cat((drawn, drawn[:1].roll(1, 1), drawn[:1].roll(64, 1)))
    assert (torch.corrcoef(shifted) - torch.eye(len(shifted))).abs().max() < 0.03


@both_kinds
def test_dropout_goes_back_to_a_mark(traceable: bool) -> None:
    drop, x = make_dropout(2, traceable=traceable), torch.ones(100)
    drop(x, 0.5)
    mark = drop.get_state()
    first = drop(x, 0.5)
    assert not torch.equal(first, drop(x, 0.5))
    drop.set_state(mark)
    assert torch.equal(first, drop(x, 0.5))


@both_kinds
def test_the_way_back_drops_what_the_way_forth_dropped(traceable: bool) -> None:
    x = torch.randn(30, 40, requires_grad=True)
    out = make_dropout(3, traceable=traceable)(x, 0.5)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, out != 0)
    assert torch.allclose(x.grad[x.grad != 0], torch.tensor(2.0))


def test_dropout_off_is_the_very_tensor() -> None:
    x = torch.randn(3)
    assert no_dropout(x, 0.5) is x
    assert make_dropout(1)(x, 0.0) is x


def test_dropout_that_forgets_to_scale_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout.DropoutFunction, "apply", lambda x, kept, scale: x * kept)
    with pytest.raises(AssertionError):
        test_dropout_has_its_rate_and_keeps_the_mean(0.5, traceable=False)


def test_a_tap_that_is_off_is_the_very_tensor() -> None:
    x = torch.randn(3)
    assert pass_through(nn.Identity(), "x", x) is x


def test_taps_have_the_names_of_the_contract() -> None:
    core, ids, ear = zoo.made(zoo.seq2seq()), zoo.words(2, 5), Ear()
    token = active_tracer.set(ear)
    loud = zoo.run(core, ids)
    active_tracer.reset(token)
    part = ("norm", "q_pre", "k_pre", "q", "k", "v", "z", "out")
    names = {f"decoder.layers.1.attn.{n}" for n in part}
    names |= {f"decoder.layers.1.cross.{n}" for n in part if n != "k"}
    names |= {f"encoder.layers.2.ffn.{n}" for n in ("norm", "up", "act", "out")}
    names |= {f"decoder.layers.0.{n}" for n in ("resid_in", "resid_mid", "resid_cross", "resid_out")}
    names |= {"encoder.embed", "decoder.embed", "encoder.final_norm", "decoder.final_norm", "logits"}
    assert names <= ear.heard.keys()
    assert torch.equal(loud, zoo.run(core, ids)), "listening changes nothing"


def test_one_stack_has_no_prefix_and_another_thread_is_not_heard() -> None:
    core, ear = zoo.made(zoo.gqa()), Ear()
    token = active_tracer.set(ear)
    thread = threading.Thread(target=lambda: zoo.run(core, zoo.words(1, 4)))
    thread.start()
    thread.join()
    assert ear.heard == {}
    zoo.run(core, zoo.words(1, 4))
    active_tracer.reset(token)
    assert {"layers.0.attn.q", "layers.2.ffn.gate", "embed", "final_norm"} <= ear.heard.keys()


@pytest.mark.parametrize("name", ["seq2seq", "gqa", "parallel"])
@pytest.mark.parametrize("ear", [None, Ear()], ids=["off", "on"])
def test_no_graph_break_and_the_same_logits(name: str, ear: Any) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(2, 6)
    torch._dynamo.reset()
    with torch.no_grad():
        memory = core.encode(ids) if hasattr(core, "encoder") else None
    token = active_tracer.set(ear)
    step = build_step(core.decoder, ids, Inputs(memory=memory))
    active_tracer.reset(token)
    with torch.no_grad():
        run = lambda ids, step: core.decoder(core.embed(ids), step)  # noqa: E731
        compiled = torch.compile(run, backend="eager", fullgraph=True)
        assert torch.equal(compiled(ids, step), run(ids, step))


def test_a_tap_that_breaks_the_graph_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud(Ear):
        def tap(self, module: nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        test_no_graph_break_and_the_same_logits("gqa", Loud())


@pytest.mark.parametrize("name", zoo.ALL)
def test_gradients_reach_every_weight(name: str) -> None:
    core = zoo.made(zoo.ALL[name]())
    logits = zoo.run(core, zoo.words(3, 9), drop=make_dropout(1))
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    idle = {n for n, p in core.named_parameters() if p.grad is None or not p.grad.any()}
    assert {n for n in idle if not n.startswith("labels.")} == set()  # these speak in classify() alone


@pytest.mark.parametrize("name", ["gqa", "seq2seq", "encoder"])
def test_padding_of_either_side_changes_no_real_position(name: str) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(1, 6)
    padded = torch.cat((ids, torch.full((1, 3), 5)), 1)
    real = torch.arange(9)[None] < 6
    source, source_real = zoo.words(1, 9, seed=3), torch.arange(9)[None] < 7

    def run(core: Any, x: torch.Tensor, mask: Any, source: torch.Tensor, source_mask: Any) -> torch.Tensor:
        if name != "seq2seq":
            return core(x, Inputs(padding_mask=mask)).logits
        memory = core.encode(source, Inputs(padding_mask=source_mask))
        return core(x, Inputs(padding_mask=mask, memory=memory, source_padding_mask=source_mask)).logits

    with torch.no_grad():
        assert_same(
            core,
            lambda c: run(c, ids, None, source[:, :7], None),
            lambda c: run(c, padded, real, source, source_real)[:, :6],
        )


def test_packed_documents_are_as_separate_ones() -> None:
    spec = zoo.gqa()
    core, one, two = zoo.made(spec), zoo.words(1, 5), zoo.words(1, 4, seed=2)
    ids, documents = torch.cat((one, two), 1), torch.tensor([[0] * 5 + [1] * 4])
    with torch.no_grad():
        assert_same(
            core,
            lambda c: torch.cat((zoo.run(c, one), zoo.run(c, two)), 1),  # rotary: only the distance counts
            lambda c: c(ids, Inputs(document_ids=documents)).logits,
        )


def test_labels_by_the_mean_do_not_see_padding() -> None:
    """In float64 a row alone has the logits that it has among longer ones: padding is no part of the mean."""
    core = zoo.made(zoo.ALL["mean"]()).double()
    ids, real = zoo.words(3, 9), torch.ones(3, 9, dtype=torch.bool)
    real[1, 4:] = real[2, 7:] = False
    together = core.classify(ids, Inputs(padding_mask=real))
    alone = [core.classify(ids[n : n + 1, : int(real[n].sum())]) for n in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-12, rtol=0)
    assert (core.classify(ids)[1] - together[1]).abs().max() > 1e-3
