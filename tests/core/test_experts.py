"""Experts: routing as the papers write it, work as every expert on every token would do it, faults that must show."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.shapes import checked, claims
from torch import Tensor

from qkv import spec
from qkv.core import experts
from qkv.core.dropout import make_dropout
from qkv.core.experts import Experts, route
from qkv.core.init import initialise
from qkv.core.model import Transformer, build_step
from qkv.core.step import Step
from qkv.spec import Attention, Block, Ffn, Mask, Norm, Spec, Stack

EXPERT = Ffn(24, "silu", gated=True)
KINDS = {
    "sum to one": spec.Experts(8, 2, EXPERT),
    "as scored": spec.Experts(8, 3, EXPERT, weights="as scored", shared=Ffn(40, "silu", gated=True), shared_gate=True),
    "scaled": spec.Experts(8, 4, EXPERT, weights="as scored", scale=2.5, groups=4, topk_groups=2),
    "sigmoid and bias": spec.Experts(8, 3, EXPERT, score="sigmoid", balance="bias", shared=EXPERT, scale=1.5),
    "best two": spec.Experts(
        12, 3, EXPERT, score="sigmoid", balance="bias", groups=3, topk_groups=2, group_score="best two", shared=EXPERT
    ),
    "plain": spec.Experts(5, 5, Ffn(24, "relu")),
    "one": spec.Experts(4, 1, Ffn(24, "gelu"), weights="as scored"),
}
kinds = pytest.mark.parametrize("kind", KINDS)
WIDTH = 16


def model(s: spec.Experts) -> Transformer:
    """A decoder of one block around the experts."""
    block = Block(Attention(2, 1, 8, Mask("causal")), None, norm_in=Norm("rms"), moe=s)
    return Transformer(Spec(31, Stack(WIDTH, (block,))))


def made(s: spec.Experts, seed: int = 0) -> tuple[Experts, Step]:
    """Experts with weights that tell, and the step of a batch [3, 7]."""
    torch.manual_seed(seed)
    core = model(s)
    moe = core.decoder.layers[0].moe
    with torch.no_grad():
        for p in moe.parameters():
            p.normal_(0.0, 0.5)
        for b in moe.buffers():
            b.normal_(0.0, 0.5)
    return moe, build_step(core.decoder, torch.zeros(3, 7, dtype=torch.int64))


def states(seed: int = 1) -> Tensor:
    return torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(seed))


def route_one(logits: list[float], bias: list[float], s: spec.Experts) -> dict[int, float]:
    """The chosen experts of one token and their weights, one number at a time."""
    e = torch.tensor(logits, dtype=torch.float64)
    score = (e.exp() / e.exp().sum() if s.score == "softmax" else 1 / (1 + (-e).exp())).tolist()
    wanted = [a + b for a, b in zip(score, bias, strict=True)] if s.balance == "bias" else score
    size, some = s.num_experts // s.groups, {"best": 1, "best two": 2}[s.group_score]
    worth = [sum(sorted(wanted[g * size : (g + 1) * size])[-some:]) for g in range(s.groups)]
    opened = sorted(range(s.groups), key=lambda g: -worth[g])[: s.topk_groups]
    able = [i for i in range(s.num_experts) if i // size in opened]
    chosen = sorted(able, key=lambda i: -wanted[i])[: s.top_k]
    total = sum(score[i] for i in chosen) if s.weights == "sum to one" else 1.0
    return {i: score[i] / total * s.scale for i in chosen}


def reference(moe: Experts, x: Tensor) -> Tensor:
    """Every expert on every token, weighted with zero where it was not chosen."""
    s, act = moe.spec, {"silu": F.silu, "relu": F.relu, "gelu": F.gelu}
    logits = x @ moe.router.weight.T
    bias = moe.bias.tolist() if s.balance == "bias" else [0.0] * s.num_experts
    out = torch.zeros_like(x)
    for b, t in torch.cartesian_prod(*map(torch.arange, x.shape[:2])).tolist():
        for e, weight in route_one(logits[b, t].tolist(), bias, s).items():
            up = moe.up.weight[e] @ x[b, t]
            hidden = act[s.expert.activation](moe.gate.weight[e] @ x[b, t]) * up if s.expert.gated else (
                act[s.expert.activation](up))  # fmt: skip
            out[b, t] += weight * (moe.down.weight[e] @ hidden)
        if s.shared:
            hidden = F.silu(moe.shared.gate.weight @ x[b, t]) * (moe.shared.up.weight @ x[b, t])
            share = moe.shared.down.weight @ hidden
            out[b, t] += share * torch.sigmoid(moe.shared_gate.weight @ x[b, t]) if s.shared_gate else share
    return out


@kinds
def test_chosen_experts_and_weights_are_those_of_the_papers(kind: str) -> None:
    s = KINDS[kind]
    logits = torch.randn(2, 50, s.num_experts, generator=torch.Generator().manual_seed(2)) * 2
    bias = torch.randn(s.num_experts, generator=torch.Generator().manual_seed(3)) * 0.3
    index, weight = route(logits, bias, s)
    assert index.shape == weight.shape == (2, 50, s.top_k)
    for token, i, w in zip(logits.flatten(0, 1), index.flatten(0, 1), weight.flatten(0, 1), strict=True):
        want = route_one(token.tolist(), bias.tolist(), s)
        assert dict(zip(i.tolist(), w.tolist(), strict=True)) == pytest.approx(want, abs=1e-6)


@pytest.mark.parity
@kinds
def test_work_equals_every_expert_on_every_token(kind: str) -> None:
    moe, step = made(KINDS[kind])
    x = states()
    with torch.no_grad():
        want = reference(moe, x)
        gap = (moe(x, step) - want).abs().max()
        assert want.std() > 0.1
        assert gap < 1e-5 * max(1.0, want.abs().max())
        one = moe(x[:1, :1], step)
        assert torch.allclose(one, want[:1, :1], atol=1e-5), "a token alone is worked on as in company"


@pytest.mark.parametrize("fault", ["weights not summed to one", "bias in the weights", "no shared", "one left out"])
def test_a_deliberate_fault_shows(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, kind = experts.route, "sigmoid and bias"

    def biased(logits: Tensor, bias: Any, s: spec.Experts) -> tuple[Tensor, Tensor]:
        index, weight = right(logits, bias, s)
        return index, weight + bias[index] / 10

    if fault.startswith("weights"):
        monkeypatch.setattr(experts, "route", lambda a, b, s: right(a, b, replace(s, weights="as scored")))
    elif fault == "bias in the weights":
        monkeypatch.setattr(experts, "route", biased)
    elif fault == "no shared":
        monkeypatch.setattr("qkv.core.model.Ffn.forward", lambda self, x, step: torch.zeros_like(x))
    else:
        monkeypatch.setattr(experts, "active_experts", lambda index, count: range(1, count))
    with pytest.raises(AssertionError):
        test_work_equals_every_expert_on_every_token(kind)


def test_the_router_rounds_nothing_in_bf16() -> None:
    moe, step = made(KINDS["sum to one"])
    moe.bfloat16()
    seen: dict[str, Tensor] = {}

    def hear(module: torch.nn.Module, name: str, x: Tensor) -> Tensor:
        seen[name] = x
        return x

    x = states().bfloat16()
    with torch.no_grad():
        out = moe(x, replace(step, tap=hear))
    assert out.dtype == torch.bfloat16
    assert seen["logits"].dtype == seen["weight"].dtype == torch.float32
    assert torch.allclose(seen["logits"], x.float() @ moe.router.weight.float().T, atol=1e-6)
    assert torch.allclose(seen["weight"].sum(-1), torch.ones(3, 7))


@kinds
@pytest.mark.parametrize("faulty", [False, True], ids=["", "rounded"])
def test_training_in_bf16_chooses_as_in_fp32(kind: str, faulty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    moe, step = made(KINDS[kind])
    seen: dict[str, list[Tensor]] = {"logits": [], "index": []}

    def hear(module: torch.nn.Module, name: str, x: Tensor) -> Tensor:
        if name in seen and module is moe:
            seen[name].append(x.detach())
        return x

    if faulty:
        monkeypatch.setattr(experts, "fp32_linear", lambda x, weight: F.linear(x, weight).float())
    for low in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            moe(states(), replace(step, tap=hear)).sum().backward()
    exact = all(torch.equal(*both) for both in seen.values())
    assert exact != faulty


@kinds
def test_taps_carry_what_happened(kind: str) -> None:
    moe, step = made(KINDS[kind])
    seen: dict[str, Tensor] = {}

    def hear(module: torch.nn.Module, name: str, x: Tensor) -> Tensor:
        seen[f"{module.path}.{name}"] = x
        return x

    x, s = states(), KINDS[kind]
    with torch.no_grad():
        assert torch.equal(moe(x, replace(step, tap=hear)), moe(x, step)), "listening changes nothing"
    shapes = {"norm": WIDTH, "logits": s.num_experts, "index": s.top_k, "weight": s.top_k, "out": WIDTH}
    shapes |= {"shared": WIDTH} if s.shared else {}
    assert {n: seen[f"layers.0.moe.{n}"].shape for n in shapes} == {n: (3, 7, w) for n, w in shapes.items()}
    assert ("layers.0.moe.shared.up" in seen) == bool(s.shared)


def test_every_shape_comment_holds() -> None:
    with torch.no_grad(), checked(experts) as checker:
        for s in KINDS.values():
            moe, step = made(s)
            moe(states(), step)
    file = str(experts.__file__)
    said = claims(Path(file).read_text(encoding="utf-8"))
    assert sorted(set(said) - {line for f, line in checker.checked if f == file}) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["as scored", "best two"])
def test_one_graph_without_a_break(kind: str, dtype: torch.dtype) -> None:
    moe, step = made(KINDS[kind])
    moe, x = moe.to(dtype), states().to(dtype)
    torch._dynamo.reset()
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = torch._dynamo.explain(moe)(x, step)
        assert (found.graph_count, found.graph_break_count) == (1, 0), found.break_reasons
        torch._dynamo.reset()
        compiled = torch.compile(moe, backend="eager", fullgraph=True)
        assert torch.allclose(compiled(x, step), moe(x, step), atol=1e-5 if dtype == torch.float32 else 1e-1)


def test_one_token_reads_only_the_weights_that_it_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    moe, step = made(KINDS["sum to one"])
    seen: list[int] = []
    where = {w.data_ptr(): e for e, w in enumerate(moe.down())}
    monkeypatch.setattr(moe, "multiply", lambda x, w: seen.append(where.get(w.data_ptr(), -1)) or F.linear(x, w))
    with torch.no_grad():
        moe(states()[:1, :1], step)
    assert sum(e >= 0 for e in seen) == 2


@kinds
def test_gradients_equal_those_of_the_reference(kind: str) -> None:
    moe, step = made(KINDS[kind])
    x, s = states(), KINDS[kind]
    grads = torch.autograd.grad(moe(x, step).square().sum(), list(moe.parameters()))
    assert all(g.isfinite().all() and g.any() for g in grads)
    logits = (x @ moe.router.weight.T).detach()
    index, weight = route(logits, moe.bias if s.balance == "bias" else 0.0, s)
    dense = torch.zeros_like(logits).scatter(-1, index, weight)
    mine = dict(zip((n for n, _ in moe.named_parameters()), grads, strict=True))
    act = {"silu": F.silu, "relu": F.relu, "gelu": F.gelu}[s.expert.activation]
    up = torch.einsum("btd,efd->btef", x, moe.up.weight)
    hidden = act(torch.einsum("btd,efd->btef", x, moe.gate.weight)) * up if s.expert.gated else act(up)
    out = torch.einsum("btef,edf,bte->btd", hidden, moe.down.weight, dense)
    if s.shared:
        share = moe.shared(x, step).detach()
        out = out + (share * moe.shared_gate(x).sigmoid().detach() if s.shared_gate else share)
    (want,) = torch.autograd.grad(out.square().sum(), [moe.down.weight])
    assert torch.allclose(mine["down.weight"], want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


def test_dropout_reaches_the_experts() -> None:
    moe, step = made(replace(KINDS["sum to one"], expert=Ffn(24, "silu", gated=True, dropout=0.5)))
    with torch.no_grad():
        kept, dropped = moe(states(), step), moe(states(), replace(step, drop=make_dropout(1)))
    assert not torch.allclose(kept, dropped)


@pytest.mark.parametrize("kind", ["normal", "xavier"])
def test_first_weights_of_each_expert_are_those_of_a_linear_layer(kind: Any) -> None:
    core = model(KINDS["best two"])
    core.spec = replace(core.spec, init=spec.Init(kind, 0.05, depth_scaled=True))
    initialise(core)
    moe = core.decoder.layers[0].moe
    up, down = moe.up.weight.std(), moe.down.weight.std()
    want = (0.05, 0.05 / 2**0.5) if kind == "normal" else ((2 / (WIDTH + 24)) ** 0.5,) * 2
    assert (up.item(), down.item()) == pytest.approx(want, rel=0.06)
    assert not moe.bias.any()
    assert not torch.equal(moe.up.weight[0], moe.up.weight[1])
