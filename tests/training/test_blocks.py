"""Blocks compiled or made again learn as plain ones do, in few graphs, and stand as they stood afterwards."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.core.dropout import make_dropout
from qkv.core.init import initialise
from qkv.core.model import Block as Layer
from qkv.core.model import Transformer
from qkv.core.step import active_tracer
from qkv.data import collate
from qkv.spec import Attention, Block, Experts, Ffn, Head, Mask, Norm, Rotary, Spec, Stack, Table
from qkv.training import loop
from qkv.training import step as stepping
from qkv.training.losses import step_loss
from qkv.training.plan import Plan
from qkv.training.settings import Settings
from qkv.training.step import Blocks

# the compiler asks each tensor for its gradient, and hides the warning itself where warnings are no errors
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
WORDS, CPU = 29, torch.device("cpu")


def block(mask: Any, *, memory: bool = False, experts: bool = False) -> Block:
    def attention(kind: Any) -> Attention:
        return Attention(2, 1, 32, Mask(kind), True, True, rotary=Rotary(32) if kind == "causal" else None, dropout=0.2)

    moe = Experts(4, 2, Ffn(32, "silu", gated=True)) if experts else None
    ffn = None if experts else Ffn(96, "relu", bias=True, dropout=0.2)
    cross = attention("memory") if memory else None
    return Block(attention(mask), ffn, moe=moe, cross=cross, norm_sum=Norm("layer"), dropout=0.2)


def core_of(kind: str) -> Transformer:
    table = Table("sinusoid", 64)
    if kind == "translator":
        sides = {"encoder": Stack(64, (block("full"),) * 2, table, dropout=0.2),
                 "decoder": Stack(64, (block("causal", memory=True),) * 2, table, dropout=0.2)}  # fmt: skip
    else:
        sides = {"decoder": Stack(64, (block("causal", experts=kind == "experts"),) * 2, dropout=0.2)}
    core = Transformer(Spec(WORDS, head=Head("tied"), **sides)).train()
    initialise(core, 1)
    return core


def batch_of(kind: str, length: int) -> collate.Batch:
    ids = torch.randint(3, WORDS, (4, length + 1), generator=torch.Generator().manual_seed(length))
    if kind != "translator":
        return collate.collate_windows(ids)
    rows = [row[: length - n].tolist() for n, row in enumerate(ids)]
    return collate.collate_pairs([(row, row[1:]) for row in rows], pad=0, start=1)


def learnt(kind: str, length: int, way: Blocks | None, core: Transformer, *, traceable: bool) -> list[Tensor]:
    """The loss of a batch and the gradients of all weights."""
    core.zero_grad()
    drop = make_dropout(5, length, traceable=traceable)
    if way is None:
        loss, _ = step_loss(core, batch_of(kind, length), smoothing=0.1, drop=drop)
    else:
        with way.learning():
            loss, _ = step_loss(core, batch_of(kind, length), smoothing=0.1, drop=drop)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in core.parameters() if p.grad is not None)]


class Graphs:
    """A compiler that runs what it is given and counts it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, _: Any) -> Any:
        self.count += 1
        return graph.forward


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(("kind", "most"), [("speaker", 2), ("translator", 4)])
def test_compiled_blocks_learn_the_same_from_two_graphs_a_kind_at_most(kind: str, most: int) -> None:
    core, graphs = core_of(kind), Graphs()
    way = Blocks(core, Settings(compile="blocks"), CPU, backend=graphs)  # type: ignore[arg-type]
    for length in (16, 16, 11, 13):
        plain = learnt(kind, length, None, core, traceable=True)
        fast = learnt(kind, length, way, core, traceable=True)
        assert len(plain) == len(fast)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, fast, strict=True))
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert not breaks, breaks
    assert 0 < graphs.count <= most


def test_dropout_that_cannot_be_traced_would_break_the_graph() -> None:
    core, graphs = core_of("speaker"), Graphs()
    way = Blocks(core, Settings(compile="blocks"), CPU, backend=graphs)  # type: ignore[arg-type]
    learnt("speaker", 16, way, core, traceable=False)
    assert torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("traceable", [False, True], ids=["bytes", "counted"])
@pytest.mark.parametrize("kind", ["speaker", "translator", "experts"])
def test_blocks_that_are_made_again_learn_the_same_to_the_last_bit(kind: str, traceable: bool) -> None:
    core = core_of(kind)
    way = Blocks(core, Settings(recompute="blocks"), CPU)
    plain = learnt(kind, 12, None, core, traceable=traceable)
    again = learnt(kind, 12, way, core, traceable=traceable)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_other_dropout_the_second_time_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of("speaker")
    way = Blocks(core, Settings(recompute="blocks"), CPU)
    plain = learnt("speaker", 12, None, core, traceable=True)
    monkeypatch.setattr("qkv.core.dropout.CounterDropout.set_state", lambda *_: None)
    again = learnt("speaker", 12, way, core, traceable=True)
    assert not all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_blocks_that_are_made_again_keep_less_for_the_way_back() -> None:
    def kept(way: Blocks | None) -> int:
        seen: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            learnt("speaker", 40, way, core, traceable=False)
        return sum(seen.values())

    core = core_of("speaker")
    assert kept(Blocks(core, Settings(recompute="blocks"), CPU)) < 0.5 * kept(None)


def test_blocks_stand_as_they_stood_afterwards_and_where_somebody_listens() -> None:
    core, calls = core_of("speaker"), list[str]()
    way = Blocks(core, Settings(recompute="blocks"), CPU)
    way.fast = {b: lambda x, step, run=run: calls.append("fast") or run(x, step) for b, run in way.fast.items()}
    learnt("speaker", 8, way, core, traceable=False)
    assert len(calls) == 2
    assert all("forward" not in vars(m) for m in core.modules() if isinstance(m, Layer))

    class Ear:
        needs_eager_attention = False

        def tap(self, module: Any, name: str, x: Tensor) -> Tensor:
            return x

    token = active_tracer.set(Ear())
    try:
        learnt("speaker", 8, way, core, traceable=False)
    finally:
        active_tracer.reset(token)
    assert len(calls) == 2


@pytest.mark.parametrize(("compiled", "recomputed"), [(False, True), (True, True)])
def test_a_run_with_fast_blocks_ends_where_a_plain_one_does(
    compiled: bool, recomputed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"compile": "blocks"} if compiled else {}
    how |= {"recompute": "blocks"} if recomputed else {}
    monkeypatch.setattr(stepping, "Blocks", functools.partial(Blocks, backend="eager"))
    true: Callable[..., Any] = stepping.make_dropout
    monkeypatch.setattr(stepping, "make_dropout", lambda *key, **_: true(*key, traceable=True))
    plan = Plan(lambda _: [9, 14, 11], lambda length: batch_of("speaker", length))
    base = Settings(steps=4, lr=1e-3, precision="fp32", clip=1.0)
    ends = []
    for settings in (base, dataclasses.replace(base, **how)):
        core = core_of("speaker")
        loop.train(core, plan, settings)
        ends.append(core.state_dict())
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=2e-5) for name in ends[0])


def test_on_a_cpu_nothing_is_compiled_unless_it_is_asked_for() -> None:
    assert not Blocks(core_of("speaker"), Settings(), CPU).fast
    assert Blocks(core_of("speaker"), Settings(), torch.device("cuda")).compiles
    assert not Blocks(core_of("speaker"), Settings(compile="never"), torch.device("cuda")).compiles
    experts = Blocks(core_of("experts"), Settings(compile="blocks"), CPU)
    assert experts.compiles
    assert not experts.fast, "routers are listened to"
