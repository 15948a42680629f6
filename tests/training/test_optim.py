"""Optimisers: what each takes, that it learns, that it goes on bit for bit; and the moving average of the weights."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.data.order import draw_permutation
from qkv.training import checkpoint, loop, optim
from qkv.training.control import Progress
from qkv.training.losses import mean_loss
from qkv.training.plan import Plan
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.step import OptimizerStep

V = 29
KINDS = ("adam", "adamw", "muon", "adafactor")
RATES = {"adam": 1e-2, "adamw": 1e-2, "muon": 2e-2, "adafactor": 0.1}
BASE = Settings(steps=8, lr=5e-3, schedule="constant", precision="fp32", threads=1)


def core_of(drop: float = 0.0, seed: int = 0) -> Transformer:
    shape = Shape("prefix", width=16, layers=2, heads=2, ffn=24, experts=4, attention_dropout=drop,
                  context=16)  # fmt: skip
    core = Transformer(shape.spec(V))
    initialise(core, seed)
    return core


def plan(rows: int = 24, each: int = 4) -> Plan:
    ids = torch.randint(0, V, (rows, 9), generator=torch.Generator().manual_seed(3))

    def order(epoch: int) -> list[tuple[int, ...]]:
        mixed = draw_permutation(rows, seed=0, epoch=epoch).tolist()
        return [tuple(mixed[i : i + each]) for i in range(0, rows, each)]

    return Plan(order, lambda key: collate.collate_windows(ids[list(key)]), {"rows": rows})


def values(core: Transformer) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in checkpoint.weights(core).items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_is_learnt_by_heart(kind: Any) -> None:
    core, batch = core_of(), plan().make((0, 1, 2, 3))
    before = mean_loss(core, [batch])
    settings = dataclasses.replace(BASE, steps=120, optimizer=kind, lr=RATES[kind], warmup=10, schedule="cosine")
    loop.train(core, Plan(lambda epoch: [0], lambda key: batch), settings)
    assert before > 3
    assert mean_loss(core, [batch]) < 0.15


def goes_on(folder: Path, kind: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The checkpoint after a whole run, and after one that was interrupted; with dropout and a moving average."""
    settings = dataclasses.replace(BASE, optimizer=kind, accumulate=2, ema=0.9, clip=1.0, weight_decay=0.1)
    loop.train(core_of(0.2), plan(), settings, directory=folder / "a")
    loop.train(core_of(0.2), plan(), settings, directory=folder / "b", stop=lambda step: step == 4)
    loop.train(core_of(0.2, seed=9), plan(), settings, directory=folder / "b", resume=True)
    one, two = (checkpoint.read(folder / d / "train/last.safetensors")[0] for d in "ab")
    return one, two


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    one, two = goes_on(tmp_path, kind)
    assert same(one, two)
    assert any(name.startswith("mean:") for name in one)


@pytest.mark.parametrize(("kind", "lost"), [("muon", "momentum_buffer"), ("adafactor", "row_var"), ("adamw", "mean")])
def test_a_memory_that_is_not_brought_back_is_found(
    kind: str, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = checkpoint.read

    def read(path: Path) -> Any:
        tensors, state = true(path)
        return {n: t for n, t in tensors.items() if not n.startswith(f"{lost}:")}, state

    monkeypatch.setattr(checkpoint, "read", read)
    with pytest.raises((AssertionError, KeyError)):  # noqa: PT012
        goes_on(tmp_path, kind)
        monkeypatch.setattr(checkpoint, "read", true)
        one, two = (true(tmp_path / d / "train/last.safetensors")[0] for d in "ab")
        assert same(one, two)


# -- Muon -------------------------------------------------------------------------------------------------------------


def stepped(make: Callable[..., Any] = optim.make_optimizer) -> dict[str, torch.Tensor]:
    """How each weight moved in one step, over rate · 0.2 · √(longer side): Muon leaves singular values near 1."""
    core = core_of()
    optimizer = make(core, dataclasses.replace(BASE, optimizer="muon", weight_decay=0.0))
    before, g = values(core), torch.Generator().manual_seed(1)
    for p in core.parameters():
        p.grad = torch.randn(p.shape, generator=g)
    optimizer.step()
    return {n: (before[n] - t) / (BASE.lr * 0.2 * max(t.shape[-2:]) ** 0.5)
            for n, t in values(core).items() if t.ndim > 1}  # fmt: skip


def check_orthogonal(moved: dict[str, torch.Tensor]) -> None:
    inner = [n for n in moved if ".layers." in n]
    assert len(inner) > 10
    for name in inner:
        for part in moved[name] if moved[name].ndim == 3 else [moved[name]]:
            found = torch.linalg.svdvals(part)
            assert float(found.min()) > 0.5, name
            assert float(found.max()) < 1.4, name
    outside = torch.linalg.svdvals(moved["embed.weight"])
    assert float(outside.max() / outside.min()) > 1.5, "AdamW's step is no rotation"


def test_muon_turns_the_layers_matrices_and_those_of_experts_one_by_one() -> None:
    check_orthogonal(stepped())


def test_what_muon_does_not_turn_moves_as_under_adamw_alone() -> None:
    def make_adamw(core: Transformer, s: Settings) -> torch.optim.Optimizer:
        return optim.make_optimizer(core, dataclasses.replace(s, optimizer="adamw"))

    ours, theirs = stepped(), stepped(make_adamw)
    assert torch.equal(ours["embed.weight"], theirs["embed.weight"])
    inner = next(n for n in ours if n.endswith("attn.out.weight"))
    assert not torch.allclose(ours[inner], theirs[inner])


def test_matrices_that_are_turned_as_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = optim.orthogonal

    def piled(matrices: torch.Tensor, *, low: bool = False) -> torch.Tensor:
        return right(matrices.reshape(1, -1, matrices.shape[2]), low=low).reshape(matrices.shape)

    monkeypatch.setattr(optim, "orthogonal", piled)
    with pytest.raises(AssertionError):
        check_orthogonal(stepped())


SHAPES = ((48, 32), (32, 48), (40, 40), (48, 32), (40, 40))


def raced(low: bool, momentum: float = 0.95) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each weight and its moves after five steps of ours, beside PyTorch's own Muon with the same gradients."""
    draw = torch.Generator().manual_seed(2)
    ours, theirs = ([torch.nn.Parameter(torch.full(shape, 0.1)) for shape in SHAPES] for _ in range(2))
    one = optim.Muon(ours, lr=0.01, weight_decay=0.1, momentum=momentum)
    two = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for group in one.param_groups:
        group["low"] = low
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=draw)
            q.grad = p.grad.clone()
        one.step()
        two.step()
    return [(p.detach(), q.detach()) for p, q in zip(ours, theirs, strict=True)]


def check_raced(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for ours, theirs in pairs:
        moved = (theirs - 0.1).abs().max()
        assert float((ours - theirs).abs().max()) < 0.03 * float(moved)  # bf16 in five products of products


@pytest.mark.parametrize("low", [False, True])
def test_muon_moves_as_pytorchs_own(low: bool) -> None:
    check_raced(raced(low))


def test_another_momentum_is_found() -> None:
    with pytest.raises(AssertionError):
        check_raced(raced(True, momentum=0.9))


def test_a_pile_holds_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "MOST", 2 * 48 * 32)
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in (*SHAPES, (48, 32), (9, 48, 32))]
    found = list(optim.piles(weights))
    assert sorted(id(p) for pile in found for p in pile) == sorted(map(id, weights))
    assert all(len({p.shape[-2:] for p in pile}) == 1 for pile in found)
    assert sorted(len(pile) for pile in found if pile[0].shape[-2:] == (48, 32)) == [1, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_has_one_memory_and_decay_spares_norms_and_embeddings(kind: Any) -> None:
    core = core_of()
    made = optim.make_optimizer(core, dataclasses.replace(BASE, optimizer=kind, weight_decay=0.1))
    known = set(optim.optimizer_states(core, made))
    assert {name for name, _ in core.named_parameters()} == known
    spared = {id(p) for group in made.param_groups if not group["weight_decay"] for p in group["params"]}
    for name, p in core.named_parameters():
        assert (id(p) in spared) == (p.ndim < 2 or "embed" in name), name
    assert {g["weight_decay"] for g in made.param_groups} == {0.0, 0.1}
    assert {g["lr"] for g in made.param_groups} == {BASE.lr}
    assert {g["betas"] for g in made.param_groups if "betas" in g} <= {BASE.betas}


@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_clipping_scales_all_gradients_alike_and_tells_the_norm_before(share: float) -> None:
    made = OptimizerStep(core_of(), plan(), BASE)
    found = made.compute_gradients([(0, 1, 2, 3)], Progress())
    before = [p.grad.clone() for p in made.weights if p.grad is not None]
    assert found.norm == pytest.approx(float(torch.stack([g.norm() for g in before]).norm()), rel=1e-4)
    made.settings = dataclasses.replace(BASE, clip=share * found.norm)
    after = list[torch.Tensor]()
    made.optimizer.step = lambda: after.extend(p.grad.clone() for p in made.weights if p.grad is not None)
    made.update(1e-3, Progress(), found)
    by = min(1.0, share) if share else 1.0
    assert all(torch.allclose(b, by * a, rtol=1e-4) for a, b in zip(before, after, strict=True))


# -- the moving average -----------------------------------------------------------------------------------------------


def followed(decay: float = 0.9) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], str]:
    """The weights that a run leaves, and the moving average of those after each step, made the slow way."""
    core, steps = core_of(), list[dict[str, torch.Tensor]]()
    slow = {n: t.double() for n, t in values(core).items()}

    def look(step: int) -> bool:
        steps.append(values(core))
        return step == 8

    end = loop.train(core, plan(), dataclasses.replace(BASE, steps=9, ema=decay), stop=look)
    for i, one in enumerate(steps, 1):
        keep = min(decay, (1 + i) / (10 + i))
        slow = {n: keep * slow[n] + (1 - keep) * t.double() for n, t in one.items()}
    return values(core), slow, end.weights


def check_average() -> None:
    got, want, chosen = followed()
    assert chosen == "ema"
    assert all(torch.allclose(got[n].double(), want[n], atol=1e-6) for n in got)


def test_the_moving_average_is_that_of_the_slow_sum() -> None:
    check_average()


def test_an_average_that_forgets_at_another_pace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = optim.Mean.update
    monkeypatch.setattr(optim.Mean, "update", lambda self, step: right(self, step + 1))
    with pytest.raises(AssertionError):
        check_average()


@pytest.mark.parametrize("best", ["ema", "average", "best", "last"])
def test_of_last_best_and_the_two_averages_the_best_metric_is_kept(best: str, tmp_path: Path) -> None:
    """Evaluations at steps 2, 4, 6, 8; then the means, where there are some."""
    means, seen = best in ("ema", "average"), list[dict[str, torch.Tensor]]()
    wanted = {"best": 1, "last": 3, "average": 4, "ema": 5}[best]

    def look(core: Transformer, step: int) -> dict[str, Any]:
        seen.append(values(core))
        return {"bleu": float(len(seen) - 1 == wanted)}

    settings = dataclasses.replace(BASE, evaluate_every=2, metric="bleu", ema=0.9 * means, average=3 * means)
    core = core_of()
    end = loop.train(core, plan(), settings, directory=tmp_path, evaluate=look)
    assert end.weights == best
    assert end.metrics["bleu"] == 1.0
    assert same(values(core), seen[wanted])
